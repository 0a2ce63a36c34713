"""Read a user's own rows from a table (.npz, .csv or .parquet): features, labels, and whose row each one is.

`load` and the command line call `read_rows`. Columns other than features become labels, or facts of every row (the
`groups` of the data set), by which rows are split over clients; the owner of each row is such a fact.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.datasets._formats import read_csv, read_npz
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets.scaling import z_score
from securefed.errors import DataError

_LOG = logging.getLogger(__name__)
LABELS = ("y", "label")
"""Names of the column of labels where the user names none; the first that the table has."""
_FEW_CLASSES, _ROWS_OF_A_CLASS = 20, 20
"""More labels than the former, with fewer rows of each than the latter, look like a quantity."""
SUFFIXES = (".npz", ".csv", ".csv.gz", ".parquet")
"""Endings of the files that can be read."""


def read_rows(path: Path, owner: str = "", label: str = "") -> LoadedDataset:
    """Read the rows of a table.

    An `.npz` file holds an array `x` (rows, features), or pictures (rows, height, width), and one array of one value a
    row for labels, owner and every other fact. In a table (`.csv`, `.parquet`) each column but those of labels and
    owner is a feature and must hold numbers.

    Args:
        path: the file.
        owner: name of the column that says whose row it is; it becomes a group of that name and is no feature.
        label: name of the column of labels; by default `y` or `label`, where there is one.

    Returns:
        The rows. Whole numbers from 0 are labels as they are, other whole numbers and texts are numbered in sorted
        order, and other numbers are responses. The declared range is the largest entry.

    Raises:
        DataError: the file cannot be read, lacks a column, holds text in the column of a feature, or has rows without
            label or owner.
    """
    return _from_archive(path, owner, label) if path.suffix == ".npz" else _from_table(path, owner, label)


def _from_archive(path: Path, owner: str, label: str) -> LoadedDataset:
    """Read an `.npz` file; arrays of another length than `x` are ignored."""
    arrays = read_npz(path, "x")
    x = arrays.pop("x")
    y = _labels(arrays, label, path)
    facts = {name: values for name, values in arrays.items() if values.shape == x.shape[:1]}
    _require(owner, facts, path)
    if owner:
        _complete(path, owner, facts[owner])
    data = Dataset(x.reshape(len(x), -1) if x.ndim > 2 else x, y)
    shape = x.shape[1:] if x.ndim == 3 else None
    return LoadedDataset(data, path.stem, _bound(data), shape, groups=facts)


def _from_table(path: Path, owner: str, label: str) -> LoadedDataset:
    """Read a `.csv` or `.parquet` table; every column but labels and owner is a feature."""
    columns = dict(_parquet(path) if path.suffix == ".parquet" else _csv(path))
    _require(owner, columns, path)
    groups = {owner: _complete(path, owner, columns.pop(owner)).astype(str)} if owner else {}
    y = _labels(columns, label, path)
    for name in LABELS if not label else (label,):
        if y is not None and name in columns:
            del columns[name]
            break
    if not columns:
        raise DataError(f"{path} has no column of features beside labels and owner")
    data = Dataset(_features(path, columns), y)
    return LoadedDataset(data, path.stem.removesuffix(".csv"), _bound(data), groups=groups, features=tuple(columns))


def _csv(path: Path) -> Mapping[str, Any]:
    """Return the columns of a `.csv` table, as texts."""
    if not path.is_file():
        raise DataError(f"cannot read {path}: there is no such file; give the path of a .csv file")
    table = read_csv(path)
    return {name: table.text(name) for name in table.columns}


def _parquet(path: Path) -> Mapping[str, Any]:
    """Return the columns of a `.parquet` table."""
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - optional
    except ImportError as error:
        raise DataError(
            f"cannot read {path}: parquet files need pyarrow; run `pip install pyarrow`, or write the table as .csv"
        ) from error
    try:
        return {name: np.array(values) for name, values in parquet.read_table(path).to_pydict().items()}
    except (OSError, ArrowException) as error:
        raise DataError(f"cannot read {path} as a parquet file: {error}") from error


def _require(name: str, columns: Mapping[str, Any], path: Path) -> None:
    """Raise `DataError` where a column was named that the file lacks."""
    if name and name not in columns:
        raise DataError(f"{path} has no column {name!r} with one value a row; it has {', '.join(columns) or 'none'}")


def _labels(columns: Mapping[str, Any], label: str, path: Path) -> Array | None:
    """Return the labels or responses, `None` where the user names no column and there is none of a usual name."""
    _require(label, columns, path)
    name = label or next((name for name in LABELS if name in columns), "")
    if not name:
        return None
    y = _numbered(_complete(path, name, columns[name]))
    values = len(np.unique(y)) if y.dtype.kind == "i" else 0
    if values > _FEW_CLASSES and values * _ROWS_OF_A_CLASS > len(y):
        _warn_of_quantity(path, name, values, len(y))
    return y


@cache
def _warn_of_quantity(path: Path, name: str, values: int, rows: int) -> None:
    """Log, once a process, that each value of a column of labels counts as a class."""
    message = "%s: column %r has %d values over %d rows, and each counts as a class; group a quantity first"
    _LOG.warning(message, path, name, values, rows)


def _complete(path: Path, name: str, values: Any) -> Array:
    """Return a column of labels or owners; raise `DataError` where rows have none."""
    column = np.asarray(values)
    blank = [row for row, value in enumerate(column.tolist()) if _is_blank(value)]
    if blank:
        raise DataError(
            f"{path}: {len(blank)} of {len(column)} rows have no value in column {name!r} (first: row {blank[0]}); "
            "they would become a class or a client of their own: fill the column in, or drop these rows"
        )
    return column


def _is_blank(value: Any) -> bool:
    """Whether a cell holds blank text, a null or NaN."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def _numbered(values: Array) -> Array:
    """Return whole numbers from 0 and real numbers as they are, and number all other values in sorted order."""
    try:
        numbers = values.astype(np.float64)
    except ValueError:
        return np.asarray(np.unique(values, return_inverse=True)[1])
    whole_numbers = np.isfinite(numbers) & (numbers == np.floor(numbers))
    if values.ndim != 1 or values.dtype.kind == "f" or not whole_numbers.all():
        return numbers
    whole = numbers.astype(np.int64)
    return whole if whole.min() >= 0 else np.asarray(np.unique(whole, return_inverse=True)[1])


