"""Measure differences between messages in units of how much each entry varies between clients.

A message holds tensors of very different sizes, for instance a count of 60 000 beside a gradient of 1e-3. One norm over
all of them would depend on the largest only. So each tensor of each round has its own unit: the root mean square by
which its entries vary between simulated clients with different rows and different random draws. `Replay`, which runs
the client step on the attacker's rows, derives the units once for a view; every generic attack compares messages in
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array

_CONSTANT = 1e4
"""Variation, in units of round-off, up to which a tensor counts as constant: sums of many rows gather round-off."""
_COARSE_TYPES = (np.float16, np.float32)
"""Types whose precision is looked for in float64 numbers, the coarsest first."""
_EPS = float(np.finfo(np.float64).eps)
_FEWEST = 4
"""Fewest different numbers from which a step is inferred."""
_FINEST = 1e-6
"""Smallest step that is looked for, over the numbers' root mean square: finer rounding does not hinder an attack."""
_MULTIPLE = 1e-13
"""Relative distance from a multiple that is round-off of the division."""
_STEPS = np.sort([m * 10.0**-k for m in (1, 2, 5) for k in range(1, 13)] + [2.0**-k for k in range(1, 41)])[::-1]
_DOMINANT = 0.5
"""Noise, relative to the change that other rows cause, from which on a message is taken not to distinguish rows."""


@dataclass(frozen=True)
class MessageUnits:
    """Units in which differences between messages are measured, one unit for each tensor of each round.

    Attributes:
        unit: (equations,) unit of each entry of all messages, scaled so that a typical change x of the messages, as
            between different rows, has ||x / unit|| = 1.
        rounding: size of the messages' rounding error, in those units.
        noise: largest distance, in those units, between messages of the same rows with different random draws of the
            clients, together with the noise that a defence adds.
        step: step of finite differences, relative to the bound of the rows' entries: the cube root of the coarsest
            relative precision, as is usual for central differences.
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
        messages_of_rows: Sequence[Array],
        messages_of_draws: Sequence[Array],
        one_client: Array,
        added_noise: Array,
    ) -> MessageUnits:
        """Derive the units from simulated messages of hypothetical rows.

        Args:
            observed: observed messages, (equations,).
            blocks: positions of each tensor of each round.
            messages_of_rows: simulated messages of different rows under one seed.
            messages_of_draws: simulated messages of the same rows under different seeds.
            one_client: message of one client, whose digits show the precision (half, single, double) of the clients.
            added_noise: (equations,) standard deviation of the noise that a defence adds.

        Returns:
            The units. A tensor's is the root of the summed squares of its variations, by rows, by draws and by noise;
            by draws alone where it is the same for all rows, or its own size where it does not vary by draws either.
        """
        unit, digits, grids = np.ones(len(observed)), np.full(len(observed), _EPS), np.zeros(len(observed))
        coarsest = _EPS  # relative precision of the tensors that depend on the rows
        for block in blocks:
            size = _rms(observed[block])
            by_rows = _deviation([m[block] for m in messages_of_rows])
            by_draws = _deviation([m[block] for m in messages_of_draws])
            digits[block] = _digits(one_client[block])
            grids[block] = grid(one_client[block]) / np.sqrt(12)  # standard deviation of rounding to this step
            # a tensor that varies with the rows by no more than round-off of its size does not depend on them
            if by_rows <= _CONSTANT * _EPS * size:
                unit[block] = by_draws or size
            else:
                unit[block] = np.hypot(np.hypot(by_rows, _rms(added_noise[block])), by_draws)
                coarsest = max(coarsest, _digits(one_client[block]))
        unit[unit == 0] = float(np.linalg.norm(observed)) or 1.0
        unit *= np.sqrt(len(observed))
        rounding = float(np.linalg.norm(np.hypot(digits * np.abs(observed), grids) / unit))
        noise = max(
            (float(np.linalg.norm((m - messages_of_draws[0]) / unit)) for m in messages_of_draws[1:]), default=0.0
        )
        noise = float(np.hypot(noise, np.linalg.norm(added_noise / unit)))
        return cls(unit, rounding, noise, coarsest ** (1 / 3))


def grid(values: Array) -> float:
    """Return the step of which all numbers are multiples, where they were rounded to one; else 0.

    Steps of 1, 2 and 5 times a power of ten and powers of two are tried, the coarsest first, up to whole numbers: these
    count as exact, and so do fewer than four different numbers, which may be multiples by chance.
    """
    if len(np.unique(values)) < _FEWEST or np.array_equal(values, np.round(values)):
        return 0.0
    finest = _FINEST * _rms(values)
    for step in _STEPS[finest <= _STEPS]:
        ratio = values / step
        if np.all(np.abs(ratio - np.round(ratio)) <= _MULTIPLE * np.maximum(np.abs(ratio), 1.0)):
            return float(step)
    return 0.0


def _rms(values: Array) -> float:
    """Return the root mean square of all entries."""
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _deviation(draws: Sequence[Array]) -> float:
    """Return the root mean square deviation of several draws from their mean; 0 for fewer than two."""
    return _rms(np.stack(draws) - np.mean(draws, axis=0)) if len(draws) > 1 else 0.0


def _digits(values: Array) -> float:
    """Return the relative rounding error of numbers in half, single or double precision; integers count as exact."""
    if np.array_equal(values, np.round(values)):
        return _EPS
    for kind in _COARSE_TYPES:
        with np.errstate(over="ignore"):
            if np.array_equal(values, values.astype(kind)):
                return float(np.finfo(kind).eps)
    return _EPS
