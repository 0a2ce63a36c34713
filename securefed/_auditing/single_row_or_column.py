"""One column or one row that is known, of rows that are not: an attribute of everybody, or one person's record.

One norm over all of a client's numbers sees neither: a column in the clear beside an income, or one row of ten, moves
it by little.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from securefed._tensors import Array

_FEWEST: Final = 3


def best_part(estimate: Array, truth: Array, guess: Array, pool: Array) -> tuple[float, str]:
    """Leakage of the column or row of `truth` that `estimate` knows best, and its name; (-inf, "") where none counts.

    Args:
        estimate: matched to the truth, row by row.      truth, guess: the secret, and the baseline's; all (rows,
            features).      pool: everybody's rows, the truth's among them.

    A column is known by its values, whoever's they are: those of estimate and truth are compared in order of size.

    Only values that no other row of the pool has in that column are looked at, and parts with three of them at least:
    a binary column may be right by luck, three real numbers to a thousandth of what the guess is off by are not. So no
    null is asked.
    """
    once = np.column_stack([_once(truth[:, j], pool[:, j]) for j in range(truth.shape[1])])
    base = np.square(guess - truth) * once
    order = np.argsort(truth, axis=0)
    ranked = np.empty_like(truth)
    np.put_along_axis(ranked, order, np.sort(estimate, axis=0), axis=0)
    best = -np.inf, ""
    for axis, what, known_as in ((0, "column", ranked), (1, "row", estimate)):
        known, asked = (np.square(known_as - truth) * once).sum(axis=axis), base.sum(axis=axis)
        for place in np.flatnonzero((once.sum(axis=axis) >= _FEWEST) & (asked > 0)):
            best = max(best, (1 - float(np.sqrt(known[place] / asked[place])), f"{what} {place}"))
    return best


def _once(own: Array, pool: Array) -> Array:
    values, times = np.unique(pool, return_counts=True)
    return np.asarray(times[np.searchsorted(values, own)] == 1)
