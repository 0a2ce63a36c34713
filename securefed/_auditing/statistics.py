"""Intervals and verdicts: how sure an audit is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import stdtrit

from securefed.errors import ConfigError

EXPOSED, PARTIAL, NOT_DETECTED, INCONCLUSIVE = "exposed", "partial", "not detected", "inconclusive"
FOUND: Final = (EXPOSED, PARTIAL)
"""Words that say that something leaks; the others are silence, and only `NOT_DETECTED` says how much it means."""
EXPOSED_FROM: Final = 0.9
PARTIAL_FROM: Final = 0.05
RECONSTRUCTED: Final = 0.999
"""Leakage from which a single run is a reconstruction, whatever the mean says: a thousandth of the baseline's error is
no luck."""
SIGHTED: Final = 0.8
"""Share of the runs whose messages an attack has to explain for its silence to mean anything."""
ENOUGH: Final = 10
"""Seeds from which the bootstrap is wide enough."""
_POWER: Final = 0.8416  # the normal quantile of 8 in 10
_HALF: Final = 1.96  # half of a normal 95 % interval, in standard errors
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
        word: `exposed`, `partial`, `not detected` or `inconclusive`.
        detectable: the power of the test: the smallest mean leakage that it would have called partial in 8 of 10
            repetitions, given the spread that was seen; NaN for one seed, whose spread nobody knows. Of an attack that
            did not solve its problem it says nothing.
    """

    word: str
    detectable: float


def verdict(leakage: Interval, null: Interval, *, explained: float = math.nan, highest: float = -math.inf) -> Verdict:
    """exposed: low >= .9, above the null. partial: low > max(.05, the null's high). Else not detected, with power.

    Args:
        explained: share of the runs whose messages the attack explains; NaN where it checks nothing.
        highest: largest leakage of a single run, of a secret that is reconstructed.

    Silence is inconclusive where fewer than 8 in 10 runs were explained, for a search that failed says nothing of the
    others, and where no mean leakage would have been noticed (`detectable` >= 1). A run that was reconstructed to a
    thousandth is partial at least.

    Designed for at most 2 % false positives where leakage and null follow one law (measured: .5 to 1.5 % at 10 seeds,
    on normal, skewed and rare-success laws). Below 10 seeds the bootstrap is too narrow (7 % at 3, 17 % at 2), so the
    leakage's interval is widened to Student's; the null's is not, for attacks on nothing fail wildly downwards. One
    seed has no spread: its verdict is that of the point, and no rate holds.
    """
    low, high = leakage.mean - widened(leakage), null.high
    threshold = max(PARTIAL_FROM, high)
    detectable = threshold + leakage.mean - low + _POWER * leakage.deviation / math.sqrt(leakage.seeds)
    if leakage.seeds < 2:
        detectable = math.nan
    if low >= EXPOSED_FROM and low > high:
        return Verdict(EXPOSED, detectable)
    if low > threshold or highest >= max(RECONSTRUCTED, high):
        return Verdict(PARTIAL, detectable)
    return Verdict(INCONCLUSIVE if explained < SIGHTED or detectable >= 1 else NOT_DETECTED, detectable)


def widened(found: Interval) -> float:
    """Distance of the low end from the mean; below `ENOUGH` seeds, that of Student's interval if larger."""
    distance = found.mean - found.low
    if found.seeds < 2 or found.seeds >= ENOUGH:
        return distance
    return max(distance, float(stdtrit(found.seeds - 1, 0.975)) * found.deviation / math.sqrt(found.seeds))


def seeds_for(leakage: Interval, null: Interval, limit: float) -> int | None:
    """About how many seeds bring the interval under `limit`, and would show a leak of that size in 8 of 10 repetitions.

    With the means and the spread seen so far, at normal intervals; `None` where 10^4 would not do, for the mean itself
    is too near, or chance reaches as far.
    """

    def enough(seeds: int) -> bool:
        spread = leakage.deviation / math.sqrt(seeds)
        chance = null.mean + (null.high - null.mean) * math.sqrt(null.seeds / seeds)
        detectable = max(PARTIAL_FROM, chance) + (_HALF + _POWER) * spread
        return detectable <= limit and leakage.mean + _HALF * spread < limit

    low, high = ENOUGH, 10_000
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low
