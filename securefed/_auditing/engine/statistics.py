"""Intervals and verdicts: how sure an audit is of a mean leakage over seeds.

A leakage is 1 for an exact estimate and 0 for one no better than the guess. Its null is the leakage of the same attack
on messages that say nothing, which is what chance gives. An audit has one value of each for every seed, that is for
every repetition of the run. `interval` bounds each mean, and `verdict` compares the two; `gathering` calls both for
each cell of the report.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import stdtrit

from securefed.errors import ConfigError

EXPOSED, PARTIAL, NOT_DETECTED, INCONCLUSIVE = "exposed", "partial", "not detected", "inconclusive"
FOUND: Final = (EXPOSED, PARTIAL)
"""Verdicts that state a leak. Of the other two only `NOT_DETECTED` says how small a leak would have been seen."""
EXPOSED_FROM: Final = 0.9
PARTIAL_FROM: Final = 0.05
"""Leakages from which data count as exposed, and as exposed in part; `docs/reference/audit-verdicts.md` states both."""
LEAST_ACCEPTABLE: Final = 0.06
"""Smallest leak that a user may name as acceptable: the smallest that the attacks would notice."""
RECONSTRUCTED: Final = 0.999
"""Leakage from which a single run is a reconstruction, whatever the mean says: luck does not reach a thousandth of the
guess's error."""
SIGHTED: Final = 0.8
"""Share of the runs whose messages an attack must explain for its silence to mean anything. An estimate explains the
messages if those that it predicts differ from the observed ones by rounding and noise only."""
FAR: Final = 0.25
"""Upper end of an interval, above chance, up to which an attack counts as having found nothing: a quarter of the way
from a guess to the data. A larger value hides leaks, a smaller one gives fewer conclusions. An AUC of .53 [.35, .68]
reaches .36 above a coin and is inconclusive; at .5 it would count as no leak, and at .125 half of the membership tests
of ten runs that find nothing would be inconclusive."""
FEWEST: Final = 3
"""Runs below which silence is too little to say: Student's interval of 2 runs is 12 times as wide as that of 10 with
the same scatter, that of 3 is 3.5 times."""
ENOUGH: Final = 10
"""Seeds from which the bootstrap interval is wide enough (measured, see `verdict`)."""
POWER: Final = 0.8416  # the normal quantile of 8 in 10
_HALF: Final = 1.96  # half of a normal 95 % interval, in standard errors
_RESAMPLES: Final = 4000  # the interval's ends then move by about 1 % of its width with the bootstrap's seed
_BOOTSTRAP_SEED: Final = 20240229  # arbitrary and fixed


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % bootstrap interval.

    Attributes:
        mean: the mean of the values.
        low: 2.5 % point of the bootstrapped mean.
        high: 97.5 % point of it.
        seeds: number of values.
        deviation: standard deviation of the values.
    """

    mean: float
    low: float
    high: float
    seeds: int
    deviation: float


def interval(values: Sequence[float]) -> Interval:
    """Compute the percentile bootstrap interval of the mean, with a fixed seed so that reports can be reproduced.

    One value gives an interval of width 0, although its spread is unknown; `Interval.seeds` tells.

    Args:
        values: one leakage for each seed.

    Raises:
        ConfigError: there are no values, or some are not finite.
    """
    data = np.asarray(values, dtype=np.float64)
    if not data.size:
        raise ConfigError("an interval needs at least one value")
    if not np.isfinite(data).all():
        raise ConfigError("an interval needs finite values")
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    means = data[rng.integers(0, data.size, (_RESAMPLES, data.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    deviation = float(data.std(ddof=1 if data.size > 1 else 0))  # 0 for one value
    return Interval(float(data.mean()), float(low), float(high), int(data.size), deviation)


@dataclass(frozen=True)
class Verdict:
    """Judgement of an attack's leakage, compared with its null.

    Attributes:
        word: `exposed`, `partial`, `not detected` or `inconclusive`.
        detectable: the smallest mean leakage that would have been called partial in 8 of 10 repetitions, given the
            spread over seeds (below `ENOUGH` seeds, of uncertain spread, in 6 or 7); NaN for one seed, whose spread is
            unknown. It holds for leaks that the attack can see: it says nothing of an attack that failed, nor of a leak
            in a form that no attack looks for.
    """

    word: str
    detectable: float


def verdict(leakage: Interval, null: Interval, *, explained: float = math.nan, highest: float = -math.inf) -> Verdict:
    """Judge a leakage against its null, with threshold = max(.05, null.high) and low = mean - `widened(leakage)`.

    - `exposed`: low >= .9 and low > null.high.
    - `partial`: not exposed, and low > threshold over two seeds or more; or one run was reconstructed: `highest` is at
      least .999 (leakage is 1 - error / error of the guess) and at least null.high.
    - `inconclusive`: neither, which says nothing for one of four reasons: fewer than 8 in 10 runs are explained, so
      that the search failed in the others; no mean leakage would have been noticed (`detectable` >= 1); the interval
      reaches far above chance (`reaches_far`); or there is one seed only and its leakage lies above the threshold,
      which may be chance.
    - `not detected`: none of these.

    `detectable` = threshold + (mean - low) + .84 deviation / sqrt(seeds). The summand mean - low lifts the interval
    over the threshold; .84 standard errors make that likely in 8 of 10 repetitions.

    At most 2 % of verdicts may be false where leakage and null follow one distribution. Measured: .5 to 1.5 % at 10
    seeds, on normal, skewed and rare-success distributions. Below 10 seeds the bootstrap is too narrow (7 % at 3, 17 %
    at 2), so the leakage's interval is widened to Student's. The null's is not: attacks on meaningless messages do much
    worse than the guess, so the leakage of the null is far below 0. One seed has no spread, so that no rate holds.

    Args:
        leakage: the leakage of the attack.
        null: the leakage of the same attack on messages that say nothing.
        explained: share of the runs whose messages the attack explains; NaN where it cannot tell.
        highest: largest leakage, of all of the secret or of one of its rows or columns, in a single run that the caller
            counts as a reconstruction; -inf if there is no such run.
    """
    low, high = leakage.mean - widened(leakage), null.high
    threshold = max(PARTIAL_FROM, high)
    detectable = threshold + leakage.mean - low + POWER * leakage.deviation / math.sqrt(leakage.seeds)
    if leakage.seeds < 2:
        detectable = math.nan
    if low >= EXPOSED_FROM and low > high:
        return Verdict(EXPOSED, detectable)
    found = low > threshold
    if (found and leakage.seeds > 1) or highest >= max(RECONSTRUCTED, high):
        return Verdict(PARTIAL, detectable)
    blind = explained < SIGHTED or detectable >= 1 or reaches_far(leakage, null)
    return Verdict(INCONCLUSIVE if found or blind else NOT_DETECTED, detectable)


def reaches_far(leakage: Interval, null: Interval) -> bool:
    """Whether an interval reaches so far above chance that silence would hide a leak: by more than `FAR`.

    Chance is the guess without messages, of leakage 0, or the mean of the null where that is better.
    """
    return leakage.high > max(null.mean, 0.0) + FAR


def widened(values: Interval) -> float:
    """Return mean - low; below `ENOUGH` seeds half the width of Student's 95 % interval, if that is larger."""
    distance = values.mean - values.low
    if values.seeds < 2 or values.seeds >= ENOUGH:
        return distance
    return max(distance, float(stdtrit(values.seeds - 1, 0.975)) * values.deviation / math.sqrt(values.seeds))


