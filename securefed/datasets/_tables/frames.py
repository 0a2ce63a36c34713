"""Read data frames of pandas, Polars and Arrow, and .parquet files, without importing a library that is not in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from securefed._tensors import Array, real_array
from securefed.datasets._tables.columns import EXACT, Column, TypedColumn, clean, typed
from securefed.datasets._tables.roles import refuse_keys, refuse_row_numbers
from securefed.datasets._tables.table import Table
from securefed.errors import DataError


def is_frame(value: Any) -> bool:
    """Tell whether a value is a data frame of pandas or Polars, or a table of Arrow."""
    return _is_pandas(value) or _is_polars(value) or _is_arrow(value)


def table_of(frame: Any, source: str = "the data frame") -> Table:
    """Read a data frame; an index of pandas is no column.

    Raises:
        DataError: no rows, or two columns of one name.
    """
    return Table(source, tuple(_columns(frame)))


def read_parquet(path: Path) -> Table:
    """Read a .parquet file.

    Raises:
        DataError: there is no such file, it is none, or PyArrow is not installed.
    """
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - optional
    except ImportError as error:
        raise DataError(
            f"cannot read {path}: parquet files need pyarrow; run `pip install pyarrow`, or write the table as .csv"
        ) from error
    if not path.is_file():
        raise DataError(f"cannot read {path}: there is no such file; give the path of a .parquet file")
    try:
        return table_of(parquet.ParquetFile(path).read(), str(path))
    except (OSError, ArrowException) as error:
        raise DataError(f"cannot read {path} as a parquet file: {error}") from error


def real_rows(value: Any, where: str, *, features: bool = False) -> Array:
    """Return rows as an array of real numbers; a frame's columns of floats, integers and truth values are such.

    Args:
        value: an array, nested lists, a torch tensor, a `Table`, or a data frame of pandas, Polars or Arrow.
        where: what it is, for errors.
        features: whether the columns are features, which keys are not.

    Raises:
        DataError: columns that hold something else (a frame's by name, with their types), a column of row numbers, or
            integers that float64 does not hold.
    """
    if is_frame(value) or isinstance(value, Table):
        table = value if isinstance(value, Table) else table_of(value, where)
        refuse_row_numbers(table)
        if features:
            refuse_keys(table)
        return table.matrix(missing=True, advice="; give columns of numbers alone, such as frame[['age', 'dose']]")
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 2:  # columns of a frame
        columns = tuple(typed(str(at), "object", column) for at, column in enumerate(value.T))
        return Table(where, columns).matrix(missing=True)
    array = real_array(_values(value) if _is_series(value) else value, where)
    if array.dtype.kind in "iu" and array.size and (array.max() > EXACT or array.min() < -EXACT):
        beyond = int(array.max()) if array.max() > EXACT else int(array.min())
        raise DataError(
            f"{where}: it holds {beyond}, and whole numbers beyond 2^53 are not told from their neighbours as float64; "
            "leave that column out"
        )
    return array


def one_column(value: Any, where: str) -> Any:
    """Return labels or targets: the values of a series or of a frame of one column, and any other value as it is.

    Raises:
        DataError: a frame of several columns, or texts of which some are missing (numbers that are become NaN).
    """
    if is_frame(value):
        table = table_of(value, where)
        if len(table.columns) > 1:
            raise DataError(f"{where} must be one column; got {len(table.columns)}: {', '.join(table.names)}")
        column: Column = table.columns[0]
    elif _is_series(value):
        column = typed(where, str(getattr(value, "dtype", "object")), _values(value))
    else:
        return value
    if column.kind == "real" or (column.missing.any() and column.kind not in ("text", "other")):
        return column.real()
    if column.missing.any():
        raise DataError(f"{where} has no value in {column.missing.sum()} rows (first: row {column.missing.argmax()})")
    return column.values


def _columns(frame: Any) -> Iterator[TypedColumn]:
    """Yield the columns of a frame, by their place: a frame of pandas may have two of one name."""
    if _is_arrow(frame):
        named = zip(frame.schema.names, frame.schema.types, frame.columns, strict=True)
    elif _is_polars(frame):
        named = ((one.name, one.dtype, one) for one in frame.get_columns())  # type: ignore[assignment]
    else:
        series = (frame.iloc[:, at] for at in range(len(frame.columns)))
        named = ((name, one.dtype, one) for name, one in zip(frame.columns, series, strict=True))  # type: ignore[assignment]
    for name, dtype, values in named:
        yield typed(clean(str(name)), str(dtype), _values(values))


def _values(series: Any) -> Array | list[Any]:
    """Return a column's values: an array of numbers, or a list where some are missing or are no numbers.

    Integers beside missing values become float64 in the libraries' own arrays, and lose digits.
    """
    if hasattr(series, "to_pylist"):  # Arrow
        return series.to_pylist() if series.null_count else _plain(series.to_numpy(zero_copy_only=False), series)
    if hasattr(series, "null_count"):  # Polars
        return series.to_list() if series.null_count() else _plain(series.to_numpy(), series)
    if isinstance(series.dtype, np.dtype):
        return np.asarray(series.to_numpy())
    return np.asarray(series.to_numpy(dtype=object))  # pandas' own types, whose arrays lose digits beside gaps


def _plain(array: Any, series: Any) -> Array | list[Any]:
    """Return an array of numbers, or the values as Python's where it holds others (Decimal, text, dates)."""
    if array.dtype.kind in "biuf":
        return np.asarray(array)
    return list(series.to_pylist() if hasattr(series, "to_pylist") else series.to_list())


def _is_pandas(value: Any) -> bool:
    return hasattr(value, "columns") and hasattr(value, "dtypes") and hasattr(value, "iloc")


def _is_polars(value: Any) -> bool:
    return hasattr(value, "get_columns") and hasattr(value, "schema")


def _is_arrow(value: Any) -> bool:
    return hasattr(value, "schema") and hasattr(value, "columns") and hasattr(value, "to_pydict")


def _is_series(value: Any) -> bool:
    """Tell whether a value is a column of pandas, Polars or Arrow."""
    if hasattr(value, "to_pylist") and hasattr(value, "null_count"):
        return True
    return hasattr(value, "to_numpy") and hasattr(value, "dtype") and getattr(value, "ndim", 1) == 1
