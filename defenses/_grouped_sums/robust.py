"""Robust means of group means: estimators that a few groups with a lying client move by a bounded amount only.

An estimator takes the means of G groups as rows of a matrix, and the number f of groups that may hold a liar, each of
which may be any vector. Sources and the fewest groups that f allows:

    median            entry by entry                                                   2 f + 1
    trimmed_mean      entry by entry, without the f largest and the f smallest         2 f + 1    Yin et al., ICML 2018
    geometric_median  the point with the least sum of distances to the means           2 f + 1    Weiszfeld's iteration
    krum              the mean with the least sum of squared distances to its
                      G - f - 2 nearest ones                                           2 f + 3    Blanchard et al., 2017
    multi_krum        the mean of the G - f - 2 means that Krum scores best            2 f + 3    the same

Not promised: that the estimate is the mean of the honest clients. Group means differ where clients' data do; entry by
entry the median and the trimmed mean then lie between the means of honest groups, and may be far from their centre.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from securefed._tensors import Array

Aggregator = Literal["mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum"]
"""Names of the estimators; `mean` is that of all survivors, the plain sum, which no liar leaves right."""
_STEPS: Final = 1000
"""Most steps of Weiszfeld's iteration, which converges linearly; it ends far earlier where the means do not lie close
to one line."""
_TOLERANCE: Final = 1e-12
"""Length of its last step, relative to the largest entry."""


@dataclass(frozen=True)
class Estimator:
    """One robust mean.

    Attributes:
        needs: fewest groups, by the number of groups with a liar.
        estimate: computes the estimate from the means, float64 (groups, entries), and that number.
        words: what it is, for the plan.
    """

    needs: Callable[[int], int]
    estimate: Callable[[Array, int], Array]
    words: str


def _median(means: Array, liars: int) -> Array:
    return np.asarray(np.median(means, axis=0))


def _trimmed_mean(means: Array, liars: int) -> Array:
    return np.asarray(np.sort(means, axis=0)[liars : len(means) - liars].mean(axis=0))


def _krum(means: Array, liars: int) -> Array:
    return np.asarray(means[_by_krum(means, liars)[0]])


def _multi_krum(means: Array, liars: int) -> Array:
    return np.asarray(means[_by_krum(means, liars)[: len(means) - liars - 2]].mean(axis=0))


def _by_krum(means: Array, liars: int) -> list[int]:
    """Return the groups from the best Krum score to the worst; equal scores in the order of the groups."""
    scaled = means / (np.abs(means).max(initial=0.0) or 1.0)  # squares neither overflow nor vanish
    others = [np.sort(((scaled - one) ** 2).sum(axis=1))[1:] for one in scaled]  # without the distance to itself, 0
    scores = [float(distances[: len(means) - liars - 2].sum()) for distances in others]
    return sorted(range(len(means)), key=lambda group: (scores[group], group))


def _geometric_median(means: Array, liars: int) -> Array:
    """Weiszfeld's iteration from the entry-wise median; it stops at a mean that is itself the geometric median."""
    largest = np.abs(means).max(initial=0.0) or 1.0
    scaled = means / largest
    point = np.median(scaled, axis=0)
    for _ in range(_STEPS):
        away = np.sqrt(((scaled - point) ** 2).sum(axis=1))
        apart = away > _TOLERANCE
        if not apart.any():
            break
        weights = 1.0 / away[apart]
        moved = weights @ scaled[apart] / weights.sum()
        if here := int((~apart).sum()):  # the point lies on `here` of the means (Vardi and Zhang 2000, (2.6))
            pull = float(np.sqrt(((weights @ (scaled[apart] - point)) ** 2).sum()))
            stay = 1.0 if pull == 0.0 else min(1.0, here / pull)
            moved = (1.0 - stay) * moved + stay * point
        step, point = float(np.abs(moved - point).max()), moved
        if step < _TOLERANCE:
            break
    return np.asarray(point * largest)


ESTIMATORS: Final[Mapping[str, Estimator]] = {
    "median": Estimator(lambda f: 2 * f + 1, _median, "the median, entry by entry,"),
    "trimmed_mean": Estimator(lambda f: 2 * f + 1, _trimmed_mean, "the trimmed mean, entry by entry,"),
    "geometric_median": Estimator(lambda f: 2 * f + 1, _geometric_median, "the geometric median"),
    "krum": Estimator(lambda f: 2 * f + 3, _krum, "Krum's choice"),
    "multi_krum": Estimator(lambda f: 2 * f + 3, _multi_krum, "the mean of multi-Krum's choice"),
}
"""All estimators but `mean`, by name."""


def robust_mean(means: Array, aggregator: str, liars: int) -> Array:
    """Compute a robust mean.

    Args:
        means: the groups' means, float64 (groups, entries), as many as `ESTIMATORS[aggregator].needs(liars)` at least.
        aggregator: name of the estimator.
        liars: number of groups that may hold a liar.

    Returns:
        The estimate, float64 (entries,).
    """
    return ESTIMATORS[aggregator].estimate(means, liars)
