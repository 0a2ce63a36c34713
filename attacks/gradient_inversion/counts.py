"""How many rows of each class one gradient allows, the likeliest first.

With R = p - y (rows, classes), p what the model says of a row and y its label, a gradient shows sum_k R_k (the bias)
and R^T X (the weights). The first says n_c = sum_k p_kc - sums_c, which leaves few counts; two things tell these apart:

  rows are alike: the mean p is not far from what the model says of a row of zeros;
  R_k lies in the span of R^T X, which fewer rows than classes leave directions a outside of. There a^T p_k = a^T y_k:
  no row has the label at which a is largest or least, and the labels' a_c differ as little as the rows' a^T p do.

With logits that differ by independent amounts of one size from row to row, both are squared distances in units of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import comb

import numpy as np

from securefed.tensors import Array

_PLACEMENTS = 6000
_SURE = 100.0
"""A row's direction is this far above what rounding makes of none."""
_TOGETHER = 1 << 20
"""Numbers in an array over counts, classes and directions."""
_ROUND_OFF = 1e-9
_RIDGE, _TINY = 1e-12, 1e-300


def placed(least: Array, among: Array, left: int, most: int) -> Iterator[Array]:
    """`least` and `left` more of some classes, unless these are more than `most` counts."""
    if left >= 0 and len(among) and comb(len(among) + left - 1, left) <= most:
        for place in combinations_with_replacement(among, left):
            yield least + np.bincount(np.array(place, int), minlength=len(least))


def likely(sums: Array, total: int, expected: Array, outside: Array) -> Array:
    """(counts, classes) all that a gradient allows, the likeliest first; none where they are too many.

    Args:
        sums: (classes,) sum_k R_k.      total: rows.
        expected: (classes,) what the model says of a row of zeros.      outside: (classes, directions) orthonormal, a.
    """
    least = np.maximum(np.ceil(-sums - _ROUND_OFF), 0).astype(int)
    listed = placed(least, np.arange(len(sums)), total - int(least.sum()), _PLACEMENTS)
    found = np.array(list(listed), int).reshape(-1, len(sums))
    means = (sums + found) / total
    allowed = (means > 0).all(axis=1)
    found, means = found[allowed], means[allowed]
    distances = np.sum(np.log(means / np.maximum(expected, _TINY)) ** 2, axis=1)
    few = np.argsort(distances, kind="stable")[: max(1, _TOGETHER // max(1, outside.size))]
    found, distances = found[few], distances[few] + _spread(found[few], means[few], outside)
    return np.asarray(found[np.argsort(distances, kind="stable")])


def _spread(found: Array, means: Array, outside: Array) -> Array:
    """(counts,) squared distances of the rows' labels from the mean p along a, in units of what p varies there."""
    beside = outside - (means @ outside)[:, None, :]
    varies = np.einsum("kca,kcb->kab", means[:, :, None] ** 2 * beside, beside, optimize=True)
    varies += _RIDGE * np.eye(outside.shape[1])
    away = np.linalg.solve(varies, beside.mT).mT
    return np.asarray(np.einsum("kc,kca,kca->k", found, beside, away))


def outside(gradient: Array, rows: int) -> Array:
    """(classes, directions) orthonormal, at right angles to R^T and to 1, as R's entries sum to 0 by row.

    None where `gradient`, R^T X (classes, columns), is not of rank `rows` beyond doubt, nor where rows leave none.
    """
    classes = len(gradient)
    if not rows < min(classes - 1, gradient.shape[1]):
        return np.zeros((classes, 0))
    left, values, _ = np.linalg.svd(gradient)
    if values[rows - 1] <= _SURE * max(values[rows], np.finfo(float).eps * values[0]):
        return np.zeros((classes, 0))
    beyond = left[:, rows:]
    ones = np.full((classes, 1), classes**-0.5)
    inner, _, _ = np.linalg.svd(beyond - ones @ (ones.T @ beyond), full_matrices=False)
    return np.asarray(inner[:, : beyond.shape[1] - 1])
