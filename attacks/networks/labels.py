"""Labels from the gradient of the last layer, whose outputs are the logits of a cross entropy.

For the mean over B rows, gb_c = mean_k p_kc - n_c / B and gW_c = mean_k (p_kc - [y_k = c]) e_k, e_k what enters it.
One row: the label's entry of gb is the only negative one (Zhao et al. 2020, iDLG). Several: gW_c / gb_c is about the
average of the e_k, which gives p, and from it n_c (Ma et al. 2023, iLRG). As p is positive, n_c > -B gb_c: few counts
are left to choose from, and those near the estimate come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from securefed.tensors import Array

_ROUND_OFF = 1e-3
"""Part of a row that rounding of the message may feign."""


def counts(rows: int, weight: Array, bias: Array | None, at_weight: Array, at_bias: Array | None) -> Array:
    """(classes,) how many of the rows have each label: the likeliest of `plausible`."""
    return next(plausible(rows, weight, bias, at_weight, at_bias))


def plausible(rows: int, weight: Array, bias: Array | None, at_weight: Array, at_bias: Array | None) -> Iterator[Array]:
    """All counts (classes,) that the gradient allows, nearest to the estimate first.

    Args:
        rows: B.
        weight, bias: mean gradients of the last layer (classes, width), (classes,).
        at_weight, at_bias: its parameters.
    One only, and exact, for one row; both of two classes without a bias, whose slopes are as large and of unknown sign.
    For several rows the first is the better the less their embeddings differ.
    """
    weight = np.asarray(weight, np.float64)
    slopes = np.asarray(bias, np.float64) if bias is not None else _slopes(weight)
    if rows == 1:
        order = np.argsort(slopes)
        yield from np.eye(len(weight), dtype=np.int64)[order[: 2 if bias is None and len(weight) == 2 else 1]]
        return
    safe = np.where(np.abs(slopes) > 1e-12 * np.abs(slopes).max(initial=1e-300), slopes, np.inf)
    embeddings = weight / safe[:, None]
    logits = embeddings @ np.asarray(at_weight, np.float64).T + (0.0 if at_bias is None else np.asarray(at_bias))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = np.diag(powers / powers.sum(axis=1, keepdims=True))
    least = np.maximum(np.ceil(-rows * slopes - _ROUND_OFF), 0).astype(np.int64)
    if bias is None or least.sum() > rows:  # slopes up to a factor, or of rows that do not count alike
        least = np.zeros_like(least)
    yield from _nearest(rows * (p - slopes), least, rows)


def _slopes(weight: Array) -> Array:
    """Slopes up to a common factor from the weights alone: the part along the leading singular vectors."""
    u, s, _ = np.linalg.svd(weight, full_matrices=False)
    along = u[:, 0] * s[0]
    label = int(np.argmax(np.abs(along)))  # |p_y - 1| is the sum of the other entries
    return np.asarray(-along * np.sign(along[label]))


def _nearest(values: Array, least: Array, total: int) -> Iterator[Array]:
    """Integers >= `least` that sum to `total`, by distance from `values`: one at a time moves from place to place."""
    values = np.maximum(values, least)
    first = least + _round_to(values - least, total - int(least.sum()))
    heap, known = [(0.0, tuple(first.tolist()))], {tuple(first.tolist())}
    while heap:
        _, key = heappop(heap)
        found = np.array(key, np.int64)
        yield found
        for giving in np.flatnonzero(found > least):
            for taking in range(len(found)):
                moved = found.copy()
                moved[giving] -= 1
                moved[taking] += 1
                if (key := tuple(moved.tolist())) not in known:
                    known.add(key)
                    heappush(heap, (float(np.square(moved - values).sum()), key))


def _round_to(values: Array, total: int) -> Array:
    """Non-negative integers near `values` that sum to `total` (largest remainders)."""
    values = np.maximum(values, 0.0) + 1e-9  # nothing to go by: alike
    values = values * (total / float(values.sum()))
    floor = np.floor(values).astype(np.int64)
    order = np.argsort(values - floor)[::-1]
    floor[order[: total - int(floor.sum())]] += 1
    return floor
