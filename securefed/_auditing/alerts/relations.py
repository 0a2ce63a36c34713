"""Columns that follow from several others by a sum in all rows but a few: totals that few rows break.

A score is the sum of its items, a total that of its parts. Where one row breaks the relation, the same sum over the
columns, of second moments or of a gradient, is that row alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.linalg import qr

from securefed._tensors import Array

_SAME: Final = 1e-6
"""Deviations, in standard deviations of a column, up to which a relation holds: tables are written to six digits."""
_FEWEST: Final = 3
"""Fewest columns of a relation; `near_copies` looks at two."""
_MORE: Final = 2
"""Rows beyond the number of columns of which a relation is computed at least: the constant and a check take them."""


@dataclass(frozen=True)
class Relation:
    """The last of some columns is a sum of multiples of the others and a constant, but for few rows.

    Attributes:
        places: places of the columns; the one that follows from the others stands last.
        coefficients: (features,) 1 at the last column, minus the multiples at the others, 0 elsewhere.
        offset: the constant.
        gaps: (rows,) how far each row is from it; 0 where it holds.
    """

    places: tuple[int, ...]
    coefficients: Array
    offset: float
    gaps: Array


def relations(columns: Array, fewest: int) -> Iterator[Relation]:
    """List the relations of three columns or more that fewer than `fewest` rows break, and at least one.

    Fewer than `fewest` rows break a relation, so that it holds in all rows of at least one of `fewest` sets of rows
    that have none in common; it is computed from each set, and checked in all rows.

    Args:
        columns: (rows, features) a table of numbers.
        fewest: number of rows from which on they are not few.
    """
    scale = columns.std(axis=0)
    used = np.flatnonzero(scale > 0)
    # sets as large as they can be, so that a category of few rows varies in most of them
    size = len(columns) // fewest
    if len(used) < _FEWEST or size < len(used) + _MORE:
        return
    table = (columns[:, used] - columns[:, used].mean(axis=0)) / scale[used]
    seen = set[tuple[int, ...]]()
    for rows in np.random.default_rng(0).permutation(len(table))[: fewest * size].reshape(fewest, size):
        for follows, multiples in _dependent(table[rows] - table[rows].mean(axis=0)):
            parts = np.flatnonzero(np.abs(multiples) > _SAME)
            gaps = table[:, follows] - table[:, parts] @ multiples[parts]
            offset = float(np.median(gaps))
            gaps = np.where(np.abs(gaps - offset) <= _SAME * (1 + np.abs(multiples).sum()), 0.0, gaps - offset)
            places = (*sorted(int(used[part]) for part in parts), int(used[follows]))
            if len(places) < _FEWEST or tuple(sorted(places)) in seen or not 0 < np.count_nonzero(gaps) < fewest:
                continue
            seen.add(tuple(sorted(places)))
            coefficients = np.zeros(columns.shape[1])
            coefficients[used[follows]] = 1.0
            coefficients[used[parts]] = -multiples[parts] * scale[used[follows]] / scale[used[parts]]
            gaps = gaps * scale[used[follows]]
            held = gaps == 0
            yield Relation(places, coefficients, float(np.median((columns @ coefficients)[held])), gaps)


def _dependent(rows: Array) -> Iterator[tuple[int, Array]]:
    """Yield the columns that follow from others in all these rows, each with the multiples of the others."""
    _, R, order = qr(rows, mode="economic", pivoting=True)
    sizes = np.abs(np.diag(R))
    rank = int(np.sum(sizes > _SAME * sizes[0] * np.sqrt(len(rows)))) if sizes[0] > 0 else 0
    for place in range(rank, rows.shape[1]):
        if not np.linalg.norm(rows[:, order[place]]) > _SAME:  # constant in these rows
            continue
        multiples = np.zeros(rows.shape[1])
        multiples[order[:rank]] = np.linalg.solve(R[:rank, :rank], R[:rank, place])
        yield int(order[place]), multiples
