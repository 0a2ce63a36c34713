"""Test noise against the noise that its plan counts: its size, and whether its entries are normal and independent.

A bound on epsilon from canaries sees one direction of the noise. One deviate that all entries share has the planned
size in it, and hides no difference of two entries; noise that is cut, or that two exchanges share, hides nothing beyond
the cut, or in their difference. `noise_engine` calls these tests with the noise of many exchanges without a canary.

Each test states the probability with which it flags noise of independent normal entries of the planned size or more:

- size: n s^2 / sigma^2 of n entries is chi-squared;
- entries of one exchange: r sqrt((n - 2) / (1 - r^2)) of two columns is t with n - 2 degrees of freedom, exactly; the
  union bound holds over all pairs;
- entries, and exchanges, that lie k apart: the mean of the products of all of them is normal, with deviation
  (products)^-1/2; the union bound holds over k;
- distribution: the Kolmogorov-Smirnov distance from the normal distribution of the entries' own mean and deviation,
  which is smaller than with known ones, so that the level is kept; and the number of entries beyond 2, 2.5 and 3
  planned deviations (and a little) is binomial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom, chi2, kstwo, norm, t

from securefed._tensors import Array

MOST: Final = 256
"""Most entries of a message that are tested: the first half of them side by side, the others spread over the rest."""
_FEWEST: Final = 200
"""Fewest entries in all, at which sums of products are nearly normal, for the tests of exchanges and distribution."""
_LAGS: Final = 100
"""Largest distance of two exchanges whose noise is compared."""
_FAR: Final = (2.02, 2.52, 3.02)
"""Distances, in planned deviations, beyond which entries are counted: not at a round number, where noise may be cut."""


@dataclass(frozen=True)
class Noise:
    """The noise of exchanges without a canary.

    Attributes:
        entries: (exchanges, entries), in units of the deviation that the plan counts.
        tensors: for each tensor, where its entries begin; the last item is their number.
    """

    entries: Array
    tensors: tuple[int, ...]

    @classmethod
    def of(cls, drawn: Array, deviations: Sequence[Array]) -> Noise:
        """Choose the entries to test.

        Args:
            drawn: (exchanges, entries) of all tensors, one after the other.
            deviations: for each tensor, (entries,) the planned deviation.
        """
        planned = np.concatenate([np.ravel(item) for item in deviations])
        count, half = len(planned), MOST // 2
        spread = np.unique(np.linspace(half, count - 1, half).astype(int)) if count > MOST else np.arange(half, count)
        chosen = np.concatenate([np.arange(min(half, count)), spread])
        ends = np.cumsum([0, *(np.size(item) for item in deviations)])
        places = np.searchsorted(chosen, ends)
        return cls(drawn[:, chosen] / planned[chosen], tuple(map(int, places)))


def size_bound(noise: Noise, risk: float) -> float:
    """Bound the standard deviation of the quietest tensor's noise from above, in units of the planned one.

    Args:
        noise: of exchanges without a canary.
        risk: the probability with which any tensor's bound lies below its deviation.
    """
    parts = [noise.entries[:, start:end] for start, end in pairwise(noise.tensors) if end > start]
    out = []
    for part in parts:
        freedom = (len(part) - 1) * part.shape[1]
        squares = float(np.var(part, axis=0, ddof=1).mean()) * freedom
        out.append(math.sqrt(squares / float(chi2.ppf(risk / len(parts), freedom))))
    return min(out, default=math.nan)


def odd_noise(noise: Noise, risk: float) -> Iterator[str]:
    """Say in which ways noise is not that of independent normal entries; nothing about noise as planned.

    Args:
        noise: of exchanges without a canary.
        risk: the probability with which noise as planned is flagged, over all tests together: a third for each.
    """
    centred = noise.entries - noise.entries.mean(axis=0)
    spread = centred.std(axis=0)
    if not np.all(spread > 0):
        yield "some entries have no noise, or the same in every exchange"
        return
    centred = centred / spread
    yield from _shared_by_a_pair(centred, risk / 6)
    if centred.size >= _FEWEST:
        yield from _shared_at_a_distance(centred.T, "entries", risk / 6)
        # taking off the mean over exchanges makes products so much smaller
        yield from _shared_at_a_distance(centred, "exchanges", risk / 3, bias=1 / (len(centred) - 1))
        yield from _not_normal(noise.entries, centred, risk / 3)


def _shared_by_a_pair(centred: Array, risk: float) -> Iterator[str]:
    runs, count = centred.shape
    pairs = count * (count - 1) // 2
    if pairs == 0 or runs < 4:
        return
    largest = float(np.abs(np.triu(centred.T @ centred / runs, 1)).max())
    quantile = float(t.isf(risk / (2 * pairs), runs - 2))
    chance = quantile / math.sqrt(runs - 2 + quantile**2)
    if largest > chance:
        yield f"two entries of an exchange share noise: correlation {largest:.2f}, {chance:.2f} at most by chance"


def _shared_at_a_distance(rows: Array, what: str, risk: float, bias: float = 0.0) -> Iterator[str]:
    """Compare rows that lie k apart, all of them together for each k; products are `bias` too small on average."""
    lags = range(1, min(_LAGS, len(rows) // 2) + 1)
    if not lags:
        return
    quantile, worst = float(norm.isf(risk / (2 * len(lags)))), (1.0, 0, 0.0)
    for lag in lags:
        products = rows[:-lag] * rows[lag:]
        found = float(products.mean()) + bias
        worst = max(worst, (abs(found) * math.sqrt(products.size) / quantile, lag, found))
    if worst[1]:
        yield f"{what} that lie {worst[1]} apart share noise: correlation {worst[2]:.2f}, more than by chance"


def _not_normal(entries: Array, centred: Array, risk: float) -> Iterator[str]:
    ordered = np.sort(ndtr(_smoothed(centred)), axis=None)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    distance = float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])))
    if kstwo.sf(distance, len(ordered)) < risk / 2:
        yield f"the entries are not normal: their distribution lies {distance:.3f} from it"
    for far in _FAR:
        seen, expected = int(np.sum(np.abs(_smoothed(entries)) > far)), 2 * float(ndtr(-far)) * entries.size
        if binom.cdf(seen, entries.size, 2 * float(ndtr(-far))) < risk / 2 / len(_FAR):
            yield f"{seen} entries lie beyond {far:g} planned deviations, where {expected:.0f} are expected"
            return


def _smoothed(columns: Array) -> Array:
    """Spread numbers on a grid evenly over its steps, as noise in whole units is compared with a smooth distribution.

    The step is the least difference of two numbers of a column: next to nothing where the noise has no grid.
    """
    gaps = np.diff(np.sort(columns, axis=0), axis=0)
    step = np.min(np.where(gaps > 0, gaps, np.inf), axis=0)
    shifts = np.random.default_rng(0).uniform(-0.5, 0.5, columns.shape)  # public: no secret depends on it
    return np.asarray(columns + shifts * np.where(np.isfinite(step), step, 0.0))
