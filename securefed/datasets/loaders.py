"""Data by name: embedded sets that need no file, and files from the folder that SECUREFED_DATA names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from securefed.datasets.base import Dataset
from securefed.errors import DataError, UnknownNameError

DATA_VARIABLE = "SECUREFED_DATA"


@dataclass(frozen=True)
class Source:
    """A loaded set.

    Attributes:
        data: all rows.      name: as asked for.
        feature_bound: the declared range: every entry lies in [-feature_bound, feature_bound].
        image_shape: (height, width) where rows are images, else `None`.
    """

    data: Dataset
    name: str
    feature_bound: float
    image_shape: tuple[int, int] | None = None


def digits() -> Source:
    """1797 handwritten digits, 8x8, scaled to [0, 1] (scikit-learn's copy of the UCI set)."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second of import that most uses do not need

    bunch = load_digits()
    return Source(Dataset(bunch.data / 16.0, bunch.target), "digits", 1.0, (8, 8))


def breast_cancer() -> Source:
    """569 x 30 measurements, each feature divided by its largest value (scikit-learn's copy of the UCI set)."""
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    bunch = load_breast_cancer()
    return Source(Dataset(bunch.data / bunch.data.max(axis=0), bunch.target), "breast_cancer", 1.0)


def mnist() -> Source:
    """60000 handwritten digits, 28x28, scaled to [0, 1]; `mnist.npz` in the folder that SECUREFED_DATA names."""
    with np.load(data_folder("mnist.npz") / "mnist.npz") as file:
        x = file["x_train"].reshape(60000, -1) / 255.0
        y = file.get("y_train")
    return Source(Dataset(x, y), "mnist", 1.0, (28, 28))


def npz(path: Path) -> Source:
    """Any `.npz` with an array `x` (rows, features) and, if there are labels, `y` (rows,)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if "x" not in file:
                raise DataError(
                    f"{path} holds {file.files}; it needs an array 'x' (rows, features), and 'y' for labels"
                )
            x, y = file["x"], file.get("y")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} as an .npz file without pickles: {error}") from error
    data = Dataset(x.reshape(len(x), -1) if x.ndim > 2 else x, y)
    return Source(data, path.stem, float(np.abs(data.x).max()) or 1.0, x.shape[1:] if x.ndim == 3 else None)


SOURCES: dict[str, Callable[[], Source]] = {"digits": digits, "breast_cancer": breast_cancer, "mnist": mnist}


def load(name: str) -> Source:
    """A set by name, or any `.npz` file by its path.

    Raises:
        UnknownNameError: neither; names the nearest known set.
        DataError: the file is missing or unusable; says where it is looked for.
    """
    if name in SOURCES:
        return SOURCES[name]()
    if name.endswith(".npz"):
        return npz(Path(name))
    raise UnknownNameError("data set", name, [*SOURCES, "PATH.npz"])


def data_folder(wanted: str) -> Path:
    """The folder that SECUREFED_DATA names, if it holds `wanted`."""
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        raise DataError(f"{wanted} is not embedded: set {DATA_VARIABLE} to the folder that holds it")
    if not (Path(folder) / wanted).is_file():
        raise DataError(
            f"{wanted} is not in {folder} (from {DATA_VARIABLE}); put it there, or point the variable elsewhere"
        )
    return Path(folder)
