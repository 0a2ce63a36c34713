"""Intervals and verdicts: how sure an audit is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed.errors import ConfigError

EXPOSED, PARTIAL, NOT_DETECTED = "exposed", "partial", "not detected"
EXPOSED_FROM: Final = 0.9
PARTIAL_FROM: Final = 0.05
_RESAMPLES: Final = 4000
_BOOTSTRAP_SEED: Final = 20240229


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % bootstrap interval.

    Attributes:
        mean, low, high: `low` and `high` are the 2.5 % and 97.5 % points of the bootstrapped mean.
        seeds: how many values it rests on.      deviation: their standard deviation.
    """

    mean: float
    low: float
    high: float
    seeds: int
    deviation: float


def interval(values: Sequence[float]) -> Interval:
    """Percentile bootstrap of the mean (4000 resamples, fixed seed, so that a report can be reproduced).

    One value gives an interval of no width, which says nothing about its spread: `seeds` tells.

    Raises:
        ConfigError: no values, or some that are not finite.
    """
    data = np.asarray(values, dtype=np.float64)
    if not data.size:
        raise ConfigError("an interval needs at least one value")
    if not np.isfinite(data).all():
        raise ConfigError("an interval needs finite values")
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    means = data[rng.integers(0, data.size, (_RESAMPLES, data.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(data.mean()), float(low), float(high), int(data.size), float(data.std(ddof=data.size > 1)))


@dataclass(frozen=True)
class Verdict:
    """What an interval says beside its null.

    Attributes:
        word: `exposed`, `partial` or `not detected`.
        detectable: smallest mean leakage this test would have called partial, given its spread.
    """

    word: str
    detectable: float


def verdict(leakage: Interval, null: Interval) -> Verdict:
    """exposed: low >= .9, above the null. partial: low > max(.05, the null's high). Else not detected, with power."""
    threshold = max(PARTIAL_FROM, null.high)
    detectable = threshold + leakage.mean - leakage.low
    if leakage.low >= EXPOSED_FROM and leakage.low > null.high:
        return Verdict(EXPOSED, detectable)
    return Verdict(PARTIAL if leakage.low > threshold else NOT_DETECTED, detectable)
