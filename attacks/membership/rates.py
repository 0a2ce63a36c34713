"""What membership scores are worth: AUC, and the true positive rate at a low false positive rate."""

from __future__ import annotations

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
