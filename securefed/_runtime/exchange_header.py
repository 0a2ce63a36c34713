"""The header of an exchange: the public numbers from which a client derives the exchange's plan.

An exchange makes one sum. The server puts the header into the first request that each client gets in it. The plan says
how the defence clips, scales and sums each tensor; clients derive it from what the run's terms fix and these numbers,
so that the server has no other say in it. A header also has its place in the run's schedule, which a client checks
before it answers: a server that could open any exchange could ask for a contribution again and again, and learn from
each answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._messages import SERVER, ClientId, Message
from securefed._persistence.packing import nest
from securefed._tensors import Array
from securefed.errors import MalformedError

TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
_KINDS = (TRAIN, EVALUATE)
MAX_DOUBLINGS: Final = 20
"""Most doublings of the declared bounds of the tensors' entries that one kind of exchange may have in a run.

Bounds are doubled where a contribution exceeded them. Each doubling costs the sum a bit of accuracy; the limit, a
factor of 2^20 = 10^6, keeps a server from coarsening sums at will."""


@dataclass(frozen=True)
class ExchangeHeader:
    """Public numbers that open an exchange.

    Attributes:
        cohort: ids of the invited clients, ascending.
        kind: what is summed: `train` or `evaluate`.
        doublings: how often the declared bounds were doubled.
        learned: public numbers that an adaptive defence learned from earlier sums, such as the clipping norm; positive.
        round: training rounds completed or given up before it.
        attempt: how many exchanges for this sum were void before; `round` and `attempt` seed the mini-batches.
    """

    cohort: tuple[ClientId, ...]
    kind: str
    doublings: int
    learned: tuple[float, ...] = ()
    round: int = 0
    attempt: int = 0

    def body(self) -> dict[str, Array]:
        """Return the header as fields of a message. Inverse: `read`."""
        body: dict[str, Array] = {
            "cohort": np.asarray(self.cohort, np.int64),
            "kind": np.asarray(_KINDS.index(self.kind), np.int64),
            "doublings": np.asarray(self.doublings, np.int64),
            "place": np.asarray([self.round, self.attempt], np.int64),
        }
        return nest("session", body | ({"learned": np.asarray(self.learned, np.float64)} if self.learned else {}))

    @classmethod
    def read(cls, message: Message, client: ClientId, clients: int, learned: int) -> ExchangeHeader:
        """Read and check the header in a request to `client`.

        Args:
            message: the request.
            client: the receiver's id.
            clients: number of clients in the run.
            learned: how many numbers the defence learns.

        Raises:
            MalformedError: a field is missing or of another type; the kind is unknown; there are too many doublings;
                the cohort lacks the client or holds unknown ones; round or attempt is negative; or `learned` does not
                hold as many positive numbers as the defence learns.
        """
        invited = integers(message, "session/cohort", 1)
        if invited.size > clients:  # checked first, so that no long list is made of it
            raise MalformedError(message.sender, f"a cohort of {invited.size}, and the run has {clients} clients")
        cohort = tuple(int(i) for i in invited)
        doublings = int(integers(message, "session/doublings", 0))
        kind = int(integers(message, "session/kind", 0))
        if not 0 <= kind < len(_KINDS):
            raise MalformedError(message.sender, f"no such kind of exchange: {kind}")
        if not 0 <= doublings <= MAX_DOUBLINGS:
            raise MalformedError(
                message.sender, f"the range may be doubled 0 to {MAX_DOUBLINGS} times, not {doublings}"
            )
        if client not in cohort or not set(cohort) <= set(range(clients)):
            raise MalformedError(message.sender, f"cohort {cohort} does not fit client {client} of this run")
        place = integers(message, "session/place", 1)
        if place.shape != (2,) or (place < 0).any():
            raise MalformedError(message.sender, f"'session/place' is no round and attempt from 0 on: {place.tolist()}")
        numbers = message.body.get("session/learned", np.zeros(0))
        if (
            numbers.dtype != np.float64
            or numbers.shape != (learned,)
            or not np.all((numbers > 0) & np.isfinite(numbers))
        ):
            raise MalformedError(message.sender, f"'session/learned' is no float64 array of {learned} positive numbers")
        round, attempt = place.tolist()
        return cls(cohort, _KINDS[kind], doublings, tuple(numbers.tolist()), round, attempt)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values. Inverse: `from_json`."""
        return asdict(self) | {"learned": [number.hex() for number in self.learned]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ExchangeHeader:
        """Read the header from JSON values. Inverse of `to_json`."""
        learned = tuple(float.fromhex(number) for number in values["learned"])
        place = values["round"], values["attempt"]
        return cls(tuple(values["cohort"]), values["kind"], values["doublings"], learned, *place)


def integers(message: Message, name: str, dimensions: int) -> Array:
    """Return an integer field of a request; raise `MalformedError` unless it is int64 with `dimensions` dimensions."""
    value = message.body.get(name)
    if value is None or value.dtype != np.int64 or value.ndim != dimensions:
        raise MalformedError(message.sender, f"{name!r} is missing or no int64 array of {dimensions} dimensions")
    return value


MAX_VOID: Final = 8
"""Attempts at one sum, unless the terms say otherwise."""

ExchangePosition = tuple[int, int, int]
"""Position of an exchange in a run: rounds completed or given up; 0 for an evaluation and 1 for training; attempt."""

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
