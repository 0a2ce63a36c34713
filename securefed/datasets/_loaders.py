"""Load data sets by name: those that come with scikit-learn, and files from the folder that SECUREFED_DATA names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from securefed._extras import needed_for
from securefed.datasets._base import Dataset
from securefed.datasets._images import coil20, digits, mnist
from securefed.datasets._intrusion import iot23, ton_iot, unsw_nb15
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._row_tables import SUFFIXES, read_frame, read_rows, with_owner
from securefed.datasets._signals import abide, esr, esr_five, uci_har
from securefed.datasets._tables.files import check_no_form
from securefed.datasets._tables.frames import is_frame
from securefed.datasets._tables.table_format import TableFormat
from securefed.errors import ConfigError, DataError, UnknownNameError

_LOG = logging.getLogger(__name__)
__all__ = ["LOADERS", "LoadedDataset", "breast_cancer", "digits", "load", "mnist"]


def breast_cancer() -> LoadedDataset:
    """Load the breast cancer set, 569 x 30, each feature divided by its largest value (scikit-learn's copy)."""
    with needed_for("the data set breast_cancer"):
        from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    bunch = load_breast_cancer()
    # 1.0: the largest absolute entry, as the features are not negative
    return LoadedDataset(Dataset(bunch.data / bunch.data.max(axis=0), bunch.target), "breast_cancer", 1.0)


LOADERS: dict[str, Callable[[], LoadedDataset]] = {
    "digits": digits,
    "breast_cancer": breast_cancer,
    "mnist": mnist,
    "unsw_nb15": unsw_nb15,
    "ton_iot": ton_iot,
    "iot23": iot23,
    "uci_har": uci_har,
    "esr": esr,
    "esr_five": esr_five,
    "coil20": coil20,
    "abide": abide,
}
"""Loaders by name; each names the official source of its files when they are missing."""


def load(
    name: str | Path | Any, *, owner: str = "", label: str = "", encoding: str = "", separator: str = "",
    decimal: str = "",
) -> LoadedDataset:  # fmt: skip
    """Load a data set by its name, or a user's own rows from an `.npz`, `.csv` or `.parquet` file or a data frame.

    What was read is logged (level INFO), and stands in the result's `summary`.

    Args:
        name: a name of `LOADERS`, a path, or a data frame of pandas, Polars or Arrow. An `.npz` file holds `x` (rows,
            features) and one array of one value a row for labels and every other fact; in a table each column but those
            of labels and owner is a feature, row numbers and keys left out.
        owner: name of the column that says whose row it is; of a named data set one of its `groups`.
        label: name of the column of labels of a file; by default `y` or `label`, where there is one.
        encoding: encoding of a `.csv` file that has no byte-order mark and is not in UTF-8, such as "cp1252".
        separator: the character between the cells of a `.csv` file, where it cannot be told.
        decimal: the decimal mark of a `.csv` file, "." or ",", where it cannot be told.

    Raises:
        UnknownNameError: it is neither a known name nor a path; the message names the nearest known set.
        DataError: the file is missing, unusable or of another kind; the message names the folders searched, the line
            or column at fault, and what to write.
        ConfigError: an option does not fit the data, such as a column of labels for a data set that has its own.
    """
    form = TableFormat(encoding, separator, decimal)
    if is_frame(name):
        check_no_form("a data frame", form)
        source = read_frame(name, owner, label)
    else:
        source = _read(str(name), owner, label, form)
    _LOG.info(source.summary)
    return source


def load_once(data: str, owner: str = "", label: str = "", form: TableFormat | None = None) -> LoadedDataset:
    """Load a data set as `load` does, and a file again only if it has changed since; the caller leaves it unchanged."""
    path = Path(data)
    written = (path.stat().st_mtime_ns, path.stat().st_size) if data not in LOADERS and path.is_file() else None
    return _kept(data, owner, label, form or TableFormat(), written)


@lru_cache(maxsize=1)
def _kept(data: str, owner: str, label: str, form: TableFormat, written: tuple[int, int] | None) -> LoadedDataset:
    """Load a data set; `written` tells one content of a file from another."""
    return load(data, owner=owner, label=label, **form.given())


def _read(name: str, owner: str, label: str, form: TableFormat) -> LoadedDataset:
    """Read a named data set or a file; the arguments are those of `load`."""
    if name in LOADERS:
        if label:
            raise ConfigError(f"the data set {name} has its own labels; got the column {label!r}. Leave it out.")
        check_no_form(name, form)
        source = LOADERS[name]()
        return with_owner(source, owner) if owner else source
    if name.lower().endswith(SUFFIXES):
        return read_rows(Path(name), owner, label, form)
    if Path(name).suffix:
        raise DataError(
            f"data files must be .npz archives, .csv or .parquet tables; got {name!r}. Write numpy.savez('data.npz', "
            "x=x, y=y), x (rows, features) and y (rows,), and give its path."
        )
    raise UnknownNameError("data set", name, [*LOADERS, "PATH.npz"])
