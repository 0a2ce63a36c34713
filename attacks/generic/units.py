"""What a difference between two messages is worth: every number in units of how much it can differ at all.

Tensors of very different sizes travel together (a count of 60 000 beside a gradient of 1e-3, rows behind a large
constant). One norm over all of them would see the largest alone, call the rest explained, and find nothing in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed.tensors import Array

_CONSTANT = 1e4
_COARSE = (np.float16, np.float32)
_EPS = float(np.finfo(np.float64).eps)
_DROWNED = 0.5


@dataclass(frozen=True)
class Units:
    """Units of the numbers of all messages, one for each tensor of each round.

    Attributes:
        unit: (equations,) what one unit is, also for as many numbers together: ||x / unit|| is 1 for a typical change.
        rounding: how large, in those units, the rounding of what was sent is.
        noise: how far two draws of the clients' own are apart, at most, and a defence's noise.
        step: for differences, relative to the rows' bound.
    """

    unit: Array
    rounding: float
    noise: float
    step: float

    @property
    def drowned(self) -> bool:
        """Whether other draws change a message about as much as other rows do: then any rows explain it."""
        return self.noise >= _DROWNED

    @classmethod
    def of(
        cls,
        seen: Array,
        blocks: Sequence[slice],
        likely: Sequence[Array],
        drawn: Sequence[Array],
        one: Array,
        added: Array,
    ) -> Units:
        """From what hypothetical rows would have sent.

        Args:
            seen: (equations,) the messages.      blocks: which numbers are one tensor of one round.
            likely: messages of different rows under one seed.      drawn: of the same rows under different seeds.
            one: what one client alone would have sent, for its digits.
            added: (equations,) standard deviation of a defence's noise.
        """
        unit, digits = np.ones(len(seen)), np.full(len(seen), _EPS)
        coarsest = _EPS
        for block in blocks:
            size = _rms(seen[block])
            varies = _rms(np.stack([m[block] for m in likely]) - np.mean([m[block] for m in likely], axis=0))
            noise = _spread([m[block] for m in drawn])
            eps = _digits(one[block])
            # What varies by less than it is rounded to is a constant: it tells the rows nothing, and the assumed
            # hyper-parameters alone.
            constant = varies <= _CONSTANT * _EPS * size
            unit[block] = np.hypot(0.0 if constant else np.hypot(varies, _rms(added[block])), noise) or size
            digits[block] = eps
            coarsest = coarsest if constant else max(coarsest, eps)
        unit[unit == 0] = float(np.linalg.norm(seen)) or 1.0
        unit *= np.sqrt(len(seen))
        rounding = float(np.linalg.norm(digits * np.abs(seen) / unit))
        noise = max((float(np.linalg.norm((m - drawn[0]) / unit)) for m in drawn[1:]), default=0.0)
        noise = float(np.hypot(noise, np.linalg.norm(added / unit)))
        return cls(unit, rounding, noise, coarsest ** (1 / 3))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _spread(draws: Sequence[Array]) -> float:
    return _rms(np.stack(draws) - np.mean(draws, axis=0)) if len(draws) > 1 else 0.0


def _digits(values: Array) -> float:
    """Relative rounding of numbers that were made in half or single precision; integers are exact in any."""
    if np.array_equal(values, np.round(values)):
        return _EPS
    for kind in _COARSE:
        with np.errstate(over="ignore"):
            if np.array_equal(values, values.astype(kind)):
                return float(np.finfo(kind).eps)
    return _EPS
