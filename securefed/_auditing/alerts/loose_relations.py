"""Columns that nearly follow from others, where few rows are far off: two visits, a ratio, a rounded total.

A body mass index follows from weight and height by a sum of multiples up to a small error, and the weight at discharge
from that at admission. What is left of the column is small in all rows but a few, which hold most of its sum of
squares: products of it with the other columns are nearly a weighted sum of these rows. The multiples are those of least
squares, which second moments themselves give.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from securefed._auditing.alerts.domination import SEVERAL, dominating, set_apart
from securefed._auditing.alerts.relations import Relation
from securefed._tensors import Array

_LEFT: Final = 0.25
"""Share of a column's variance, without the few rows, up to which it nearly follows from others."""
_PARTS: Final = 8
"""Most columns that another one is followed from; each is the one that explains most of what is left."""
MOST_COLUMNS: Final = 100
"""Most columns that are looked at; pixels and genes are more. The work grows with their square."""
_LEVELS: Final = 5
"""Distinct values up to which a column is a category: what is left of one is large in many rows, or none."""
_BETTER: Final = 0.02
"""Share of the sum of squares that the few rows must gain by more columns."""
_EXACT: Final = 1e-12
"""Share of a column's variance below which it follows exactly."""
_FOR_EACH: Final = 10
"""Rows for each column that another one is followed from, at least."""


def loose_relations(columns: Array, fewest: int, several: float = SEVERAL) -> Iterator[Relation]:
    """List the columns that nearly follow from others but in fewer than `fewest` rows, which are far off.

    Args:
        columns: (rows, features) a table of numbers.
        fewest: number of rows from which on they are not few.
        several: share of the sum of squares from which on more than one row counts as far off.
    """
    scale = columns.std(axis=0)
    used = np.flatnonzero(scale > 0)
    if not 2 <= len(used) <= MOST_COLUMNS or len(columns) < _FOR_EACH * fewest:
        return
    table = (columns[:, used] - columns[:, used].mean(axis=0)) / scale[used]
    moments = table.T @ table / len(table)
    for place in range(len(used)):
        if len(np.unique(columns[:, used[place]])) > _LEVELS:
            yield from _of_column(place, table, moments, fewest, several, columns, used)


def _of_column(
    place: int, table: Array, moments: Array, fewest: int, several: float, columns: Array, used: Array
) -> Iterator[Relation]:
    """Follow one column from more and more others, and take those by which the few rows are farthest off."""
    parts: list[int] = []
    multiples, best, most, ones = np.zeros(0), None, 0.0, np.ones(len(table), int)
    for _ in range(min(_PARTS, len(used) - 1, len(table) // _FOR_EACH)):
        explained = np.abs(moments[:, place] - moments[:, parts] @ multiples)
        explained[[place, *parts]] = -1.0
        parts = [*parts, int(np.argmax(explained))]
        multiples = np.linalg.lstsq(moments[np.ix_(parts, parts)], moments[parts, place], rcond=1e-10)[0]
        gaps = table[:, place] - table[:, parts] @ multiples
        left = float(gaps @ gaps) / len(gaps)
        if left < _EXACT:
            break
        for count, share in dominating(gaps, ones, fewest, several)[:1]:
            if left * (1 - share) <= _LEFT and share > most + _BETTER and set_apart(gaps, count):
                best, most = _relation(place, parts, multiples, gaps, count, columns, used), share
    if best is not None:
        yield best


def _relation(
    place: int, parts: list[int], multiples: Array, gaps: Array, count: int, columns: Array, used: Array
) -> Relation:
    """Write a relation in the units of the table, with the gaps of the `count` rows that are farthest off."""
    scale = columns.std(axis=0)
    follows, others = int(used[place]), used[parts]
    coefficients = np.zeros(columns.shape[1])
    coefficients[follows] = 1.0
    coefficients[others] = -multiples * scale[follows] / scale[others]
    farthest = np.argsort(-np.abs(gaps), kind="stable")[:count]
    only = np.zeros(len(gaps))
    only[farthest] = gaps[farthest] * scale[follows]
    places = (*sorted(int(other) for other in others), follows)
    return Relation(places, coefficients, float(columns.mean(axis=0) @ coefficients), only)
