"""Measure differences between messages in units of how much each entry can vary.

Tensors of very different sizes travel together: a count of 60 000 beside a gradient of 1e-3, or rows behind a large
constant. One norm over all of them would show the largest alone, and call the others explained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array

_CONSTANT = 1e4
"""Variation, in units of round-off, up to which a tensor counts as constant."""
_COARSE = (np.float16, np.float32)
_EPS = float(np.finfo(np.float64).eps)
_DOMINANT = 0.5
"""Noise, in units of a message, from which on any rows explain the message."""


@dataclass(frozen=True)
class MessageUnits:
    """Units of the entries of all messages, one for each tensor of each round.

    Attributes:
        unit: size of one unit for each entry, (equations,), scaled so that ||x / unit|| is 1 for a typical change.
        rounding: size of the messages' rounding error, in those units.
        noise: largest distance between messages with different random draws of the clients, with a defence's noise.
        step: step for finite differences, relative to the rows' bound.
    """

    unit: Array
    rounding: float
    noise: float
    step: float

    @property
    def noise_dominates(self) -> bool:
        """Whether other draws change a message about as much as other rows do, so that any rows explain it."""
        return self.noise >= _DOMINANT

    @classmethod
    def of(
        cls,
        seen: Array,
        blocks: Sequence[slice],
        likely: Sequence[Array],
        drawn: Sequence[Array],
        one: Array,
        added: Array,
    ) -> MessageUnits:
        """Derive the units from what hypothetical rows would have sent.

        Args:
            seen: observed messages, (equations,).
            blocks: positions of each tensor of each round.
            likely: messages of different rows under one seed.
            drawn: messages of the same rows under different seeds.
            one: message of one client alone, from which the precision of the numbers follows.
            added: standard deviation of a defence's noise, (equations,).
        """
        unit, digits = np.ones(len(seen)), np.full(len(seen), _EPS)
        coarsest = _EPS
        for block in blocks:
            size = _rms(seen[block])
            varies = _rms(np.stack([m[block] for m in likely]) - np.mean([m[block] for m in likely], axis=0))
            noise = _spread([m[block] for m in drawn])
            eps = _digits(one[block])
            # a tensor that varies by less than its rounding is constant: it says nothing of the rows
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
    """Return the relative rounding error of numbers in half, single or double precision; integers count as exact."""
    if np.array_equal(values, np.round(values)):
        return _EPS
    for kind in _COARSE:
        with np.errstate(over="ignore"):
            if np.array_equal(values, values.astype(kind)):
                return float(np.finfo(kind).eps)
    return _EPS
