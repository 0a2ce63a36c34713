"""Statistics that count each column's entries in the bins of a public grid."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._tensors import Array
from securefed.errors import ConfigError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._base import Statistic, check_table
from securefed.statistics._columns import checked_names
from securefed.statistics._moments import counted

LEAST_CELL: Final = 5
"""Fewest rows of a cell that the value of a table shows."""
Edges = tuple[float, ...]


@dataclass(frozen=True)
class Binned(Statistic):
    """A statistic that follows from the numbers of entries in bins.

    Attributes:
        edges: ascending edges of the bins, the same for each column, or a mapping from names of columns to the edges of
            each.
        features: number of columns, where they have no names.
        rows: most rows of one party.
        least_cell: fewest rows of what the value shows; 1 for any.
        columns: names of the columns, read from tables with named columns.

    Raises:
        ConfigError: edges that are no numbers or do not ascend, or a number outside its domain.
    """

    by_column: ClassVar[bool] = True

    edges: Any
    features: int = 1
    rows: int = 2**20
    least_cell: int = field(default=LEAST_CELL, kw_only=True)
    columns: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("least_cell", self.least_cell, 1)
        check_integer("features", self.features, 1)
        check_integer("rows", self.rows, 1)
        edges, names = self.edges, self.columns
        if isinstance(edges, Mapping):
            edges, names = tuple(edges.values()), tuple(edges)
        object.__setattr__(self, "columns", checked_names(names))
        object.__setattr__(self, "features", len(self.columns) or self.features)
        ragged = isinstance(edges, list | tuple) and len(edges) > 0 and isinstance(edges[0], list | tuple | np.ndarray)
        if ragged and len(edges) != self.features:
            raise ConfigError(f"edges are given for {len(edges)} columns, and there are {self.features}")
        object.__setattr__(self, "edges", tuple(map(_checked, edges)) if ragged else _checked(edges))

    @property
    def edges_by_column(self) -> tuple[Edges, ...]:
        """Edges of each column."""
        return tuple(self.edges) if isinstance(self.edges[0], tuple) else (self.edges,) * self.features

    @property
    @abstractmethod
    def _bins(self) -> tuple[int, ...]:
        """Shape of the counts of all columns."""

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the count and the bins of all columns; one row is in one bin of each column."""
        bins = SummedTensor("bins", self._bins, float(self.rows), sensitivity=math.sqrt(self.features))
        return (*counted(self.rows, self.features, entries=self.outliers == "omit entries"), bins)

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, self.features, self.rows)

    def _within(self, x: Array, y: Array | None) -> Array:
        return np.ones(x.shape, bool)

    def _declared(self) -> str:
        return "any finite entries"

    def _column_labels(self) -> tuple[str, ...]:
        return self.columns or tuple(f"column {at}" for at in range(self.features))


def _checked(edges: Any) -> Edges:
    numbers = isinstance(edges, list | tuple | np.ndarray) and all(
        isinstance(e, int | float | np.number) and type(e) is not bool for e in edges
    )
    if not numbers or len(edges) < 2 or not all(a < b for a, b in pairwise(edges)):
        raise ConfigError(f"edges must be at least two ascending numbers; got {edges!r}")
    return tuple(map(float, edges))
