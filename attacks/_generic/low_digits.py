"""Read data from the last digits of messages whose values look like noise.

A number can carry rows behind a larger part that does not depend on them, such as noise rounded to three digits and
rows times 1e-6. No fit and no regression of the whole number finds them. This attack cuts every number off at several
places, decimal and binary, and learns rows from the remainder, as `RegressRows` does. The audit's self-check plants
such leaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._generic.row_regression import KernelRidge
from securefed.errors import TranscriptError

DECIMALS: Final = tuple(range(0, 13))
BITS: Final = (8, 12, 16, 20, 24, 28, 32, 40)
_CHANCE: Final = 1e-6
"""Probability of taking digits that say nothing for ones that depend on the rows."""
_MORE: Final = 0.2
"""Share of variance that digits must explain beyond the whole number."""


@dataclass(frozen=True)
class DigitCut:
    """Place at which numbers are cut off.

    Attributes:
        place: number of decimals before the cut, or number of last bits of a double's mantissa behind it.
        binary: whether `place` counts bits.
    """

    place: int
    binary: bool

    def __call__(self, sent: Array) -> Array:
        """Return the remainder of each number, about -0.5 to 0.5."""
        if self.binary:
            bits = np.ascontiguousarray(sent, np.float64).view(np.uint64) & np.uint64(2**self.place - 1)
            return np.asarray(bits.astype(np.float64) / 2.0**self.place - 0.5)
        scaled = sent * 10.0**self.place
        return np.asarray(scaled - np.round(scaled))


@dataclass(frozen=True)
class LowDigits:
    """Learned attack on rows in the last digits; see `learn`.

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
            rows: rows of the clients, (clients, values).
            sent: messages of the clients, (clients, equations).

        Raises:
            TranscriptError: no last digits depend on the rows more than the whole numbers do.
        """
        best: tuple[float, DigitCut] | None = None
        whole = _explained(sent, rows)
        for cut in _cuts():
            share = _explained(cut(sent), rows)
            chance = 2 * np.log(2 * share.size * (len(DECIMALS) + len(BITS)) / _CHANCE) / len(rows)
            better = float(np.max(np.where(share > whole + _MORE, share, 0.0), initial=0.0))
            if better > chance and (best is None or better > best[0]):
                best = better, cut
        if best is None:
            raise TranscriptError("no last digits of the messages move with the rows")
        return cls(KernelRidge.of(best[1](sent), rows), best[1])

    def attack(self, replay: Replay) -> Reconstruction:
        """Estimate the rows from the last digits of the replay's messages."""
        bound = replay.target.public.feature_bound
        rows = self.model(self.cut(replay.messages)).reshape(replay.rows, replay.features)
        return Reconstruction(
            self.secret,
            np.clip(rows, -bound, bound),
            residual=self.model.expected,
            unknowns=rows.size,
            members=frozenset(replay.members),
            diagnostics={"digits": f"{'bits' if self.cut.binary else 'decimals'} from {self.cut.place}"},
        )


def _cuts() -> Iterator[DigitCut]:
    for place in DECIMALS:
        yield DigitCut(place, binary=False)
    for place in BITS:
        yield DigitCut(place, binary=True)


def _explained(sent: Array, values: Array) -> Array:
    """Return squared correlations, (equations, values)."""
    first, second = (_standard(part) for part in (sent, values))
    return np.asarray((first.T @ second / len(sent)) ** 2)


def _standard(values: Array) -> Array:
    centred = values - values.mean(axis=0)
    spread = centred.std(axis=0)
    return np.asarray(centred / np.where(spread > 0, spread, 1.0))
