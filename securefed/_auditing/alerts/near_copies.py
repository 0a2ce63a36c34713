"""Pairs of columns of which one follows from the other by a line in all rows but a few: copies that few rows break."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed._tensors import Array

_ON_A_LINE: Final = 1e-4
"""Relative error of a product of differences up to which three rows are tried as rows on a line."""
_SETS: Final = 4
"""Sets of three rows for each row that may be off a line; of unrelated columns nearly all sets are off."""
_SAME: Final = 1e-6
"""Deviations from a line, in standard deviations, up to which a row is on it: tables are written to six digits."""


@dataclass(frozen=True)
class NearCopy:
    """Column `second` is `slope` times column `first`, plus `offset`, but for few rows.

    Attributes:
        first: place of the first column.
        second: place of the second column.
        slope: slope of the line, not 0.
        offset: offset of the line.
        gaps: (rows,) how far each row is from the line; 0 on it.
    """

    first: int
    second: int
    slope: float
    offset: float
    gaps: Array


def near_copies(columns: Array, places: Sequence[int], fewest: int) -> Iterator[NearCopy]:
    """List the pairs of columns that fewer than `fewest` rows, and at least one, tell apart.

    Args:
        columns: (rows, features) a table of numbers.
        places: places of the columns that are compared: those of many values.
        fewest: number of rows from which on they are not few.
    """
    if len(columns) < 3 * _SETS * fewest or len(places) < 2:
        return
    # a column with one usual value lies on a line with every other column in most rows
    places = [place for place in places if 2 * np.unique(columns[:, place], return_counts=True)[1].max() < len(columns)]
    for first, second in _candidates(columns[:, places], fewest):
        x, y = columns[:, places[first]], columns[:, places[second]]
        order = np.argsort(x, kind="stable")
        steps, rises = np.diff(x[order]), np.diff(y[order])
        slope = float(np.median(rises[steps > 0] / steps[steps > 0])) if (steps > 0).any() else 0.0
        if not slope or not np.isfinite(slope):
            continue
        gaps = y - slope * x
        offset = float(np.median(gaps))
        gaps = np.where(np.abs(gaps - offset) <= _SAME * y.std(), 0.0, gaps - offset)
        if 0 < np.count_nonzero(gaps) < fewest:
            yield NearCopy(places[first], places[second], slope, offset, gaps)


def _candidates(columns: Array, fewest: int) -> Iterator[tuple[int, int]]:
    """List the pairs of columns for which fewer than `fewest` of some sets of three rows are off a line.

    Fewer than `fewest` rows are off the line of a near copy, and the sets have no row in common.
    """
    off = np.zeros((columns.shape[1],) * 2, int)
    sets = _SETS * fewest
    for rows in np.random.default_rng(0).permutation(len(columns))[: 3 * sets].reshape(sets, 3):
        one, other = (columns[row] - columns[rows[0]] for row in rows[1:])
        products = np.outer(one, other)
        off += np.abs(products - products.T) > _ON_A_LINE * (np.abs(products) + np.abs(products.T))
    yield from ((int(i), int(j)) for i, j in np.argwhere(np.tril(off < fewest, -1)) if i != j)