def _features(path: Path, columns: Mapping[str, Any]) -> Array:
    """Return the features, (rows, columns); raise one `DataError` for all columns that hold something else."""
    numbers = {name: _numbers(values) for name, values in columns.items()}
    if refused := [_described(name, columns[name]) for name, values in numbers.items() if values is None]:
        raise DataError(
            f"{path}: features must be numbers, and these columns hold other cells: {', '.join(refused)}; write "
            "categories as 0 and 1, fill empty cells or drop their rows, leave out names and dates, and name the "
            "columns of labels and owners (--label-column, --owner-column)"
        )
    return np.column_stack([values for values in numbers.values() if values is not None])


def _numbers(values: Any) -> Array | None:
    """Return a column as numbers; `None` where a cell is none."""
    try:
        return np.asarray(values).astype(np.float64)
    except (ValueError, TypeError):
        return None


def _described(name: str, values: Any) -> str:
    """Describe a column with cells that are no numbers: its name, the first such cell, and how many there are."""
    cells = [cell for cell in np.asarray(values).tolist() if _numbers([cell]) is None]
    first = "an empty cell" if _is_blank(cells[0]) else repr(cells[0])
    return f"{name!r} ({first}; {len(cells)} of {len(values)} rows)"


def _bound(data: Dataset) -> float:
    """Return the largest absolute entry, 1 where all are 0."""
    return float(np.abs(data.x).max()) or 1.0


def with_owner(source: LoadedDataset, owner: str) -> LoadedDataset:
    """Return the data set if its rows have the fact `owner`, by which `load` was asked to split them over clients.

    Raises:
        DataError: they have not; the error names the facts that there are.
    """
    if owner not in source.groups:
        known = f"its facts are {', '.join(source.groups)}" if source.groups else "it has no such fact of its rows"
        raise DataError(f"{source.name} has no column {owner!r} that says whose row it is; {known}")
    return source


def standardised(source: LoadedDataset) -> LoadedDataset:
    """Scale every column of a data set to mean 0 and standard deviation 1 over all its rows; scale test rows alike.

    Runs and audits call it under `--standardise`. The parties of a federation can compute the means and deviations
    together (`securefed.statistics`). Entries of test rows beyond the range of the rows are not cut: the declared range
    covers them.
    """
    scale = z_score(source.data)
    data, test = scale(source.data), None if source.test is None else scale(source.test)
    bound = max(_bound(part) for part in (data, test) if part is not None)
    return replace(source, data=data, test=test, feature_bound=bound, image_shape=None)


UNEVEN = 100.0
"""Ratio of the largest to the lower quartile of the columns' standard deviations from which features count as not
scaled: a step that suits the largest column then moves the weights of a quarter of them ten thousand times more slowly.
Not the smallest, since pictures have pixels at their edge that hardly ever vary."""


def scaling_warning(data: Dataset) -> str:
    """Say in a sentence that the features are not scaled; empty where their standard deviations are alike."""
    spread = data.x.std(axis=0)
    spread = spread[spread > 1e-12 * max(float(spread.max()), 1e-300)]
    if not len(spread):
        return ""
    low, high = float(np.quantile(spread, 0.25, method="lower")), float(spread.max())
    if high / low <= UNEVEN:
        return ""
    return (
        f"the features are not scaled: a quarter of the columns have standard deviations of at most {low:.2g}, and the "
        f"largest is {high:.2g}, so that training and leakage are those of the largest columns; scale them, or give "
        "--standardise (standardise=True)"
    )
