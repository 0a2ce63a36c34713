"""Score an attack: errors, their baselines, and leakage = 1 - error / baseline.

An error is the distance of an estimate from the secret, relative to the secret; the baseline is the error of a guess
without the attack. Two secrets are reported: one client's (its Gram matrix or samples; the guess is the pooled matrix
scaled by the public number of rows, or the mean sample), and the federation's (the pooled Gram matrix; the guess is the
best one of a form that the final model and public sizes allow, such as `subspace_baseline`).

Estimated rows have no order, so that each true row is compared with the estimated one that fits it (`match`). Such a
choice makes any plausible rows look like a leak: random records, scored as an estimate of a hundred others, leak .2 to
.4 when compared with the mean. So the baseline of rows is multiplied by what the same estimate tells of rows that took
no part (`fit_by_chance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from securefed._tensors import Array

_ROUNDING: Final = 1e-9
"""Relative error that rounding alone may leave: below it an estimate is exact."""
_ENOUGH: Final = 256
"""Rows that took no part, from which the fit by chance is computed: its error is then a few hundredths."""

_FEWEST: Final = 64
"""Rows that `rows_between` makes up at least."""


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
    rows, columns = linear_sum_assignment(cdist(truth, estimate, "sqeuclidean"))
    matched = np.broadcast_to(estimate.mean(axis=0), truth.shape).copy()
    matched[rows] = estimate[columns]
    return matched


def sample_error(estimate: Array, truth: Array) -> float:
    """Relative error of samples after Hungarian matching; infinite for an estimate that is not finite."""
    if not np.isfinite(estimate).all():
        return float("inf")
    return relative_error(match(estimate, truth), truth)


def up_to_sign(estimate: Array, truth: Array) -> Array:
    """Turn the sign of each estimated row so that it is nearest to the true row that it is matched with.

    Args:
        estimate: (rows, features), in any order.
        truth: the true rows, in any order; as many or not.
    """
    products = estimate @ truth.T
    sizes = (estimate**2).sum(axis=1)[:, None] + (truth**2).sum(axis=1)[None, :]
    found, true = linear_sum_assignment(sizes - 2 * np.abs(products))  # squared distances up to the sign
    turned = np.array(estimate, float)
    turned[found] *= np.where(products[found, true] < 0, -1.0, 1.0)[:, None]
    return turned


def fit_by_chance(estimate: Array, others: Array, rows: int, mean: Array) -> float:
    """Compute the error of an estimate of rows for rows that took no part, relative to the error of their mean row.

    An attack that knows what rows of this kind look like, and nothing of the ones attacked, errs as much on others.

    Args:
        estimate: (k, n) of `rows` rows; finite.
        others: (m, n) rows that took no part. They are matched `rows` at a time, as the true rows are; all together
            where they are fewer.
        rows: number of true rows.
        mean: (n,) the guess of every row.

    Returns:
        ||matched - others|| / ||mean - others||, at most 1; 0 where the estimate fits up to rounding; 1 where there are
        no others, or the mean is exact.
    """
    size = min(rows, len(others))
    if not size:
        return 1.0
    used = others[: max(_ENOUGH // size, 1) * size]
    used = used[: len(used) // size * size]
    if size == 1:  # each is matched with the nearest row
        squares = float(cdist(used, estimate, "sqeuclidean").min(axis=1).sum())
    else:
        blocks = np.split(used, len(used) // size)
        squares = sum(float(np.square(match(estimate, block) - block).sum()) for block in blocks)
    guess = float(np.square(mean - used).sum())
    share = float(np.sqrt(squares / guess)) if guess > 0 else 1.0
    return min(1.0, share) if share > _ROUNDING else 0.0


def rows_not_held(rows: Array, clients: Sequence[Array]) -> Array:
    """Return the rows (m, n), in their order and each once, that no client holds; each client's are (rows, n)."""
    # + 0.0 turns -0 into 0, whose bytes differ
    seen = {row.tobytes() for data in clients for row in np.asarray(data, np.float64) + 0.0}
    kept = []
    for place, row in enumerate(np.asarray(rows, np.float64) + 0.0):
        if (key := row.tobytes()) not in seen:
            seen.add(key)
            kept.append(place)
    return np.asarray(rows[kept])


def rows_between(pool: Array, rows: int, rng: np.random.Generator) -> Array:
    """Make up rows of the pool's kind, where no real ones are left that took no part.

    Each is a random point between two rows of the pool. Made-up rows are easier to fit by chance than real ones (by .02
    to .2 of the guess's error on digits, breast cancer and wine), so that a leakage measured beside them is understated
    rather than overstated.

    Args:
        pool: (m, n), rows that took part.
        rows: number of true rows; at least `_FEWEST` are made up, as the figure would scatter with fewer.
        rng: source of the draws.
    """
    first, second = pool[rng.integers(0, len(pool), (2, max(rows, _FEWEST)))]
    return np.asarray(first + rng.random((len(first), 1)) * (second - first))
