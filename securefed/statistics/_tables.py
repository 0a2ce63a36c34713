"""Histograms and contingency tables, and missing values: numbers of rows, counted exactly.

Each party adds its own counts to one secure sum (`Statistic` in _base.py). Each tensor of the sum is declared with its
largest entry at one party, and its sensitivity: the largest L2 norm of what one row adds. Exact defences sum in fixed
point; where its error is below one half, rounding gives the exact counts. With noise, counts are estimates.

In each class `tensors` declares what is summed, `_within` says which rows are allowed by the declaration (for a table,
those with known codes), `_summand` computes one party's counts, and `_value` the table and the bound on its error.
Small cells are left out of the value (`_suppression`): `detail["suppressed"]` says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from securefed._hyperparameters import check_integer, checked_integers
from securefed._tensors import Array
from securefed.errors import ConfigError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._base import Statistic, check_table
from securefed.statistics._bins import LEAST_CELL, Binned
from securefed.statistics._columns import Level, Wanted, checked_levels, checked_names
from securefed.statistics._estimate import Labels, Sums
from securefed.statistics._moments import counted, details
from securefed.statistics._suppression import small_cells


@dataclass(frozen=True)
class MissingValues(Statistic):
    """Number of rows without a value, of each column; the value has shape (features,).

    `detail["present"]` is the number of rows with one. Under noise a value is a difference of two sums, `count` and
    `present`, so that the variances of both (`Estimate.noise`) add up. A number that is not finite counts as missing.
    Columns may be of any type.

    Attributes:
        features: number of columns, where they have no names.
        rows: most rows of one party.
        columns: names of the columns, read from tables with named columns.

    Raises:
        ConfigError: a number outside its domain.
    """

    by_column: ClassVar[bool] = True

    features: int = 1
    rows: int = 2**20
    columns: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "columns", checked_names(self.columns))
        object.__setattr__(self, "features", len(self.columns) or self.features)
        check_integer("features", self.features, 1)
        check_integer("rows", self.rows, 1)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the count, and the rows with a value in each column."""
        rows, root = float(self.rows), math.sqrt(self.features)
        present = SummedTensor("present", (self.features,), rows, sensitivity=root)
        return (*counted(self.rows, self.features, entries=False), present)

    def _wanted(self) -> tuple[Wanted, ...]:
        return tuple(Wanted(name, presence=True) for name in self.columns)

    def _refusing(self) -> str:
        return ""  # no row is refused

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, self.features, self.rows)

    def _kept(self, x: Array, y: Array | None) -> Array:
        return np.ones(len(x), bool)

    def _within(self, x: Array, y: Array | None) -> Array:
        return np.ones(x.shape, bool)

    def _declared(self) -> str:
        return "any entries"

    def _labels(self, value: Array) -> Labels:
        return (self.columns or tuple(f"column {at}" for at in range(self.features)),)

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        present = np.count_nonzero(np.isfinite(x), axis=0).astype(np.float64)
        return {"count": np.asarray(float(len(x))), "present": present}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        present, error = whole(sums, "present")
        value = sums.total["count"] - present
        return value, np.full(value.shape, error + sums.error["count"]), {"present": present}


