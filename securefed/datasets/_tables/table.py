"""A table as it was read: named columns of one type each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from securefed._shape_repr import ShapeRepr
from securefed._tensors import Array
from securefed.datasets._tables.columns import Column
from securefed.errors import DataError

SHOWN: Final = 6
"""Columns and classes that a line names; of more, it says how many there are."""


@dataclass(frozen=True, eq=False, repr=False)
class Table(ShapeRepr):
    """Named columns of equally many rows.

    Attributes:
        source: name of the file, or "the data frame", for errors.
        columns: the columns, in their order.
        form: how a text table is written, in words; empty for others.

    Raises:
        DataError: no row or no column, or two columns of one name.
    """

    source: str
    columns: tuple[Column, ...]
    form: str = ""

    def __post_init__(self) -> None:
        if not self.columns or not self.rows:
            raise DataError(f"{self.source} holds no rows")
        names = [column.name for column in self.columns]
        if twice := [name for name, count in Counter(names).items() if name and count > 1]:
            places = [str(at) for at, name in enumerate(names, 1) if name == twice[0]]
            raise DataError(
                f"{self.source} has {len(places)} columns named {twice[0]!r} (columns {', '.join(places)}); give each "
                "column a name of its own, or drop all but one"
            )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.columns[0].rows

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def summary(self) -> str:
        """Say in one line what was read: rows, columns and their types."""
        said = [counted(self.rows, "row"), counted(len(self.columns), "column") + named(self.columns)]
        return f"{Path(self.source).name}: {'; '.join([*said, *filter(None, [self.form])])}"

    def column(self, name: str) -> Column:
        """Return a column; raise `DataError` where the table lacks it."""
        if name not in self.names:
            raise DataError(f"{self.source} has no column {name!r}; it has {', '.join(self.names)}")
        return self.columns[self.names.index(name)]

    def select(self, names: Iterable[str]) -> Table:
        """Return the table of these columns, in this order; raise `DataError` where one is lacking."""
        return Table(self.source, tuple(self.column(name) for name in names), self.form)

    def text(self, name: str) -> Array:
        """Return a column as (rows,) texts; raise `DataError` where the table lacks it."""
        return np.array(self.column(name).texts)

    def numbers(self, names: Iterable[str], value: Callable[[str], float] | None = None) -> Array:
        """Return columns as (rows, columns) float64.

        Args:
            names: their names.
            value: reads a text as a number; by default texts must be numbers, and none may be missing.

        Raises:
            DataError: a column is lacking, or holds what is no number.
        """
        if value is None:
            return self.select(names).matrix()
        return np.column_stack([self._read(self.column(name), value) for name in names])

    def integers(self, name: str) -> Array:
        """Return a column as (rows,) whole numbers; raise `DataError` for an entry that is none."""
        column = self.column(name)
        values = column.values
        whole = column.kind in ("integer", "real") and not column.missing.any()
        if not whole or (column.kind == "real" and not (np.isfinite(values) & (values == np.floor(values))).all()):
            raise DataError(f"{self.source}: column {name!r} must hold whole numbers")
        return values.astype(np.int64) if column.kind == "real" else values

    def matrix(self, *, missing: bool = False, advice: str = "") -> Array:
        """Return all columns as (rows, columns) real numbers: float64, or float32 where all columns are.

        Args:
            missing: whether missing values become NaN; they are refused otherwise.
            advice: what to do about other columns, for the error.

        Raises:
            DataError: columns that hold something else, each by name with its type and its first such cell.
        """
        refused = [
            f"{column.name!r} ({column.described()})"
            for column in self.columns
            if column.kind in ("text", "other") or (not missing and column.missing.any())
        ]
        if refused:
            raise DataError(
                f"{self.source}: columns must be numbers, and these hold other cells: {', '.join(refused)}{advice}"
            )
        if beyond := [(c.name, c.inexact()) for c in self.columns if c.inexact() is not None]:
            raise DataError(
                f"{self.source}: column {beyond[0][0]!r} holds {beyond[0][1]}, which float64 does not tell from its "
                "neighbours, as all whole numbers beyond 2^53; leave the column out of the features, or write it in a "
                "larger unit"
            )
        return np.column_stack([column.real() for column in self.columns])

    def _read(self, column: Column, value: Callable[[str], float]) -> Array:
        """Read the texts of a column; raise `DataError` for one that cannot be read."""
        try:
            return np.fromiter(map(value, column.texts), np.float64, self.rows)
        except ValueError as error:
            raise DataError(f"{self.source}: column {column.name!r}: {error}") from error


def named(columns: Sequence[Column]) -> str:
    """Name the first columns with their types, behind a colon, and count those of each type beyond."""
    if not columns:
        return ""
    shown = [f"{column.name!r} {column.kind}" for column in columns[:SHOWN]]
    kinds = [column.kind for column in columns[SHOWN:]]
    more = [f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))]
    return f": {', '.join(shown)}" + (f", and {', '.join(more)}" if more else "")


def counted(count: int, word: str) -> str:
    """Write a number of things."""
    return f"{count} {word}" + ("" if count == 1 else "s")
