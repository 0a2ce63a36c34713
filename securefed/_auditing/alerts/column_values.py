"""The distinct values of a column with their numbers of rows, and what the column may hold: categories, numbers, a key.

Everything is computed from the sorted distinct values, so that the order of the rows changes nothing, not even the
last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from securefed._auditing.alerts.domination import dominating
from securefed._tensors import Array

MOST_LEVELS: Final = 20
"""Most distinct numbers of a column that are taken as codes of categories whatever they are. Ages and counts of visits
have more; of more numbers those with wide gaps between them are taken as codes, as of diagnoses and postal areas."""
_SPARSE: Final = 0.5
"""Share of the possible whole numbers of its range below which a column of many repeated numbers has wide gaps. Ages
and counts take nearly all numbers of their middle, and measurements in steps nearly all of their steps."""
_MIDDLE: Final = 0.05
"""Share of the rows left out at both ends of that range: counts have a long tail of single large numbers."""
_RARER: Final = -0.5
"""Rank correlation of numbers and their rows from which on the larger ones are not rarer. Numbers of visits have -.9,
and numbers of wards about 0."""
KEY_SHARE: Final = 0.95
"""Values for each row from which on a column counts as a key: a patient who comes twice has one number in two rows."""


@dataclass(frozen=True)
class ColumnValues:
    """Distinct values of a column, with the numbers of rows that hold them.

    Attributes:
        values: distinct values in sorted order, gaps left out.
        counts: by value, the number of rows.
        gaps: number of rows without a value.
        numeric: whether all values are numbers.
    """

    values: Array
    counts: Array
    gaps: int
    numeric: bool

    @property
    def rows(self) -> int:
        """Number of rows that have a value."""
        return int(self.counts.sum())

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return self.numeric and bool((self.values == np.floor(self.values)).all())

    def is_key(self, fewest: int) -> bool:
        """Return whether nearly every row has a text or whole number of its own, over more than `fewest` rows."""
        return len(self.values) >= KEY_SHARE * self.rows > KEY_SHARE * fewest and (self.whole or not self.numeric)

    def has_categories(self, fewest: int) -> bool:
        """Return whether the values are categories: texts, two values, or few numbers of at least `fewest` rows each.

        Args:
            fewest: rows of a category that is not rare; a column of numbers has codes where their mean is as large.
        """
        levels = len(self.values)
        if not self.numeric or levels == 2:
            return True
        return levels * fewest <= self.rows and (levels <= MOST_LEVELS or self.sparse or self.numbered)

    @property
    def numbered(self) -> bool:
        """Whether whole numbers run from 0 or 1 on without a gap, as codes do, and do not get rarer as counts do."""
        levels = len(self.values)
        if not self.whole or self.values[0] not in (0, 1) or self.values[-1] - self.values[0] != levels - 1:
            return False
        ranks = np.argsort(np.argsort(self.counts, kind="stable"), kind="stable")
        return levels > 2 and float(np.corrcoef(self.values, ranks)[0, 1]) > _RARER

    @property
    def sparse(self) -> bool:
        """Whether whole numbers have wide gaps between them, in units of their common step, as codes have."""
        if not self.whole or len(self.values) < 3:
            return False
        ranks = np.cumsum(self.counts) / self.rows
        middle = self.values[(ranks > _MIDDLE) & (ranks - self.counts / self.rows < 1 - _MIDDLE)]
        step = float(np.gcd.reduce(np.diff(self.values).astype(np.int64)))
        return len(middle) > 1 and len(middle) < _SPARSE * ((middle[-1] - middle[0]) / step + 1)

    def rare(self, fewest: int, *, categories: bool) -> dict[Any, int]:
        """Return the values of fewer than `fewest` rows, with their numbers of rows.

        Args:
            fewest: rows of a value that is not rare.
            categories: whether every value counts. Otherwise all values but the usual one count together, where fewer
                than `fewest` rows hold another: a sum over this column is then a sum over these rows.
        """
        pairs = zip(self.values.tolist(), self.counts.tolist(), strict=True)
        if categories:
            return {value: count for value, count in pairs if count < fewest}
        usual = int(np.argmax(self.counts))
        if len(self.values) < 2 or self.rows - int(self.counts[usual]) >= fewest:
            return {}
        return {value: count for place, (value, count) in enumerate(pairs) if place != usual}

    def dominating(self, fewest: int) -> tuple[int, float]:
        """Return how many rows dominate the column and their share, as it stands or around its mean; 0 for none.

        Of a category no few rows do: all that have it hold as much.
        """
        if not self.numeric or len(self.values) < 3:
            return 0, 0.0
        scaled = self.values / np.abs(self.values).max()  # so that no sum overflows
        mean = float(self.counts @ scaled) / self.rows
        found = [dominating(values, self.counts, fewest)[:1] for values in (scaled, scaled - mean)]
        return max((one for first in found for one in first), key=lambda one: (-one[0], one[1]), default=(0, 0.0))


def column_values(values: Array) -> ColumnValues:
    """Count the distinct values of a column; texts that are all numbers count as numbers."""
    given = np.asarray(values)
    if given.dtype.kind in "fiub":
        known = given[np.isfinite(given)] if given.dtype.kind == "f" else given
        return _counted(known.astype(np.float64), len(given), numeric=True)
    cells = [cell.strip() if isinstance(cell, str) else cell for cell in given.tolist()]
    present = [cell for cell in cells if not _is_gap(cell)]
    try:
        numbers = np.array([float(cell) for cell in present])
    except (TypeError, ValueError):
        return _counted(np.array([str(cell) for cell in present]), len(cells), numeric=False)
    return _counted(numbers, len(cells), numeric=True)


def _is_gap(cell: Any) -> bool:
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def _counted(known: Array, rows: int, *, numeric: bool) -> ColumnValues:
    found, counts = np.unique(known, return_counts=True)
    return ColumnValues(found, counts, rows - len(known), numeric)
