"""Score an attack: errors, their baselines, and leakage = 1 - error / baseline.

Two secrets are reported: CLIENT (one client's Gram matrix or samples; the
baseline knows the pooled data scaled by the public number of rows, or the mean image) and FEDERATION (the pooled
secret; the baseline is the best guess from the final model and public sizes).
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
    """Compute 1 - error / baseline: 1 is exact, 0 no better than the baseline, negative worse (kept signed).

    Where the baseline is exact an attack cannot add anything: the leakage is 0 for any error.
    """
    return 0.0 if baseline == 0 else 1.0 - error / baseline


def subspace_baseline(gram: Array, basis: Array) -> float:
    """Compute the error of the best guess from a subspace alone: c Z Z^T with the best scale c.

    Args:
        gram: (features, features) the secret S.
        basis: (features, p) orthonormal Z.

    The scale is chosen with knowledge of S, so that the baseline is the strongest of this form.
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
    out = np.broadcast_to(estimate.mean(axis=0), truth.shape).copy()
    out[rows] = estimate[columns]
    return out


def sample_error(estimate: Array, truth: Array) -> float:
    """Relative error of samples after Hungarian matching; infinite for an estimate that is not finite."""
    if not np.isfinite(estimate).all():
        return float("inf")
    return relative_error(match(estimate, truth), truth)
