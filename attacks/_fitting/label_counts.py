"""Count the rows of each class behind a gradient of the layer that outputs the logits of a cross entropy.

With slopes r_k = p_k - y_k at the logits and layer inputs e_k, the gradients are sums_c = sum_k r_kc of the bias and
R^T E of the weights, so that n_c = sum_k p_kc - sums_c. As p is positive, n_c > -sums_c, which leaves few counts.
p is computed at the mean of the e_k, which follows from the gradient too: sum_c sign(sums_c) (R^T E)_c over
sum_c |sums_c| averages the e_k with weights that sum to 1. A row's weight is negative if its class has fewer rows than
p expects (a tenth of the rows among eight digits, a third among 48), which makes the mean less accurate.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from securefed._tensors import Array

_ROUND_OFF = 1e-3
"""Error of a count, in rows, that rounding of the message may cause."""


def mean_layer_input(weight: Array, sums: Array) -> Array:
    """Estimate the mean layer input (width,) from the gradients of weights (classes, width) and bias (classes,)."""
    return np.asarray(np.sign(sums) @ weight / np.abs(sums).sum())


def minimum_counts(sums: Array, error: float = 0.0) -> Array:
    """Return (classes,) a lower bound on the rows of each class.

    Args:
        sums: (classes,) gradient of the bias, summed over the rows.
        error: error bound of an entry of it; a thousandth of a row is always allowed for.
    """
    return np.asarray(np.maximum(np.ceil(-sums - max(_ROUND_OFF, error)), 0), np.int64)


def nearest_counts(values: Array, least: Array, total: int) -> Iterator[Array]:
    """Generate all counts (classes,) >= `least` that sum to `total`, in the order of their distance from `values`.

    Args:
        values: (classes,) real numbers.
        least: (classes,) integers whose sum is at most `total`.
        total: sum of each count.
    """
    first = np.array(least, np.int64)
    for _ in range(total - int(first.sum())):
        first[np.argmax(values - first)] += 1
    heap: list[tuple[float, tuple[int, ...], Iterator[Array]]] = []
    known = set[tuple[int, ...]]()

    def queue(counts: Iterator[Array]) -> None:
        """Push the first count that is new; the others, which are farther away, follow when it is popped."""
        for found in counts:
            if (key := tuple(found.tolist())) not in known:
                known.add(key)
                heappush(heap, (float(np.square(found - values).sum()), key, counts))
                return

    queue(iter((first,)))
    while heap:  # every count is one move from a nearer one
        _, key, siblings = heappop(heap)
        found = np.array(key, np.int64)
        yield found
        queue(siblings)
        queue(_moved(found, values, least))


def _moved(found: Array, values: Array, least: Array) -> Iterator[Array]:
    """Generate the counts with one row moved to another class, in the order of their distance from `values`."""
    above, giving = found - values, np.flatnonzero(found > least)
    for move in np.argsort(
        above - above[giving, None], axis=None
    ):  # half the increase of the squared distance, minus 1
        source, taking = divmod(int(move), len(found))
        moved = found.copy()
        moved[giving[source]] -= 1
        moved[taking] += 1
        yield moved


def round_to_total(values: Array, total: int) -> Array:
    """Return non-negative integers that sum to `total`, in about the proportions of `values` (largest remainders).

    If no value is positive, the integers are about equal.
    """
    values = np.maximum(values, 0.0)
    if not values.any():
        values = np.ones(len(values))
    values = total * (values / values.sum())
    floor = np.floor(values).astype(np.int64)
    rest = np.argsort(values - floor)[::-1][: total - floor.sum()]
    floor[rest] += 1
    return floor
