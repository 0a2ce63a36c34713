"""Tests of equal means (Welch's and Student's t, analysis of variance) and of independence (chi-square), from one sum.

With n_g, m_g and v_g the rows, the mean and the variance of group g, of k groups:

    Welch      t = (m_1 - m_2) / sqrt(v_1 / n_1 + v_2 / n_2), degrees of freedom by Welch and Satterthwaite
    Student    the same with the pooled variance, and n_1 + n_2 - 2 degrees
    ANOVA      F = sum_g n_g (m_g - m)^2 / (k - 1) / (sum_g (n_g - 1) v_g / (n - k))
    chi-square sum (observed - expected)^2 / expected,  expected = row total times column total / n

A test of groups with few rows would state their values. So a column with a group of fewer rows than `least_cell` has no
test (NaN), and levels of a contingency table are merged, the smallest first, until no cell is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._tensors import Array
from securefed.errors import ConfigError, DataError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._base import Statistic
from securefed.statistics._bins import LEAST_CELL
from securefed.statistics._bounded import Bounded
from securefed.statistics._columns import Level, Wanted
from securefed.statistics._estimate import Labels, Sums
from securefed.statistics._fitted import two_sided
from securefed.statistics._grouped import GroupBy
from securefed.statistics._moments import Variance, entries_of
from securefed.statistics._tables import ContingencyTable, whole

_AXES: Final = 2


@dataclass(frozen=True)
class _OfGroups(Statistic):
    """A test of the means of groups, for each column.

    Attributes:
        bound: largest absolute entry of each column, as in `Mean`.
        by: name of the column of groups; in arrays the last column, of codes.
        levels: the groups, which all parties agree on.
        rows: most rows of one party.
        features: number of columns, where they have no names.
        shift: subtracted from every row, as in `Mean`.
        columns: names of the columns, where `bound` does not name them.
        least_cell: fewest rows of a group; 2 for any.

    Raises:
        ConfigError: as `Variance` and `GroupBy`.
    """

    by_column = True

    bound: Any
    by: str
    levels: tuple[Level, ...]
    rows: int = 2**20
    features: int = 1
    shift: float | tuple[float, ...] = 0.0
    columns: tuple[str, ...] = field(default=(), kw_only=True)
    least_cell: int = field(default=LEAST_CELL, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("least_cell", self.least_cell, 2)
        made = self._grouped()
        object.__setattr__(self, "levels", made.levels)
        for name in ("bound", "shift", "columns", "features"):
            object.__setattr__(self, name, getattr(made.statistic, name))

    def _grouped(self) -> GroupBy:
        """Return the statistic whose sums the test reads."""
        of_columns = Variance(
            self.features, self.bound, self.rows, self.shift, columns=self.columns, outliers=self.outliers
        )
        return GroupBy(of_columns, self.by, self.levels, least_cell=1)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, and rows, sum and sum of squares of each group."""
        return self._grouped().tensors()

    def _scales(self) -> Mapping[str, float | Array]:
        return self._grouped()._scales()

    def _wanted(self) -> tuple[Wanted, ...]:
        return self._grouped()._wanted()

    def _check(self, x: Array, y: Array | None) -> None:
        self._grouped()._check(x, y)

    def _within(self, x: Array, y: Array | None) -> Array:
        return self._grouped()._within(x, y)

    def _declared(self) -> str:
        return self._grouped()._declared()

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        return self._grouped()._summand(x, y)

    def _labels(self, value: Array) -> Labels:
        return (self.columns or tuple(f"column {at}" for at in range(self.features)),)

    def _groups(self, sums: Sums) -> tuple[Bounded, Bounded, Bounded, Array]:
        """Return rows, means (less the shift) and variances, (groups, features), and where a group is too small."""
        grouped = self._grouped()
        inner = grouped.statistic
        assert isinstance(inner, Variance)
        parts = []
        for at in range(len(self.levels)):
            own = grouped._sums(sums, at)
            rows = entries_of(own)
            mean, second = inner._means(own, "sum", "squares")
            spread = (second - mean * mean) * rows / Bounded(np.maximum(rows.value - 1, 1.0), rows.error)
            parts.append((rows, mean, spread))
        made = [
            Bounded(
                np.stack([np.broadcast_to(part[at].value, self.features) for part in parts]),
                np.stack([np.broadcast_to(part[at].error, self.features) for part in parts]),
            )
            for at in range(3)
        ]
        small = made[0].value < (2 if sums.noised else self.least_cell)
        return made[0], made[1], made[2], np.asarray(small.any(0))


