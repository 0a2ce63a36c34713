"""Read a user's own rows from a table (.npz, .csv, .parquet or a data frame): features, labels, and whose row it is.

`load` and the command line call `read_rows`. Columns other than features become labels, or facts of every row (the
`groups` of the data set), by which rows are split over clients; the owner of each row is such a fact.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.datasets._formats import read_npz
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._tables.columns import Column, Kind, TypedColumn, typed
from securefed.datasets._tables.files import TABLES, check_no_form, read_file
from securefed.datasets._tables.frames import table_of
from securefed.datasets._tables.reading import Reading, line
from securefed.datasets._tables.roles import Classes, classes, complete, features_of, owners
from securefed.datasets._tables.table import Table
from securefed.datasets._tables.table_format import TableFormat
from securefed.datasets.scaling import z_score
from securefed.errors import DataError

_LOG = logging.getLogger(__name__)
LABELS = ("y", "label")
"""Names of the column of labels where the user names none; the first that the table has."""
_FEW_CLASSES, _ROWS_OF_A_CLASS = 20, 20
"""More labels than the former, with fewer rows of each than the latter, look like a quantity."""
SUFFIXES = (".npz", *TABLES)
"""Endings of the files that can be read, in lower case."""
_ADVICE: Final = (
    "; write categories as 0 and 1, fill empty cells or drop their rows, leave out names and dates, and name the "
    "columns of labels and owners (--label-column, --owner-column; label=, owner= in Python)"
)


def read_rows(path: Path, owner: str = "", label: str = "", form: TableFormat | None = None) -> LoadedDataset:
    """Read the rows of a table.

    An `.npz` file holds an array `x` (rows, features), or pictures (rows, height, width), and one array of one value a
    row for labels, owner and every other fact. In a table (`.csv`, `.parquet`) each column but those of labels and
    owner is a feature and must hold numbers or truth values; row numbers and keys are left out, and `summary` says so.

    Args:
        path: the file.
        owner: name of the column that says whose row it is; it becomes a group of that name and is no feature.
        label: name of the column of labels; by default `y` or `label`, where there is one.
        form: how a `.csv` file is written, where the user says so.

    Returns:
        The rows. Whole numbers from 0 without gaps are labels as they are, other whole numbers and texts are numbered
        in sorted order (`class_names`), and other numbers are responses. The declared range is the largest entry.

    Raises:
        DataError: the file cannot be read or can be read in two ways, lacks a column, has two of one name, holds text
            in the column of a feature, or has rows without label or owner.
        ConfigError: a form is named for a file that is no text.
    """
    if path.name.lower().endswith(".npz"):
        check_no_form(path, form or TableFormat())
        return _from_archive(path, owner, label)
    return from_table(read_file(path, form, texts=[owner]), owner, label)


def read_frame(frame: Any, owner: str = "", label: str = "") -> LoadedDataset:
    """Read the rows of a data frame of pandas or Polars, or of a table of Arrow, as `read_rows` reads a file."""
    return from_table(table_of(frame), owner, label)


def from_table(table: Table, owner: str = "", label: str = "") -> LoadedDataset:
    """Make a data set of a table; arguments and errors are those of `read_rows`."""
    _require(owner, table)
    _require(label, table)
    label = label or next((name for name in LABELS if name in table.names and name != owner), "")
    if owner and owner == label:
        raise DataError(f"{table.source}: column {owner!r} cannot be both owner and label; name two columns")
    groups = {owner: owners(table, table.column(owner))} if owner else {}
    known = _labels(table, table.column(label)) if label else None
    features, left_out = features_of(table, (owner, label))
    data = Dataset(Table(table.source, features).matrix(advice=_ADVICE), None if known is None else known.y)
    said = line(table, features, left_out, owner=groups.get(owner), owner_column=owner, label=known, label_column=label)
    settled = Table(table.source, tuple(column.settled() for column in table.columns), table.form)
    names = tuple(column.name for column in features)
    name = Path(table.source).stem.removesuffix(".csv")
    return LoadedDataset(
        data, name, _bound(data), groups=groups, features=names, class_names=known.names if known else (),
        reading=Reading(settled, owner, label, names, left_out, said),
    )  # fmt: skip


def _from_archive(path: Path, owner: str, label: str) -> LoadedDataset:
    """Read an `.npz` file; arrays of another length than `x` are left out."""
    arrays = read_npz(path, "x")
    x = arrays.pop("x")
    rows = Dataset(x.reshape(len(x), -1) if x.ndim > 2 else x).x  # refuses what is no matrix of numbers
    facts = [typed(name, str(values.dtype), values) for name, values in arrays.items() if values.shape == (len(rows),)]
    table = Table(str(path), (*_entries(x, rows), *facts))
    label = label or next((name for name in LABELS if name in arrays), "")
    for name in (owner, label if label not in arrays else ""):
        _require(name, Table(str(path), tuple(facts) or table.columns))
    groups = {column.name: _fact(column) for column in facts}
    if owner:
        complete(table, table.column(owner))
    known = None if not label else _labels(table, table.column(label)) if label in groups else _targets(arrays[label])
    data = Dataset(rows, None if known is None else known.y)
    left_out = {name: "not one value a row" for name in arrays if name not in groups and name != label}
    said = line(
        table, (), left_out, owner=groups.get(owner), owner_column=owner, label=known, label_column=label,
        columns=data.features,
    )  # fmt: skip
    return LoadedDataset(
        data, path.stem, _bound(data), x.shape[1:] if x.ndim == 3 else None, groups=groups,
        class_names=known.names if known else (), reading=Reading(table, owner, label, (), left_out, said),
    )  # fmt: skip


def _entries(x: Array, rows: Array) -> tuple[Column, ...]:
    """Return the columns of an archive's `x`, which have numbers for names."""
    kind: Kind = "real" if x.dtype.kind == "f" else "integer"
    none = np.zeros(len(rows), bool)
    return tuple(TypedColumn(f"x[{at}]", str(x.dtype), kind, column, none) for at, column in enumerate(rows.T))


def _targets(y: Array) -> Classes:
    """Return responses of several values a row; `Dataset` refuses another number of rows."""
    return Classes(y.astype(np.float64) if y.ndim > 1 and y.dtype.kind in "biu" else y)


def _fact(column: Column) -> Array:
    """Return a fact of the rows as an array; texts as NumPy's texts, which sort and compare fast."""
    return column.values.astype(str) if column.kind == "text" else column.values


def _require(name: str, table: Table) -> None:
    """Raise `DataError` where a column was named that the file lacks."""
    if name and name not in table.names:
        known = ", ".join(filter(None, table.names)) or "none"
        raise DataError(f"{table.source} has no column {name!r} with one value a row; it has {known}")


def _labels(table: Table, column: Column) -> Classes:
    """Return labels or responses, and warn where classes look like a quantity."""
    found = classes(table, column)
    values = len(found.names)
    if values > _FEW_CLASSES and values * _ROWS_OF_A_CLASS > table.rows:
        _warn_of_quantity(table.source, column.name, values, table.rows)
    return found


@cache
def _warn_of_quantity(source: str, name: str, values: int, rows: int) -> None:
    """Log, once a process, that each value of a column of labels counts as a class."""
    message = "%s: column %r has %d values over %d rows, and each counts as a class; group a quantity first"
    _LOG.warning(message, source, name, values, rows)


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
