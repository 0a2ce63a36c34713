"""Find a single column or row that an estimate knows while the rest stays unknown: an attribute, or one record.

The audit calls `best_part` for every estimate of a client's rows that an attack made (`client_secrets`). The relative
error over all of a client's numbers would hide such a part: one known column among unknown ones, or one row of ten,
changes it little. So each column and each row is scored by itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from securefed._tensors import Array

_FEWEST: Final = 3
"""Fewest values of a part that counts. Two real numbers may be right by luck; three that are all right to a thousandth
are not."""


def best_part(estimate: Array, truth: Array, guess: Array, pool: Array) -> tuple[float, str]:
    """Return the leakage and the name of the column or row that an estimate knows best.

    The leakage of a part is 1 - ||estimate - truth|| / ||guess - truth|| over its values that count. A value counts if
    no other row of the pool has it in that column: a binary column, for instance, may be right by luck. A part of fewer
    than `_FEWEST` such values is left out. These two rules stand in for a comparison with what chance would give.

    A column is known by its values, whichever row they belong to: those of estimate and truth are compared in order of
    size.

    Args:
        estimate: (rows, features), matched to the truth row by row.
        truth: (rows, features), the secret.
        guess: (rows, features), what an attacker would say without the messages.
        pool: (all rows, features), the rows of all clients, those of the truth among them.

    Returns:
        The leakage, and "column J" or "row I"; (-inf, "") where no part has enough values that count.
    """
    unique = np.column_stack([occurs_once(truth[:, j], pool[:, j]) for j in range(truth.shape[1])])
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


def occurs_once(values: Array, pool: Array) -> Array:
    """Tell of each value whether the pool holds it once only."""
    known, times = np.unique(pool, return_counts=True)
    return np.asarray(times[np.searchsorted(known, values)] == 1)