def upper(values: Interval) -> float:
    """Return the upper end by which a protection is judged: `high`; below `ENOUGH` seeds Student's, if that is larger.

    Of normal values the bootstrap's upper end alone lies below the true mean in 13 % of the cases at 3 seeds, and in
    9 % at 5, where 2.5 % are meant. One seed has no spread: the end is its value. No leakage is above 1.
    """
    return values.high if values.seeds >= ENOUGH else max(values.high, min(values.mean + widened(values), 1.0))


def seeds_for(leakage: Interval, null: Interval, limit: float) -> int | None:
    """Estimate how many seeds a gate at `limit` needs.

    A gate fails where leakage may exceed its limit. With so many seeds the interval would lie below the limit, and a
    leak of the limit's size would be called partial in 8 of 10 repetitions. Means and spread are taken as seen so far,
    and intervals as normal: 1.96 standard errors each way.

    Args:
        leakage: the leakage as seen so far; at least two seeds.
        null: leakage of the null as seen so far; at least two seeds.
        limit: the limit of the gate, a leakage.

    Returns:
        The number; `None` if 10^4 seeds would not do, since the mean is too near the limit, or chance reaches it.
    """

    def enough(seeds: int) -> bool:
        spread = leakage.deviation / math.sqrt(seeds)
        chance = null.mean + (null.high - null.mean) * math.sqrt(null.seeds / seeds)
        detectable = max(PARTIAL_FROM, chance) + (_HALF + POWER) * spread
        return detectable <= limit and leakage.mean + _HALF * spread < limit

    numbers = range(ENOUGH, 10_001)
    place = bisect_left(numbers, True, key=enough)  # the first that is enough; more always are too
    return numbers[place] if place < len(numbers) else None