@dataclass(frozen=True)
class TTest(_OfGroups):
    """t test of equal means of two groups, for each column; the value has shape (features,), t.

    `detail` holds `p`, `degrees`, the `means` and the `rows` of the groups, and where a column is `suppressed`.

    Attributes:
        equal_variances: whether the groups' variances are taken as equal (Student's test); Welch's test by default.
    """

    equal_variances: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.levels) != _AXES:
            raise ConfigError(f"TTest compares two groups; got {len(self.levels)} levels. Take ANOVA for more")

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        rows, mean, spread, small = self._groups(sums)
        (first, second), difference = _rows_of(spread / rows), _rows_of(mean)[0] - _rows_of(mean)[1]
        one, two = rows.value
        degrees = one + two - 2
        error = first + second
        if self.equal_variances:
            sizes, spreads = _rows_of(rows - 1.0), _rows_of(spread)
            pooled = (spreads[0] * sizes[0] + spreads[1] * sizes[1]) / (sizes[0] + sizes[1])
            of_each = _rows_of(rows)
            error = pooled / of_each[0] + pooled / of_each[1]
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                degrees = error.value**2 / (first.value**2 / (one - 1) + second.value**2 / (two - 1))
        t = difference / error.sqrt()
        value = np.where(small, np.nan, t.value)
        p = np.array([two_sided(each, df) for each, df in zip(value, degrees, strict=True)])
        detail = {"p": p, "degrees": np.where(small, np.nan, degrees), **_described(self, rows, mean, small)}
        return value, np.where(small, np.inf, t.error), detail


@dataclass(frozen=True)
class ANOVA(_OfGroups):
    """One-way analysis of variance of groups, for each column; the value has shape (features,), F.

    `detail` holds `p`, `degrees` (between, within), the `means` and the `rows` of the groups, and where a column is
    `suppressed`.
    """

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        from scipy.special import fdtrc  # noqa: PLC0415 - loads SciPy

        rows, mean, spread, small = self._groups(sums)
        groups = range(len(self.levels))
        sizes, means, spreads = _rows_of(rows), _rows_of(mean), _rows_of(spread)
        total, weighted = sizes[0], sizes[0] * means[0]
        for group in groups[1:]:
            total, weighted = total + sizes[group], weighted + sizes[group] * means[group]
        overall = weighted / total
        nothing = Bounded(np.zeros(self.features), np.zeros(self.features))
        between, within = nothing, nothing
        for group in groups:
            apart = means[group] - overall
            between = between + sizes[group] * apart * apart
            within = within + (sizes[group] - 1.0) * spreads[group]
        numerator = len(groups) - 1.0
        denominator = total - float(len(groups))
        found = (between / numerator) / (within / denominator)
        value = np.where(small, np.nan, found.value)
        degrees = np.stack([np.full(self.features, numerator), denominator.value])
        p = fdtrc(numerator, denominator.value, value)
        detail = {"p": np.asarray(p), "degrees": degrees, **_described(self, rows, mean, small)}
        return value, np.where(small, np.inf, found.error), detail


@dataclass(frozen=True)
class ChiSquare(ContingencyTable):
    """Chi-square test of independence of two columns of categories; the value, of shape (), is the statistic.

    `detail` holds `p`, `degrees`, and `merged_0` and `merged_1`: for each level of the first and the second column, the
    number of the merged level that it is part of. Levels are merged where a cell has fewer than `least_cell` rows.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.levels) != _AXES:
            raise ConfigError(f"ChiSquare compares two columns; got levels of {len(self.levels)}")

    def _labels(self, value: Array) -> Labels:
        return ()

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        from scipy.special import chdtrc  # noqa: PLC0415 - loads SciPy

        counts, error = whole(sums, "cells")
        table, merged = _without_small(counts, 1 if sums.noised else self.least_cell)
        if min(table.shape) < _AXES:
            raise DataError(
                f"no two levels of each column are left with {self.least_cell} rows in each cell; agree on coarser "
                "levels, on more rows, or on least_cell"
            )
        expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
        value = np.asarray(float(((table - expected) ** 2 / expected).sum()))
        degrees = (table.shape[0] - 1) * (table.shape[1] - 1)
        detail = {"p": np.asarray(chdtrc(degrees, value)), "degrees": np.asarray(float(degrees))}
        detail |= {f"merged_{axis}": places.astype(np.float64) for axis, places in enumerate(merged)}
        return value, np.asarray(0.0 if error == 0 else np.nan), detail


def _rows_of(number: Bounded) -> list[Bounded]:
    """Return the rows of a matrix."""
    return [Bounded(value, error) for value, error in zip(number.value, number.error, strict=True)]


def _described(test: _OfGroups, rows: Bounded, mean: Bounded, small: Array) -> dict[str, Array]:
    """Return the groups' means and rows, NaN where a column is suppressed."""
    means = mean.value + np.asarray(test.shift)
    shown = {"means": means, "rows": rows.value}
    return {name: np.where(small, np.nan, one) for name, one in shown.items()} | {"suppressed": small}


def _without_small(table: Array, least: int) -> tuple[Array, list[Array]]:
    """Merge levels, the smallest first, until no cell is small; of two axes the one with more levels.

    Levels without any row are merged too, since nothing is expected in their cells.
    """
    merged = [np.arange(length) for length in table.shape]
    while min(table.shape) > 1 and (
        ((table > 0) & (table < least)).any() or not table.sum(0).all() or not table.sum(1).all()
    ):
        axis = int(np.argmax(table.shape))
        empty = [axis for axis in (0, 1) if not table.sum(1 - axis).all()]
        axis = empty[0] if empty else axis
        smallest, other = np.sort(np.argsort(table.sum(1 - axis), kind="stable")[:2])
        table = np.moveaxis(table, axis, 0).copy()
        table[smallest] += table[other]
        table = np.moveaxis(np.delete(table, other, axis=0), 0, axis)
        places = np.where(merged[axis] == other, smallest, merged[axis])
        merged[axis] = places - (places > other)
    return table, merged
