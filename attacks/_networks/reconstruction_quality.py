"""Score recovered rows, after matching them to the true ones: peak signal-to-noise ratio of images, accuracy of tables.

These are the measures of papers on gradient inversion, for users and benchmarks; audits score by `attacks.scores`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from securefed._tensors import Array


def psnr(estimate: Array, truth: Array, *, span: float = 1.0) -> Array:
    """Return the PSNR (m,) of each true image in dB, at most 200, after Hungarian matching.

    A true image without a partner (where k < m) is scored by the estimate nearest to it.

    Args:
        estimate: (k, ...) images; entries that are not finite count as 0.
        truth: (m, ...) images.
        span: range of the pixels.
    """
    estimates, truths = _flat(estimate), _flat(truth)
    errors = _matched(((truths[:, None] - estimates[None]) ** 2).mean(axis=2))
    return np.asarray(-10.0 * np.log10(np.maximum(errors / span**2, 1e-20)))


def tabular_accuracy(
    estimate: Array, truth: Array, categories: Sequence[Sequence[int]] = (), *, tolerance: float = 0.05
) -> tuple[Array, float]:
    """Return the share of rows in which each feature is right, and the share of rows that are right as a whole.

    A number is right within `tolerance` of its column's range (of 1 where all true values are equal), a category if
    its likeliest value is the true one. Features: the numbers in the order of their columns, then the categories.

    Args:
        estimate: (k, columns) rows.
        truth: (m, columns) rows.
        categories: columns of each categorical feature.
        tolerance: share of a column's range.

    Returns:
        (features,) share of the true rows in which each feature is right, and the share of rows in which all are. Rows
        without a partner count as wrong.
    """
    estimates, truths = _flat(estimate), _flat(truth)
    span = np.ptp(truths, axis=0)
    span = np.where(span > 0, span, 1.0)
    categorical = {column for group in categories for column in group}
    numbers = [column for column in range(truths.shape[1]) if column not in categorical]
    correct = [np.abs(estimates[None, :, c] - truths[:, None, c]) <= tolerance * span[c] for c in numbers]
    for group in categories:
        columns = list(group)
        correct.append(truths[:, None, columns].argmax(axis=2) == estimates[None][:, :, columns].argmax(axis=2))
    table = np.stack(correct, axis=2)  # (true rows, estimates, features)
    i, j = linear_sum_assignment(-table.mean(axis=2))
    matched = np.zeros((len(truths), table.shape[2]))
    matched[i] = table[i, j]
    return matched.mean(axis=0), float(matched.all(axis=1).mean())


def _flat(rows: Array) -> Array:
    return np.nan_to_num(np.asarray(rows, np.float64).reshape(len(rows), -1), posinf=0.0, neginf=0.0)


def _matched(cost: Array) -> Array:
    """Return the cost (m,) of each row's partner; rows without one take their cheapest."""
    i, j = linear_sum_assignment(cost)
    matched = cost.min(axis=1)
    matched[i] = cost[i, j]
    return np.asarray(matched)
