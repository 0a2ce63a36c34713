"""Read the rows' sums by class off the first gradient of a linear model: closed form, no search.

Before training, all rows x_k of logistic or softmax regression have the same predicted probabilities p, so that the
first gradient (`linear_model` has the formula) is linear in the numbers n_c of rows of class c and their sums s_c:

    bias       db_c = p_c sum_k n_k - n_c
    weights    dW_c = p_c sum_k s_k - s_c

The number of rows is public, so the bias gives every n_c. The weights leave one combination of the sums open, s ~ p; it
is taken from what is known of such rows. With a prior mean m_c of the rows of each class, and rows that scatter alike
about it, the most likely sums are

    s = n m + diag(n) A^T (A diag(n) A^T)^+ (dW - A n m),        A = p 1^T - I.

Where all rows have one class, nothing is open: their mean stands in the message. If the sum of all rows is known, as
0 of columns that were centred, nothing is open either: s_c = p_c sum_k s_k - dW_c. Methods with several local steps
show the same, with errors that grow with the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.attacks._base import Target, View
from securefed.attacks._fitting.label_counts import round_to_total
from securefed.attacks._gradient_inversion.gradient_rounds import (
    estimate_gradients,
    method_of,
    read_rounds,
    why_not_invertible,
)
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class ClassSums:
    """Sums of a view's rows by class.

    Attributes:
        counts: (classes,) estimated number of rows of each class.
        sums: (classes, features) estimated sums of their rows.
    """

    counts: Array
    sums: Array
    name: ClassVar[str] = "gradient_inversion/class_sums"

    @property
    def mean(self) -> Array:
        """The mean of all rows, (features,)."""
        return np.asarray(self.sums.sum(axis=0) / self.counts.sum())


def why_not_readable(target: Target, observed: View) -> str | None:
    """Return why sums by class cannot be read from this view, or `None` if they can."""
    if (reason := why_not_invertible(target, observed)) is not None:
        return reason
    model = LinearModel.of(target)
    assert model is not None  # `why_not_invertible` refuses other models
    return None if model.bias else "Without a bias the gradient does not show the numbers of rows by class."


def class_sums(observed: View, target: Target, prior: Array, total: Array | None = None) -> ClassSums:
    """Read the sums by class of the members' rows off the first round of a view.

    Args:
        observed: the view.
        target: the algorithm and the public facts.
        prior: (classes, features) what is known of the mean row of each class.
        total: (features,) the sum of all rows where it is known.

    Raises:
        TranscriptError: the view shows no gradient of a linear model with a bias.
    """
    if (reason := why_not_readable(target, observed)) is not None:
        raise TranscriptError(reason)
    model = LinearModel.of(target)
    assert model is not None
    first = read_rounds(observed, target)[:1]
    estimate = estimate_gradients(first, method_of(target), target.public, model)[0]
    rows = sum(target.public.rows[client] for client in first[0].members)
    weight = model.weight(estimate.gradient)
    bias = np.asarray(model.offset(estimate.gradient))
    p = model.probabilities(prior.mean(axis=0) @ model.weight(estimate.point).T + model.offset(estimate.point))
    if model.logistic:  # one output: that of class 1
        weight, bias, p = np.vstack([-weight, weight]), np.r_[-bias, bias], np.r_[1 - p, p]
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise TranscriptError("the first gradient is not finite")
    counts = round_to_total(p * rows - bias, rows).astype(np.float64)
    if total is not None:
        return ClassSums(counts, np.asarray(p[:, None] * total - weight))
    known = counts[:, None] * prior
    observe = p[:, None] - np.eye(len(p))
    spread = counts[:, None] * observe.T
    sums = known + spread @ np.linalg.pinv(observe @ spread, rcond=1e-9) @ (weight - observe @ known)
    return ClassSums(counts, np.asarray(sums))
