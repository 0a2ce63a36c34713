"""Load data sets by name: embedded ones, and files from the folder that SECUREFED_DATA names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from securefed._extras import needed_for
from securefed.datasets._base import Dataset
from securefed.datasets._formats import read_npz
from securefed.datasets._images import coil20, digits, mnist
from securefed.datasets._intrusion import iot23, ton_iot, unsw_nb15
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._signals import abide, esr, esr_five, uci_har
from securefed.errors import DataError, UnknownNameError

__all__ = ["LOADERS", "LoadedDataset", "breast_cancer", "digits", "load", "mnist", "npz"]


def breast_cancer() -> LoadedDataset:
    """Load the breast cancer set, 569 x 30, each feature divided by its largest value (scikit-learn's copy)."""
    with needed_for("the data set breast_cancer"):
        from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    bunch = load_breast_cancer()
    return LoadedDataset(Dataset(bunch.data / bunch.data.max(axis=0), bunch.target), "breast_cancer", 1.0)


def npz(path: Path) -> LoadedDataset:
    """Load any `.npz` file with an array `x` (rows, features) and, if there are labels, `y` (rows,)."""
    arrays = read_npz(path, "x")
    x = arrays["x"]
    data = Dataset(x.reshape(len(x), -1) if x.ndim > 2 else x, arrays.get("y"))
    return LoadedDataset(data, path.stem, float(np.abs(data.x).max()) or 1.0, x.shape[1:] if x.ndim == 3 else None)


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


def load(name: str | Path) -> LoadedDataset:
    """Load a data set by its name, or any `.npz` file by its path.

    Args:
        name: a name of `LOADERS`, or a path that ends in `.npz`.

    Raises:
        UnknownNameError: neither; names the nearest known set.
        DataError: the file is missing, unusable or of another kind; the message names the folders searched.
    """
    name = str(name)
    if name in LOADERS:
        return LOADERS[name]()
    if name.endswith(".npz"):
        return npz(Path(name))
    if Path(name).suffix:
        raise DataError(
            f"data files must be .npz archives; got {name!r}. Write numpy.savez('data.npz', x=x, y=y), x (rows, "
            "features) and y (rows,), and give its path."
        )
    raise UnknownNameError("data set", name, [*LOADERS, "PATH.npz"])
