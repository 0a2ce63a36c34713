"""How many rows of each class stand behind a gradient of the layer whose outputs are the logits of a cross entropy.

With slopes r_k = p_k - y_k at the logits and e_k what enters the layer, the sums over rows are sum_k r_k in the bias
and R^T E in the weights, so that n_c = sum_k p_kc - sums_c. As p is positive n_c > -sums_c, and few counts are left to
choose from. p follows from the mean of the e_k, which a gradient tells too: sum_c sign(sums_c) (R^T E)_c over
sum_c |sums_c| averages them with weights of sum 1. A row's is negative where its class has fewer rows than p gives it:
a tenth of eight digits, a third of 48, and the mean is the farther off.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from securefed.tensors import Array

_ROUND_OFF = 1e-3
"""Part of a row that rounding of the message may feign."""


def mean_entering(weight: Array, sums: Array) -> Array:
    """(width,) about the mean of what enters the layer; of gradients (classes, width) and (classes,), not all 0."""
    return np.asarray(np.sign(sums) @ weight / np.abs(sums).sum())


def fewest(sums: Array, error: float = 0.0) -> Array:
    """(classes,) how many rows each class has at least.

    Args:
        sums: (classes,) the bias' gradient, summed over the rows.
        error: how far an entry of it may be off, beyond a thousandth of a row.
    """
    return np.asarray(np.maximum(np.ceil(-sums - max(_ROUND_OFF, error)), 0), np.int64)


def nearest_counts(values: Array, least: Array, total: int) -> Iterator[Array]:
    """All integers (classes,) >= `least` that sum to `total`, which `least` must not exceed, by distance from `values`
    (classes,)."""
    first = np.array(least, np.int64)
    for _ in range(total - int(first.sum())):
        first[np.argmax(values - first)] += 1
    heap: list[tuple[float, tuple[int, ...], Iterator[Array]]] = []
    known = set[tuple[int, ...]]()

    def queue(counts: Iterator[Array]) -> None:
        """The first of them that is new; the others, which are farther off, once it had its turn."""
        for found in counts:
            if (key := tuple(found.tolist())) not in known:
                known.add(key)
                heappush(heap, (float(np.square(found - values).sum()), key, counts))
                return

    queue(iter((first,)))
    while heap:  # every count is one move away from a nearer one
        _, key, siblings = heappop(heap)
        found = np.array(key, np.int64)
        yield found
        queue(siblings)
        queue(_moved(found, values, least))


def _moved(found: Array, values: Array, least: Array) -> Iterator[Array]:
    """With one row moved from a class to another, by distance from `values`."""
    above, giving = found - values, np.flatnonzero(found > least)
    for move in np.argsort(above - above[giving, None], axis=None):  # half of what it adds to the squares, but for 1
        source, taking = divmod(int(move), len(found))
        moved = found.copy()
        moved[giving[source]] -= 1
        moved[taking] += 1
        yield moved


def round_to(values: Array, total: int) -> Array:
    """Non-negative integers in about the proportions of `values` that sum to `total` (largest remainders); near equal
    ones where noise left no value that is positive."""
    values = np.maximum(values, 0.0)
    if not values.any():
        values = np.ones(len(values))
    values = total * (values / values.sum())
    floor = np.floor(values).astype(np.int64)
    rest = np.argsort(values - floor)[::-1][: total - floor.sum()]
    floor[rest] += 1
    return floor
