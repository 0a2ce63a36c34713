"""Compute error rates of membership scores: AUC, and the true positive rate at a low false positive rate.

Scores of records that are among a client's rows (members) are compared with those of records that are not. An audit
calls `membership_rates` for the membership attack of one run, and `pooled_rates` for the canaries of all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.stats import rankdata

from securefed._tensors import Array
from securefed.errors import DataError

_FALSE_POSITIVES: Final = 0.01
"""False positive rate at which true positive rates are taken."""
_RESAMPLES: Final = 500
"""Bootstrap resamples of the runs, and as many random permutations of membership for the null."""


@dataclass(frozen=True)
class MembershipRates:
    """Error rates of a score that should be higher for members.

    Attributes:
        auc: probability that a member scores above a non-member, ties counted half.
        tpr: true positive rate at the largest false positive rate of at most 1 % that a threshold reaches.
        members: number of members' scores.
        others: number of non-members' scores.
    """

    auc: float
    tpr: float
    members: int
    others: int

    @property
    def leakage(self) -> float:
        """2 AUC - 1, signed: 1 separates all members from all others, 0 is a coin toss."""
        return 2 * self.auc - 1


def membership_rates(members: Array, others: Array) -> MembershipRates:
    """Compute the error rates of the scores of members and of non-members.

    With fewer than 100 non-members, the true positive rate counts members that score above ALL of them, which has a
    large variance.

    Args:
        members: scores of members.
        others: scores of non-members.

    Raises:
        DataError: no members, no non-members, or a score is NaN.
    """
    inside, outside = np.asarray(members, np.float64).ravel(), np.asarray(others, np.float64).ravel()
    if not inside.size or not outside.size:
        raise DataError(
            f"membership rates need scores of members and of non-members; got {inside.size} and {outside.size}"
        )
    if np.isnan(inside).any() or np.isnan(outside).any():
        raise DataError("a membership score is NaN; the attack must give every candidate a number")
    ranks = rankdata(np.concatenate([inside, outside]))[: inside.size]
    auc = (ranks.sum() - inside.size * (inside.size + 1) / 2) / (inside.size * outside.size)
    allowed = int(np.floor(_FALSE_POSITIVES * outside.size))
    threshold = np.sort(outside)[outside.size - 1 - allowed]
    return MembershipRates(float(auc), float(np.mean(inside > threshold)), int(inside.size), int(outside.size))


@dataclass(frozen=True)
class PooledRates:
    """Error rates over several runs, each with the 95 % interval of a bootstrap over runs.

    Attributes:
        rates: rates of all scores together.
        auc: (low, high) of the AUC.
        tpr: (low, high) of the true positive rate.
        deviation: standard deviation of the resampled AUC.
        null: (low, high) of the AUC when membership is permuted at random: what chance gives.
    """

    rates: MembershipRates
    auc: tuple[float, float]
    tpr: tuple[float, float]
    deviation: float
    null: tuple[float, float]


def pooled_rates(scores: Sequence[Array], bits: Sequence[Array]) -> PooledRates:
    """Compute the error rates of several runs together, with bootstrap intervals.

    Whole runs are resampled because the scores of one run share its noise. Scores of different runs must be on one
    scale, as likelihood ratios are.

    Args:
        scores: scores of each run.
        bits: membership of each score, by run.

    Raises:
        DataError: no run has a member, or no run has a non-member.
    """
    rng = np.random.default_rng(0)
    inside = [np.asarray(own, bool) for own in bits]

    def drawn(order: Array, dealt: Sequence[Array]) -> MembershipRates | None:
        together, truth = (np.concatenate([part[k] for k in order]) for part in (scores, dealt))
        return membership_rates(together[truth], together[~truth]) if 0 < truth.sum() < len(truth) else None

    everything = np.arange(len(scores))
    found = drawn(everything, inside)
    if found is None:
        raise DataError("membership rates need members and non-members; run more seeds")
    again = [drawn(rng.choice(everything, len(everything)), inside) for _ in range(_RESAMPLES)]
    shares = [item for item in again if item is not None]
    mixed = np.concatenate(inside)  # permuted over all runs, then dealt out to the runs again
    ends = np.cumsum([len(own) for own in inside])[:-1]
    nulls = [drawn(everything, np.split(rng.permutation(mixed), ends)) for _ in range(_RESAMPLES)]
    aucs = np.array([item.auc for item in shares])
    return PooledRates(
        found,
        _ends(aucs),
        _ends(np.array([item.tpr for item in shares])),
        float(aucs.std()),
        _ends(np.array([item.auc for item in nulls if item is not None])),
    )


def _ends(values: Array) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % quantiles."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
