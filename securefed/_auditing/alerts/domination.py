"""Find the few rows that dominate a column of numbers: they hold most of its sum of squares.

Products of the column with the others are then about the weighted sum of these rows, with an error of
sqrt((1 - s) / s) of what they hold themselves, where s is their share.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from securefed._tensors import Array

DOMINANT: Final = 0.5
"""Share of a column's sum of squares from which on one row dominates it. Rows were read from second moments with errors
of 1.24, .65 and .25 where this share was .43, .60 and .79."""
SEVERAL: Final = 0.8
"""Share from which on several rows dominate a column: the error is then half of what they hold. The largest of a few
rows hold half of the squares of any column."""
_APART: Final = 0.8
"""Part of the smallest of a few values that the next one may have, where the few stand apart."""
_ROWS_FOR_EACH: Final = 10
"""Rows of the table for each row that dominates; of fewer, the largest hold most of the squares by chance."""


def dominating(values: Array, counts: Array, fewest: int, several: float = SEVERAL) -> list[tuple[int, float]]:
    """List the numbers of rows that dominate a column, each with their share of the sum of squares; the least first.

    Args:
        values: the distinct values of the column.
        counts: by value, the number of rows.
        fewest: number of rows from which on they are not few.
        several: share from which on more than one row dominates.
    """
    size = np.abs(values).max(initial=0.0)
    if not size > 0 or not np.isfinite(size):
        return []
    squares = (values / size) ** 2  # scaled, so that none overflows
    rows = int(counts.sum())
    few = min(fewest, len(squares))
    order = np.argpartition(-squares, few - 1)[:few]
    order = order[np.argsort(-squares[order], kind="stable")]
    largest = np.repeat(squares[order], counts[order])[: fewest - 1]
    shares = np.cumsum(largest) / float(counts @ squares)
    wanted = [several if count * _ROWS_FOR_EACH <= rows else np.inf for count in range(1, len(shares) + 1)]
    wanted[0] = DOMINANT
    return [(place + 1, float(shares[place])) for place in range(len(shares)) if shares[place] >= wanted[place]]


def set_apart(values: Array, count: int) -> bool:
    """Return whether the `count` rows of largest absolute value stand apart from the next one."""
    if count >= len(values):
        return True
    last, following = -np.partition(-np.abs(values), [count - 1, count])[count - 1 : count + 1]
    return bool(following <= _APART * last)
