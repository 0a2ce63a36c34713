"""What membership scores are worth: AUC, and the true positive rate at a low false positive rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from securefed.errors import DataError
from securefed.tensors import Array


@dataclass(frozen=True)
class Rates:
    """Rates of a score that should be higher for members.

    Attributes:
        auc: probability that a member scores above a non-member, ties counted half.
        tpr: true positive rate at the largest false positive rate <= `fpr` that a threshold reaches.
        fpr: the false positive rate asked for.      members, others: how many scores of each.
    """

    auc: float
    tpr: float
    fpr: float
    members: int
    others: int

    @property
    def leakage(self) -> float:
        """2 AUC - 1: 1 tells all members from all others, 0 is a coin; kept signed."""
        return 2 * self.auc - 1


def rates(members: Array, others: Array, *, fpr: float = 0.01) -> Rates:
    """Rates of the scores of members and of non-members.

    With fewer than 1 / fpr non-members the rate is that above ALL of them: an estimate with a large variance.

    Raises:
        DataError: one of both is empty, or a score is NaN.
    """
    inside, outside = np.asarray(members, np.float64).ravel(), np.asarray(others, np.float64).ravel()
    if not inside.size or not outside.size:
        raise DataError("membership rates need scores of members and of non-members")
    if np.isnan(inside).any() or np.isnan(outside).any():
        raise DataError("a membership score is NaN; the attack must give every candidate a number")
    ranks = rankdata(np.concatenate([inside, outside]))[: inside.size]
    auc = (ranks.sum() - inside.size * (inside.size + 1) / 2) / (inside.size * outside.size)
    allowed = int(np.floor(fpr * outside.size))
    threshold = np.sort(outside)[outside.size - 1 - allowed]
    return Rates(float(auc), float(np.mean(inside > threshold)), fpr, int(inside.size), int(outside.size))


@dataclass(frozen=True)
class Pooled:
    """Rates over several runs, each with the 95 % interval of a bootstrap over runs.

    Attributes:
        rates: of all scores together.      auc, tpr: (low, high).      deviation: of the resampled AUC.
        null: (low, high) of the AUC where the bits of every run are dealt out at random.
    """

    rates: Rates
    auc: tuple[float, float]
    tpr: tuple[float, float]
    deviation: float
    null: tuple[float, float]


def pooled(
    scores: Sequence[Array], bits: Sequence[Array], *, fpr: float = 0.01, resamples: int = 500, seed: int = 0
) -> Pooled:
    """Rates of the scores of several runs; whole runs are resampled, for the bits of one share its noise.

    Scores of different runs must be on one scale, as likelihood ratios are.

    Raises:
        DataError: no member, or no non-member, in any run.
    """
    rng = np.random.default_rng(seed)
    inside = [np.asarray(own, bool) for own in bits]

    def drawn(order: Array, dealt: Sequence[Array]) -> Rates | None:
        together, truth = (np.concatenate([part[k] for k in order]) for part in (scores, dealt))
        return rates(together[truth], together[~truth], fpr=fpr) if 0 < truth.sum() < len(truth) else None

    everything = np.arange(len(scores))
    found = drawn(everything, inside)
    if found is None:
        raise DataError("membership rates need members and non-members; play more runs")
    again = [drawn(rng.choice(everything, len(everything)), inside) for _ in range(resamples)]
    shares = [item for item in again if item is not None]
    mixed = np.concatenate(inside)
    ends = np.cumsum([len(own) for own in inside])[:-1]
    nulls = [drawn(everything, np.split(rng.permutation(mixed), ends)) for _ in range(resamples)]
    aucs = np.array([item.auc for item in shares])
    return Pooled(
        found,
        _ends(aucs),
        _ends(np.array([item.tpr for item in shares])),
        float(aucs.std()),
        _ends(np.array([item.auc for item in nulls if item is not None])),
    )


def _ends(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
