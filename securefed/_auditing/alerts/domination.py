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
    order, rows = np.argsort(-squares, kind="stable"), int(counts.sum())
    largest = np.repeat(squares[order[:fewest]], counts[order[:fewest]])[:fewest]
    shares = np.cumsum(largest[: fewest - 1]) / float(counts @ squares)
    wanted = [several if count * _ROWS_FOR_EACH <= rows else np.inf for count in range(1, len(shares) + 1)]
    wanted[0] = DOMINANT
    # of more rows that hold as much no few dominate
    apart = [place + 1 == len(largest) or largest[place + 1] < largest[place] for place in range(len(shares))]
    return [
        (place + 1, float(shares[place]))
        for place in range(len(shares))
        if apart[place] and shares[place] >= wanted[place]
    ]
