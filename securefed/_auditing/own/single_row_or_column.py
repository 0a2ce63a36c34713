"""Find a single column or row that an estimate knows while the rest stays unknown: an attribute, or one record.

`client_secrets` calls `best_part` for every estimate of rows. The relative error over all of a client's numbers hides
both: one column in the clear beside unknown ones, or one row of ten, changes it little. So each column and each row is
scored by itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from securefed._tensors import Array

_FEWEST: Final = 3
"""Fewest values of a part that counts. Two real numbers may be right by luck; three that are all right to a thousandth
are not."""


def best_part(estimate: Array, truth: Array, guess: Array, pool: Array) -> tuple[float, str]:
    """Return the leakage and the name of the column or row that an estimate knows best; (-inf, "") where none counts.

    The leakage of a part is 1 - ||estimate - truth|| / ||guess - truth|| over its values that count.

    A column is known by its values, whichever row they belong to: those of estimate and truth are compared in order of
    size. Only values that no other row of the pool has in that column count, since a binary column may be right by
    luck. So the part needs no null.

    Args:
        estimate: (rows, features), matched to the truth row by row.
        truth: (rows, features), the secret.
        guess: (rows, features), the baseline.
        pool: (all rows, features), the rows of all clients, those of the truth among them.
    """
    unique = np.column_stack([_occurs_once(truth[:, j], pool[:, j]) for j in range(truth.shape[1])])
    guess_error = np.square(guess - truth) * unique
    order = np.argsort(truth, axis=0)
    # in each column, the k-th smallest estimated value goes to the row of the k-th smallest true value
    by_size = np.empty_like(truth)
    np.put_along_axis(by_size, order, np.sort(estimate, axis=0), axis=0)
    best = -np.inf, ""
    for axis, part, values in ((0, "column", by_size), (1, "row", estimate)):
        error, baseline = (np.square(values - truth) * unique).sum(axis=axis), guess_error.sum(axis=axis)
        for place in np.flatnonzero((unique.sum(axis=axis) >= _FEWEST) & (baseline > 0)):
            best = max(best, (1 - float(np.sqrt(error[place] / baseline[place])), f"{part} {place}"))
    return best


def _occurs_once(values: Array, pool: Array) -> Array:
    """Tell of each value whether the pool holds it once only."""
    known, times = np.unique(pool, return_counts=True)
    return np.asarray(times[np.searchsorted(known, values)] == 1)
