"""The schedule of a run's exchanges, as part of the terms: a client refuses any exchange outside it.

An exchange makes one sum. Without a schedule a server could ask for unplanned evaluations, or for the same round again
and again, and learn from each answer. `ClientNode` checks each exchange's header against it before it answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from securefed._hyperparameters import check_integer
from securefed._messages import SERVER
from securefed._runtime.exchange_header import EVALUATE, TRAIN, ExchangeHeader
from securefed.errors import MalformedError

MAX_VOID: Final = 8
"""Attempts at one sum, unless the terms say otherwise."""

ExchangePosition = tuple[int, int, int]
"""Position of an exchange in a run: completed rounds; 0 for an evaluation and 1 for training; attempt."""

BEFORE_ALL: Final[ExchangePosition] = (-1, 0, 0)
"""Position before any exchange: positions compare as tuples."""


@dataclass(frozen=True)
class ExchangeSchedule:
    """The exchanges of a run, in order: each round's training, and an evaluation after every so many rounds.

    A server may leave exchanges out, such as a round in which this client is not invited.

    Attributes:
        rounds: training rounds at most, and the last round after which an evaluation may come; `None` for any number.
        evaluate_every: rounds between two evaluations, of which the first may come before any training; 0 for none.
        max_void: attempts at one sum: an exchange that was void is repeated.

    Raises:
        ConfigError: a number outside its domain.
    """

    rounds: int | None = None
    evaluate_every: int = 0
    max_void: int = MAX_VOID

    def __post_init__(self) -> None:
        if self.rounds is not None:
            check_integer("rounds", self.rounds, 0)
        check_integer("evaluate_every", self.evaluate_every, 0)
        check_integer("max_void", self.max_void, 1)

    def check(self, last: ExchangePosition, header: ExchangeHeader) -> ExchangePosition:
        """Check that an exchange fits the schedule, and return its position.

        Args:
            header: the exchange's header.
            last: the position of the last exchange that this client accepted; `BEFORE_ALL` before any.

        Raises:
            MalformedError: the run has no such exchange, or it does not come after `last`.
        """
        place = (header.round, int(header.kind == TRAIN), header.attempt)
        if place <= last:
            raise MalformedError(
                SERVER, f"it opens {_words(place)} after {_words(last)}; exchanges of a run come in order"
            )
        if header.attempt >= self.max_void:
            raise MalformedError(SERVER, f"attempt {header.attempt + 1}; the terms allow {self.max_void} attempts")
        if header.kind == EVALUATE and not (self.evaluate_every and header.round % self.evaluate_every == 0):
            raise MalformedError(
                SERVER, f"it asks for an evaluation after round {header.round}; the terms have "
                + (f"one every {self.evaluate_every} rounds" if self.evaluate_every else "none"),
            )  # fmt: skip
        if self.rounds is not None and header.round + int(header.kind == TRAIN) > self.rounds:
            asked = f"opens round {header.round + 1}"
            if header.kind == EVALUATE:
                asked = f"asks for an evaluation after round {header.round}"
            raise MalformedError(SERVER, f"it {asked}; the terms have {self.rounds} rounds")
        return place


def _words(place: ExchangePosition) -> str:
    """Describe a position in an error."""
    rounds, trains, attempt = place
    return f"attempt {attempt + 1} at {'training' if trains else 'evaluation'} after {rounds} rounds"
