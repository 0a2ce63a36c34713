"""Read the columns that a statistic needs, by name, and the public bounds of each.

A table with named columns (a file's `Table`, a data frame of pandas, Polars or Arrow, or a mapping from names to
values) is read by the package's one reader of tables. A column with agreed levels becomes codes 0, 1, ...; a level that
was not agreed is named. Arrays have no names: their columns are taken in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._hyperparameters import check_number, check_positive
from securefed._tensors import Array
from securefed.datasets._tables.columns import Column, clean, typed
from securefed.datasets._tables.frames import is_frame, real_rows, table_of
from securefed.datasets._tables.table import Table
from securefed.errors import ConfigError, DataError

Level = str | int | float | bool
UNSEEN = -1.0
"""Code of a level that was not agreed."""


@dataclass(frozen=True)
class Wanted:
    """A column that a statistic reads.

    Attributes:
        name: its name.
        levels: the agreed levels of a category; empty for a column of numbers.
        presence: whether only the presence of a value counts, of whatever type: 0, or NaN where it is missing.
    """

    name: str
    levels: tuple[Level, ...] = ()
    presence: bool = False


@dataclass(frozen=True)
class ColumnBounds:
    """Public bounds of columns: |x_c - shift_c| <= bound_c.

    Attributes:
        columns: names; empty where columns have none.
        bound: largest absolute entry after the shift, one number, or one for each column.
        shift: subtracted from every row, one number, or one for each column.
    """

    columns: tuple[str, ...]
    bound: float | tuple[float, ...]
    shift: float | tuple[float, ...]


def has_names(x: Any) -> bool:
    """Tell whether a value is a table with named columns."""
    return is_frame(x) or isinstance(x, Table | Mapping)


def read_columns(x: Any, wanted: Sequence[Wanted], *, refuse: bool) -> Array:
    """Return rows as (rows, columns) float64, NaN where a value is missing.

    Args:
        x: a table with named columns, or an array, whose columns are in order.
        wanted: the columns; where there are none, all columns of the table.
        refuse: whether a level that was not agreed is refused; its code is `UNSEEN` otherwise.

    Raises:
        DataError: a column is lacking or holds no numbers, or a level that was not agreed.
    """
    if isinstance(x, Mapping):
        x = Table("the mapping", tuple(typed(clean(str(name)), "column", _listed(v)) for name, v in x.items()))
    if not wanted or not has_names(x):
        rows = np.atleast_1d(np.asarray(real_rows(x, "x"), np.float64))
        return rows[:, None] if rows.ndim == 1 else rows
    table = x if isinstance(x, Table) else table_of(x)
    return np.column_stack([_read(table, one, refuse) for one in wanted]).astype(np.float64)


def _read(table: Table, wanted: Wanted, refuse: bool) -> Array:
    """Return one column as (rows,) numbers."""
    column = table.column(wanted.name)
    if wanted.presence:
        finite = np.isfinite(column.values) if column.kind == "real" else np.ones(column.rows, bool)
        return np.where(finite & ~column.missing, 0.0, np.nan)
    if wanted.levels:
        return codes(column, wanted.levels, refuse=refuse)
    return table.select([wanted.name]).matrix(missing=True, advice="; a category is declared by its levels")[:, 0]


def codes(column: Column, levels: tuple[Level, ...], *, refuse: bool) -> Array:
    """Return the places of a column's values among the agreed levels, NaN where a value is missing.

    Levels that are all numbers are compared as numbers (1 and 1.0 are one), others as texts.

    Raises:
        DataError: a level that was not agreed, where these are refused.
    """
    numeric = not any(isinstance(level, str) for level in levels) and column.kind not in ("text", "other")
    values = column.real() if numeric else np.array(column.texts, object)
    known = [float(level) if numeric else clean(str(level)) for level in levels]
    out = np.full(column.rows, UNSEEN)
    for code, level in enumerate(known):
        out[values == level] = code
    out[column.missing] = np.nan
    unseen = sorted({str(column.texts[int(row)]) for row in np.flatnonzero(out == UNSEEN)})
    if unseen and refuse:
        raise DataError(
            f"column {column.name!r} holds {_listing(unseen)} in {np.count_nonzero(out == UNSEEN)} of {len(out)} rows, "
            f"and the agreed levels are {_listing(levels)}; agree on levels that hold these, alike at all parties, or "
            "leave such rows out of all sums with outliers='omit'"
        )
    return out


def checked_levels(name: str, levels: Any) -> tuple[Level, ...]:
    """Return the levels of a category as a tuple of texts and numbers.

    Raises:
        ConfigError: they are not at least two different texts or numbers.
    """
    fits = isinstance(levels, list | tuple) and all(isinstance(level, str | int | float) for level in levels)
    if not fits or len({clean(str(level)) for level in levels}) < len(levels) or len(levels) < 2:
        raise ConfigError(f"levels of {name!r} must be a list of at least two different texts or numbers; got {levels}")
    return tuple(levels)


def checked_bounds(bound: Any, shift: Any, columns: Any, features: int, *, what: str = "bound") -> ColumnBounds:
    """Return bounds in one form.

    Args:
        bound: largest absolute entry; one number, one for each column, or a mapping from the names of columns to
            numbers or to pairs of the lowest and the highest value, which set the shift too.
        shift: one number, or one for each column.
        columns: names of the columns, empty for none.
        features: number of columns, where they have no names.
        what: name of the setting, for errors.

    Raises:
        ConfigError: a bound that is no positive number, or of another number of columns.
    """
    names = checked_names(columns)
    if isinstance(bound, Mapping):
        if names and set(names) != set(bound):
            raise ConfigError(f"{what} names {sorted(bound)}, and the columns are {sorted(names)}; name the same ones")
        names = names or checked_names(tuple(bound))
        pairs = [_range(f"{what} of {name!r}", bound[name]) for name in names]
        if any(middle for middle, _ in pairs) and np.any(shift):
            raise ConfigError(f"{what} gives ranges, which set the shift; leave shift out")
        if any(middle for middle, _ in pairs):
            shift = tuple(middle for middle, _ in pairs)
        bound = tuple(half for _, half in pairs)
    if names and features not in (1, len(names)):
        raise ConfigError(f"features={features}, and there are {len(names)} names of columns; leave features out")
    width = len(names) or features
    checked = _checked(what, bound, width, check_positive)
    return ColumnBounds(names, checked, _checked("shift", shift, width, check_number))


def _checked(name: str, value: Any, width: int, check: Any) -> float | tuple[float, ...]:
    """Return one number, or one for each column, as Python's own numbers."""
    if np.ndim(value) and np.shape(value) != (width,):
        raise ConfigError(f"{name} must be one number or {width}, one for each column; got {np.size(value)}")
    for number in np.ravel(np.asarray(value, object)):
        check(name, number)
    return tuple(float(number) for number in value) if np.ndim(value) else float(value)


