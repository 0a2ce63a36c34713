"""How many rows of each class stand behind a gradient of the layer whose outputs are the logits of a cross entropy.

With slopes r_k = p_k - y_k at the logits and e_k what enters the layer, the sums over rows are sum_k r_k in the bias
and R^T E in the weights, so that n_c = sum_k p_kc - sums_c. As p is positive n_c > -sums_c, and few counts are left to
choose from. p follows from the mean of the e_k, which a gradient tells too: sum_c sign(sums_c) (R^T E)_c over
sum_c |sums_c| averages them with weights of sum 1, nearly all of them positive, as a class has rows or has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from securefed.tensors import Array


def mean_entering(weight: Array, sums: Array) -> Array:
    """(width,) about the mean of what enters the layer; of gradients (classes, width) and (classes,), not all 0."""
    return np.asarray(np.sign(sums) @ weight / np.abs(sums).sum())


def nearest_counts(values: Array, least: Array, total: int) -> Iterator[Array]:
    """Integers >= `least` that sum to `total`, by distance from `values`: one at a time moves from place to place."""
    first = np.array(least, np.int64)
    for _ in range(total - int(first.sum())):
        first[np.argmax(values - first)] += 1
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


def round_to(values: Array, total: int) -> Array:
    """Non-negative integers near `values` that sum to `total` (largest remainders); near equal ones where noise left
    no value that is positive."""
    values = np.maximum(values, 0.0)
    if not values.any():
        values = np.ones(len(values))
    values = total * (values / values.sum())
    floor = np.floor(values).astype(np.int64)
    rest = np.argsort(values - floor)[::-1][: total - floor.sum()]
    floor[rest] += 1
    return floor
