"""Measure differences between messages in units of how much each entry can vary.

A message holds tensors of very different sizes, for instance a count of 60 000 beside a gradient of 1e-3. One norm over
all of them would depend on the largest only. So each tensor of each round has its own unit.
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
"""Noise, relative to the change that other rows cause, from which on the message no longer distinguishes rows."""


@dataclass(frozen=True)
class MessageUnits:
    """Units in which differences between messages are measured, one unit for each tensor of each round.

    Attributes:
        unit: (equations,) unit of each entry of all messages, scaled so that a typical change x of the messages, as
            between different rows, has ||x / unit|| = 1.
        rounding: size of the messages' rounding error, in those units.
        noise: largest distance, in those units, between messages of the same rows with different random draws of the
            clients, together with the noise that a defence adds.
        step: step of finite differences, relative to the bound of the rows' entries.
    """

    unit: Array
    rounding: float
    noise: float
    step: float

    @property
    def noise_dominates(self) -> bool:
        """True if random draws change a message about as much as other rows do, so that any rows explain it."""
        return self.noise >= _DOMINANT

    @classmethod
    def of(
        cls,
        observed: Array,
        blocks: Sequence[slice],
        likely: Sequence[Array],
        drawn: Sequence[Array],
        one: Array,
        added: Array,
    ) -> MessageUnits:
        """Derive the units from simulated messages of hypothetical rows.

        Args:
            observed: observed messages, (equations,).
            blocks: positions of each tensor of each round.
            likely: simulated messages of different rows under one seed.
            drawn: simulated messages of the same rows under different seeds.
            one: message of one client, whose digits show in which precision (half, single, double) clients compute.
            added: (equations,) standard deviation of the noise that a defence adds.
        """
        unit, digits = np.ones(len(observed)), np.full(len(observed), _EPS)
        coarsest = _EPS
        for block in blocks:
            size = _rms(observed[block])
            varies = _rms(np.stack([m[block] for m in likely]) - np.mean([m[block] for m in likely], axis=0))
            noise = _deviation([m[block] for m in drawn])
            eps = _digits(one[block])
            # a tensor that varies by less than its rounding error counts as constant: it does not depend on the rows
            constant = varies <= _CONSTANT * _EPS * size
            unit[block] = np.hypot(0.0 if constant else np.hypot(varies, _rms(added[block])), noise) or size
            digits[block] = eps
            coarsest = coarsest if constant else max(coarsest, eps)
        unit[unit == 0] = float(np.linalg.norm(observed)) or 1.0
        unit *= np.sqrt(len(observed))
        rounding = float(np.linalg.norm(digits * np.abs(observed) / unit))
        noise = max((float(np.linalg.norm((m - drawn[0]) / unit)) for m in drawn[1:]), default=0.0)
        noise = float(np.hypot(noise, np.linalg.norm(added / unit)))
        return cls(unit, rounding, noise, coarsest ** (1 / 3))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _deviation(draws: Sequence[Array]) -> float:
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