def checked_names(columns: Any) -> tuple[str, ...]:
    """Return the names of columns as a tuple; raise `ConfigError` unless they are different texts."""
    if isinstance(columns, str) or not isinstance(columns, list | tuple):
        raise ConfigError(f"columns must be a list of names, such as ['age', 'dose']; got {columns!r}")
    if not all(isinstance(name, str) for name in columns) or len(set(columns)) < len(columns):
        raise ConfigError(f"columns must be different names; got {columns!r}")
    return tuple(columns)


def power_of_two(size: float) -> float:
    """Return the least power of two that is at least `size`: dividing by it is exact."""
    return 2.0 ** math.ceil(math.log2(size))


def checked_range(what: str, given: Any) -> tuple[float, float]:
    """Return the lowest and the highest value of a bound; raise `ConfigError` for what is none."""
    middle, half = _range(what, given)
    return middle - half, middle + half


def _range(what: str, given: Any) -> tuple[float, float]:
    """Return the middle and the half width of a range, or 0 and the bound itself."""
    if not isinstance(given, list | tuple):
        check_positive(what, given)
        return 0.0, float(given)
    if len(given) != 2:
        raise ConfigError(f"{what} must be a number, or the lowest and the highest value; got {given!r}")
    for number in given:
        check_number(what, number)
    if not given[0] < given[1]:
        raise ConfigError(f"{what}: the lowest value comes first, and is below the highest; got {given!r}")
    middle = (given[0] + given[1]) / 2
    return middle, max(given[1] - middle, middle - given[0])


def _listed(values: Any) -> Any:
    return values if isinstance(values, np.ndarray) else list(values)


def _listing(values: Sequence[Any]) -> str:
    """Name the first values, and how many more there are."""
    shown = ", ".join(map(repr, values[:6]))
    return shown + (f" and {len(values) - 6} more" if len(values) > 6 else "")