@dataclass(frozen=True)
class Histogram(Binned):
    """Number of rows in each bin, of each column; the value has shape (features, bins).

    Attributes:
        edges: ascending edges of the bins, the same for each column, or a mapping from names of columns to the edges of
            each, all of one number. Bins are closed below and open above, the last one closed; entries outside are not
            counted in any bin.
        features: number of columns, where they have no names.
        rows: most rows of one party.
        least_cell: bins with fewer rows are left out of the value, NaN, with a second one of the column; 1 for none.
        columns: names of the columns, read from tables with named columns.

    Raises:
        ConfigError: edges that are no numbers or do not ascend, or a number outside its domain.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({len(edges) for edges in self.edges_by_column}) > 1:
            raise ConfigError("all columns of one histogram have as many bins; take a Histogram each for Together")

    @property
    def _bins(self) -> tuple[int, ...]:
        return self.features, len(self.edges_by_column[0]) - 1

    def _labels(self, value: Array) -> Labels:
        columns = self._column_labels()
        of_all, edges = self.edges_by_column, self.edges_by_column[0]
        if len(set(of_all)) > 1:
            return columns, tuple(f"bin {at}" for at in range(len(edges) - 1))
        closing = [")"] * (len(edges) - 2) + ["]"]
        return columns, tuple(f"[{a:g}, {b:g}{end}" for (a, b), end in zip(pairwise(edges), closing, strict=True))

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        bins = [np.histogram(c[~np.isnan(c)], edges)[0] for c, edges in zip(x.T, self.edges_by_column, strict=True)]
        return numbers_of_rows(self, x) | {"bins": np.stack(bins).astype(np.float64)}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        value, error, detail = _counts(sums, "bins", self.least_cell, (1,))
        return value, error, {**detail, **details(sums)}


@dataclass(frozen=True)
class ContingencyTable(Statistic):
    """Number of rows with each combination of codes; the value has the shape `levels`.

    Attributes:
        levels: number of codes of each column; codes are 0, 1, ... A 2 x 3 table has levels=(2, 3). Or a mapping from
            names of columns to the levels of each, texts or numbers, which all parties agree on once, in the terms:
            levels={"ward": ("icu", "surgery"), "sex": ("f", "m")}.
        rows: most rows of one party.
        least_cell: cells with fewer rows are left out of the value, NaN, with a second one of each line; 1 for none.
        columns: names of the columns, where `levels` does not name them.
        names: for each column the names of its levels, set from `levels`.

    Raises:
        ConfigError: a number outside its domain, or levels that are not different.
    """

    levels: Any
    rows: int = 2**20
    least_cell: int = field(default=LEAST_CELL, kw_only=True)
    columns: tuple[str, ...] = field(default=(), kw_only=True)
    names: tuple[tuple[Level, ...], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("least_cell", self.least_cell, 1)
        check_integer("rows", self.rows, 1)
        if isinstance(self.levels, Mapping):
            names = tuple(checked_levels(name, found) for name, found in self.levels.items())
            object.__setattr__(self, "columns", checked_names(tuple(self.levels)))
            object.__setattr__(self, "names", names)
            object.__setattr__(self, "levels", tuple(map(len, names)))
        object.__setattr__(self, "levels", checked_integers("levels", self.levels))  # a list becomes a tuple
        if self.names and tuple(map(len, self.names)) != self.levels:
            raise ConfigError(f"names of levels {self.names} do not fit levels={self.levels}; give levels by name")

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the count and the cells; one row is in one cell."""
        rows = float(self.rows)
        return (
            SummedTensor("count", (), rows, sensitivity=1.0),
            SummedTensor("cells", self.levels, rows, sensitivity=1.0),
        )

    def _wanted(self) -> tuple[Wanted, ...]:
        if not self.names:
            return super()._wanted()
        return tuple(Wanted(name, levels) for name, levels in zip(self.columns, self.names, strict=True))

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, len(self.levels), self.rows, of=" of codes")

    def _within(self, x: Array, y: Array | None) -> Array:
        return np.asarray(((x == np.rint(x)) & (x >= 0) & (x < np.asarray(self.levels))).all(1))

    def _declared(self) -> str:
        if self.names:
            return f"levels are {dict(zip(self.columns, self.names, strict=True))}"
        return f"codes are whole numbers from 0 to below {self.levels}, column by column"

    def _labels(self, value: Array) -> Labels:
        if self.names:
            return tuple(tuple(map(str, levels)) for levels in self.names)
        return super()._labels(value)

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        cells = np.ravel_multi_index(tuple(x.astype(np.int64).T), self.levels)
        table = np.bincount(cells, minlength=math.prod(self.levels)).reshape(self.levels)
        return {"count": np.asarray(float(len(x))), "cells": table.astype(np.float64)}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        return _counts(sums, "cells", self.least_cell, tuple(range(len(self.levels))))


def numbers_of_rows(statistic: Statistic, x: Array) -> dict[str, Array]:
    """Return the tensors of `counted`, from rows whose omitted entries are NaN."""
    out = {"count": np.asarray(float(len(x)))}
    if statistic.outliers == "omit entries":
        out["counts"] = np.count_nonzero(~np.isnan(x), axis=0).astype(np.float64)
    return out


def whole(sums: Sums, name: str) -> tuple[Array, float]:
    """Return counts, exact where the error of fixed point is below one half, and the bound on their error."""
    value, error = sums.total[name], float(sums.error[name])
    return (np.rint(value), 0.0) if error < 0.5 and not sums.noised else (value, error)


def _counts(sums: Sums, name: str, least: int, lines: tuple[int, ...]) -> tuple[Array, Array, dict[str, Array]]:
    """Round counts to whole numbers where the error of fixed point is below one half, and leave small ones out.

    Rounded so, counts are exact. Under noise nothing is left out, as noise hides single rows from the server too.
    """
    value, error = whole(sums, name)
    if sums.noised:
        return value, np.full(value.shape, error), {}
    hidden = small_cells(value, least, lines)
    return np.where(hidden, np.nan, value), np.full(value.shape, error), {"suppressed": hidden}
