"""Score an attack: errors, their baselines, and leakage = 1 - error / baseline.

An error is the distance of an estimate from the secret, relative to the secret; the baseline is the error of a guess
without the attack. Two secrets are reported: one client's (its Gram matrix or samples; the guess is the pooled matrix
scaled by the public number of rows, or the mean sample), and the federation's (the pooled Gram matrix; the guess is the
best one of a form that the final model and public sizes allow, such as `subspace_baseline`).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from securefed._tensors import Array


def relative_error(estimate: Array, truth: Array) -> float:
    """Relative Frobenius error ||estimate - truth|| / ||truth||; infinite for an estimate that is not finite."""
    if not np.isfinite(estimate).all():
        return float("inf")
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))


def leakage(error: float, baseline: float) -> float:
    """Compute 1 - error / baseline: 1 if the attack is exact, 0 if no better than the baseline, negative if worse.

    Where the baseline is exact an attack cannot add anything: the leakage is 0 for any error.
    """
    return 0.0 if baseline == 0 else 1.0 - error / baseline


def subspace_baseline(gram: Array, basis: Array) -> float:
    """Compute the relative error of the best guess c Z Z^T of a Gram matrix S from a subspace Z alone.

    The scale c is chosen with knowledge of S, so that the baseline is the strongest of this form. Its error is
    sqrt(||S||^2 - tr(Z^T S Z)^2 / p) / ||S||.

    Args:
        gram: the secret S, (features, features).
        basis: Z, (features, p), with orthonormal columns.
    """
    overlap = float(np.trace(basis.T @ gram @ basis))
    energy = float(np.sum(gram * gram))
    return float(np.sqrt(max(energy - overlap**2 / basis.shape[1], 0.0) / energy))


def match(estimate: Array, truth: Array) -> Array:
    """Assign to each row of `truth` (m, n) a row of `estimate` (k, n) (Hungarian, squared distance).

    Rows of `truth` beyond k are matched to the mean of `estimate`.
    """
    cost = ((truth[:, None, :] - estimate[None, :, :]) ** 2).sum(axis=2)
    rows, columns = linear_sum_assignment(cost)
    matched = np.broadcast_to(estimate.mean(axis=0), truth.shape).copy()
    matched[rows] = estimate[columns]
    return matched


def sample_error(estimate: Array, truth: Array) -> float:
    """Relative error of samples after Hungarian matching; infinite for an estimate that is not finite."""
    if not np.isfinite(estimate).all():
        return float("inf")
    return relative_error(match(estimate, truth), truth)
