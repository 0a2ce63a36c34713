"""Histograms and contingency tables: numbers of rows, counted exactly.

Each party adds its own counts to one secure sum (`Statistic` in _base.py). Each tensor of the sum is declared with its
largest entry at one party, and its sensitivity: the largest L2 norm of what one row adds. Exact defences sum in fixed
point; where its error is below one half, rounding gives the exact counts. With noise, counts are estimates.

In each class `tensors` declares what is summed, `_within` says which rows are allowed by the declaration (for a table,
those with known codes), `_summand` computes one party's counts, and `_value` the table and the bound on its error.
Small cells are left out of the value (`_suppression`): `detail["suppressed"]` says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from securefed._hyperparameters import check_integer, checked_integers
from securefed._tensors import Array
from securefed.errors import ConfigError
from securefed.parties._summed_tensor import SummedTensor
from securefed.statistics._base import Statistic, Sums, check_table
from securefed.statistics._suppression import small_cells

LEAST_CELL: Final = 5
"""Fewest rows of a cell that the value of a table shows."""


@dataclass(frozen=True)
class Histogram(Statistic):
    """Number of rows in each bin, of each column; the value has shape (features, bins).

    Attributes:
        edges: ascending edges of the bins, the same for each column. Bins are closed below and open above, the last one
            closed; entries outside are not counted in any bin.
        features: number of columns.
        rows: most rows of one party.
        least_cell: bins with fewer rows are left out of the value, NaN, with a second one of the column; 1 for none.

    Raises:
        ConfigError: edges that are no numbers or do not ascend, or a number outside its domain.
    """

    edges: tuple[float, ...]
    features: int = 1
    rows: int = 2**20
    least_cell: int = field(default=LEAST_CELL, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("least_cell", self.least_cell, 1)
        numbers = isinstance(self.edges, list | tuple | np.ndarray) and all(
            isinstance(e, int | float | np.number) and type(e) is not bool for e in self.edges
        )
        if not numbers or len(self.edges) < 2 or not all(a < b for a, b in pairwise(self.edges)):
            raise ConfigError(f"edges must be at least two ascending numbers; got {self.edges!r}")
        check_integer("features", self.features, 1)
        check_integer("rows", self.rows, 1)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the count and the bins of each column; one row is in one bin of each column."""
        shape, rows = (self.features, len(self.edges) - 1), float(self.rows)
        return (
            SummedTensor("count", (), rows, sensitivity=1.0),
            SummedTensor("bins", shape, rows, sensitivity=math.sqrt(self.features)),
        )

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, self.features, self.rows)

    def _within(self, x: Array, y: Array | None) -> Array:
        return np.ones(len(x), bool)

    def _declared(self) -> str:
        return "any finite entries"

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        bins = np.stack([np.histogram(column, self.edges)[0] for column in x.T]).astype(np.float64)
        return {"count": np.asarray(float(len(x))), "bins": bins}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        return _counts(sums, "bins", self.least_cell, (1,))


@dataclass(frozen=True)
class ContingencyTable(Statistic):
    """Number of rows with each combination of codes; the value has the shape `levels`.

    Attributes:
        levels: number of codes of each column; codes are 0, 1, ... A 2 x 3 table has levels=(2, 3).
        rows: most rows of one party.
        least_cell: cells with fewer rows are left out of the value, NaN, with a second one of each line; 1 for none.

    Raises:
        ConfigError: a number outside its domain.
    """

    levels: tuple[int, ...]
    rows: int = 2**20
    least_cell: int = field(default=LEAST_CELL, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("least_cell", self.least_cell, 1)
        object.__setattr__(self, "levels", checked_integers("levels", self.levels))  # a list becomes a tuple
        check_integer("rows", self.rows, 1)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the count and the cells; one row is in one cell."""
        rows = float(self.rows)
        return (
            SummedTensor("count", (), rows, sensitivity=1.0),
            SummedTensor("cells", self.levels, rows, sensitivity=1.0),
        )

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, len(self.levels), self.rows, of=" of codes")

    def _within(self, x: Array, y: Array | None) -> Array:
        return np.asarray(((x == np.rint(x)) & (x >= 0) & (x < np.asarray(self.levels))).all(1))

    def _declared(self) -> str:
        return f"codes are whole numbers from 0 to below {self.levels}, column by column"

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        cells = np.ravel_multi_index(tuple(x.astype(np.int64).T), self.levels)
        table = np.bincount(cells, minlength=math.prod(self.levels)).reshape(self.levels)
        return {"count": np.asarray(float(len(x))), "cells": table.astype(np.float64)}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        return _counts(sums, "cells", self.least_cell, tuple(range(len(self.levels))))


def _counts(sums: Sums, name: str, least: int, lines: tuple[int, ...]) -> tuple[Array, Array, dict[str, Array]]:
    """Round counts to whole numbers where the error of fixed point is below one half, and leave small ones out.

    Rounded so, counts are exact. Under noise nothing is left out, as noise hides single rows from the server too.
    """
    value, error = sums.total[name], sums.error[name]
    if sums.noised:
        return value, np.full(value.shape, error), {}
    if error < 0.5:
        value, error = np.rint(value), 0.0
    hidden = small_cells(value, least, lines)
    return np.where(hidden, np.nan, value), np.full(value.shape, error), {"suppressed": hidden}
