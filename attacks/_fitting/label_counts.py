"""Count the rows of each class behind a gradient of the layer that outputs the logits of a cross entropy.

Gradient inversion calls this before it fits rows: with known labels that fit is much easier. Row k enters the layer as
e_k, (width,), has the predicted probabilities p_k and the one-hot label y_k, both (classes,), and so r_k = p_k - y_k,
the slope of the loss at the logits. Stacked as rows of R and E, they give the gradient of the bias, sums_c = sum_k
r_kc, and of the weights, R^T E. The number of rows of class c is therefore

    n_c = sum_k p_kc - sums_c,    and n_c > -sums_c since p is positive, which leaves few counts.

The p_k are not observed; all are replaced by p at the mean of the e_k. That mean is estimated as sum_c sign(sums_c)
(R^T E)_c / sum_c |sums_c|, an average of the e_k with weights that sum to 1. A row's weight is negative if its class
has fewer rows than the p_k add up to, which makes the mean less accurate. (On handwritten digits that was a tenth of
the rows in batches of 8, and a third in batches of 48.)
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from securefed._tensors import Array

_ROUND_OFF = 1e-3
"""Error of a count, in rows, that rounding of the message may cause; far below the 1 by which counts differ."""


def mean_layer_input(weight: Array, sums: Array) -> Array:
    """Estimate the mean layer input (width,) from the gradients of weights (classes, width) and bias (classes,)."""
    return np.asarray(np.sign(sums) @ weight / np.abs(sums).sum())


def minimum_counts(sums: Array, error: float = 0.0) -> Array:
    """Return a lower bound on the number of rows of each class, (classes,).

    Args:
        sums: (classes,) gradient of the bias, summed over the rows, not averaged.
        error: bound on the error of an entry of `sums`; a thousandth of a row is always allowed for.
    """
    return np.asarray(np.maximum(np.ceil(-sums - max(_ROUND_OFF, error)), 0), np.int64)


def nearest_counts(values: Array, lower_bound: Array, total: int) -> Iterator[Array]:
    """Generate all counts >= `lower_bound` with the given total, in order of their Euclidean distance from `values`.

    Adding one row at a time to the class that lacks most gives the nearest counts. Every other count is one row moved
    between two classes away from a nearer one. So a heap holds, for each count that was generated, its best such
    neighbour that is still new.

    Args:
        values: (classes,) estimated numbers of rows of each class, real numbers, not necessarily of this total.
        lower_bound: (classes,) integers whose sum is at most `total`.
        total: sum of each count.
    """
    nearest = np.array(lower_bound, np.int64)
    for _ in range(total - int(nearest.sum())):
        nearest[np.argmax(values - nearest)] += 1
    heap: list[tuple[float, tuple[int, ...], Iterator[Array]]] = []
    queued = set[tuple[int, ...]]()

    def queue(counts: Iterator[Array]) -> None:
        """Push the first count that is new; the others, which are farther away, follow when it is popped."""
        for candidate in counts:
            if (key := tuple(candidate.tolist())) not in queued:
                queued.add(key)
                heappush(heap, (float(np.square(candidate - values).sum()), key, counts))
                return

    queue(iter((nearest,)))
    while heap:
        _, key, siblings = heappop(heap)
        candidate = np.array(key, np.int64)
        yield candidate
        queue(siblings)
        queue(_neighbours(candidate, values, lower_bound))


def _neighbours(counts: Array, values: Array, lower_bound: Array) -> Iterator[Array]:
    """Generate the counts with one row moved to another class, in the order of their distance from `values`.

    `counts` itself is among them, as the move of a row to its own class.
    """
    excess, givers = counts - values, np.flatnonzero(counts > lower_bound)
    # moving a row from class a to b adds 2 (excess_b - excess_a) + 2 to the squared distance
    for index in np.argsort(excess - excess[givers, None], axis=None):
        source, taker = divmod(int(index), len(counts))
        neighbour = counts.copy()
        neighbour[givers[source]] -= 1
        neighbour[taker] += 1
        yield neighbour


def round_to_total(values: Array, total: int) -> Array:
    """Return non-negative integers that sum to `total`, in about the proportions of `values` (largest remainders).

    Attacks that estimate numbers of rows make whole counts of them by this: `starting_points` and `row_posterior` of
    the gradient inversion, and the audit of models' training (`reading_attacks`). If no value is positive, the integers
    are about equal.
    """
    values = np.maximum(values, 0.0)
    if not values.any():
        values = np.ones(len(values))
    values = total * (values / values.sum())
    floor = np.floor(values).astype(np.int64)
    largest_remainders = np.argsort(values - floor)[::-1][: total - floor.sum()]
    floor[largest_remainders] += 1
    return floor
