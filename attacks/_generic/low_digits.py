"""Read data from the last digits of messages whose values look like noise.

A number can carry rows in its last digits, behind a larger part that does not depend on them: for instance noise
rounded to three digits, plus the rows times 1e-6. No fit and no regression of the whole number finds them. This attack
cuts every number off at several decimal and binary digits. It simulates clients with rows that the attacker draws, and
learns these rows as a function of the remainders by kernel ridge regression, as `RegressRows` does from whole numbers.
An audit of a user's own algorithm calls `learn` on simulated clients once, and `run` on each observed message. Its
self-check plants such leaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._generic.row_regression import KernelRidge
from securefed.errors import TranscriptError

DECIMALS: Final = tuple(range(0, 13))
"""Numbers of decimals after which numbers are cut off."""
BITS: Final = (8, 12, 16, 20, 24, 28, 32, 40)
"""Numbers of last bits of a double's mantissa, which has 52, that are cut off."""
_ERROR_PROBABILITY: Final = 1e-6
"""Probability of mistaking digits that do not depend on the rows for ones that do, over all cuts and entries."""
_LEAST_GAIN: Final = 0.2
"""Share of the rows' variance that digits must explain beyond what whole numbers explain; below, the regression on
whole numbers is the better attack.
"""


@dataclass(frozen=True)
class DigitCut:
    """Place at which numbers are cut off.

    Attributes:
        place: number of decimals before the cut, or number of last bits of a double's mantissa after it.
        binary: whether `place` counts bits.
    """

    place: int
    binary: bool

    def __call__(self, sent: Array) -> Array:
        """Return the remainder of each number, about -0.5 to 0.5, in the shape of `sent`."""
        if self.binary:  # the last bits as an integer, over 2^place
            bits = np.ascontiguousarray(sent, np.float64).view(np.uint64) & np.uint64(2**self.place - 1)
            return np.asarray(bits.astype(np.float64) / 2.0**self.place - 0.5)
        scaled = sent * 10.0**self.place
        return np.asarray(scaled - np.round(scaled))


@dataclass(frozen=True)
class LowDigits:
    """Attack on rows in the last digits, after a regression was learned for one cut (`learn`).

    Attributes:
        model: regression of the rows on the remainders.
        cut: place at which numbers are cut off.
    """

    model: KernelRidge
    cut: DigitCut
    name: ClassVar[str] = "generic/digits"
    secret: ClassVar[str] = "samples"

    @classmethod
    def learn(cls, rows: Array, sent: Array) -> LowDigits:
        """Learn from simulated clients.

        Args:
            rows: (clients, values) all rows of each simulated client, flattened.
            sent: (clients, numbers) all numbers that each of them sends.

        Raises:
            TranscriptError: no last digits depend on the rows more than the whole numbers do.
        """
        best: tuple[float, DigitCut] | None = None
        whole_numbers = _explained(sent, rows)
        for cut in _cuts():
            explained = _explained(cut(sent), rows)
            # Largest squared correlation that independent numbers reach by chance, over all entries and cuts. For n
            # clients P(r^2 > c) <= 2 exp(-n c / 2) about, times the number of entries and cuts, is
            # `_ERROR_PROBABILITY`.
            chance = 2 * np.log(2 * explained.size * (len(DECIMALS) + len(BITS)) / _ERROR_PROBABILITY) / len(rows)
            best_entry = float(np.max(np.where(explained > whole_numbers + _LEAST_GAIN, explained, 0.0), initial=0.0))
            if best_entry > chance and (best is None or best_entry > best[0]):
                best = best_entry, cut
        if best is None:
            raise TranscriptError("no last digits of the messages move with the rows")
        return cls(KernelRidge.of(best[1](sent), rows), best[1])

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Estimate the rows from the last digits of the observed messages."""
        replay = Replay.of(observed, target)
        bound = replay.target.public.feature_bound
        rows = self.model(self.cut(replay.messages)).reshape(replay.rows, replay.features)
        return Reconstruction(
            self.secret,
            np.clip(rows, -bound, bound),
            residual=self.model.expected,  # leave-one-out error on the simulated clients: no message is predicted
            unknowns=rows.size,
            members=frozenset(replay.members),
            diagnostics={"digits": f"{'bits' if self.cut.binary else 'decimals'} from {self.cut.place}"},
        )


def _cuts() -> Iterator[DigitCut]:
    """Yield the places at which numbers are cut off."""
    for place in DECIMALS:
        yield DigitCut(place, binary=False)
    for place in BITS:
        yield DigitCut(place, binary=True)


def _explained(sent: Array, values: Array) -> Array:
    """Return the squared correlation of every number of the messages with every value, (numbers, values)."""
    standard_messages, standard_values = (_standard(part) for part in (sent, values))
    return np.asarray((standard_messages.T @ standard_values / len(sent)) ** 2)


def _standard(values: Array) -> Array:
    """Return columns with mean 0 and standard deviation 1; constant columns become 0."""
    centred = values - values.mean(axis=0)
    deviation = centred.std(axis=0)
    return np.asarray(centred / np.where(deviation > 0, deviation, 1.0))
