"""Hold the rows of one client, and refuse rows and labels that no algorithm can use.

Users make a `Dataset` for each client, or split one over clients (`securefed.datasets.partition`). Checks run when it
is made, so that algorithms need none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from securefed._class_names import ClassName, class_names
from securefed._shape_repr import ShapeRepr
from securefed._tensors import Array
from securefed.datasets._tables.frames import is_frame, one_column, real_rows
from securefed.errors import DataError

MOST_CLASSES: Final = 10**6
"""Labels from this number on are codes, such as 73211009 of SNOMED: a class for each number below would be declared."""


@dataclass(frozen=True, repr=False)
class Dataset(ShapeRepr):
    """The rows of one client; a row is a sample, as in scikit-learn.

    Attributes:
        x: (rows, features) float64, or float32 where it is given so: half the memory, for problems that compute in it.
            A data frame of pandas, Polars or Arrow may be given, whose columns are numbers or truth values.
        y: (rows,) int64 class labels from 0, or (rows, ...) float64 responses, or `None` where the task has none.
        class_names: the value that stands for each class, in the order of the classes, as `load` reads them off a
            user's table; empty where they are not known. Parties with other names than those of the public facts are
            refused, since one number would stand for two classes.

    Raises:
        DataError: the rows or labels have another form; the message contains the correction.
        ConfigError: the class names are no list of names.
    """

    x: Array
    y: Array | None = None
    class_names: tuple[ClassName, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        """Bring rows and labels into their types and check them."""
        self._check_rows()
        if self.y is not None:
            self._check_labels(self.y)
        if isinstance(self.class_names, tuple) and not self.class_names:
            return
        names = class_names(self.class_names)
        object.__setattr__(self, "class_names", names)
        if names and (largest := int(self.labels().max())) >= len(names):
            raise DataError(
                f"the label {largest} has no name: class_names has {len(names)}, of the classes 0 to {len(names) - 1}; "
                "name each class"
            )

    def _check_rows(self) -> None:
        """Turn the rows into a float matrix; raise `DataError` where they are none, or not finite."""
        if self.x is None:
            raise DataError("data must be a (rows, features) matrix; got None. Write Dataset(x), or Dataset(x, y).")
        try:
            given = real_rows(self.x, "data", features=True)
        except DataError as error:
            if is_frame(self.x):  # its columns are named
                raise
            if isinstance(error.__cause__, ValueError):  # NumPy makes no array of them
                got = "got rows of different lengths. Give every row the same number of features."
            else:
                got = f"{error}."
            raise DataError(f"data must be a (rows, features) matrix; {got}") from error
        kept = np.float32 if given.dtype == np.float32 else np.float64
        object.__setattr__(self, "x", np.ascontiguousarray(given, dtype=kept))
        if self.x.ndim != 2 or not self.x.size:
            remedy = {
                1: " Write x[None, :] where it is one row, x[:, None] where it is one feature.",
                3: " Write one Dataset for each client, or x.reshape(len(x), -1) where a row is an image.",
            }.get(self.x.ndim, "")
            raise DataError(f"data must be a non-empty (rows, features) matrix; got shape {self.x.shape}.{remedy}")
        bad = np.flatnonzero(~np.isfinite(self.x).all(axis=1))
        if bad.size:
            raise DataError(
                f"{bad.size} of {len(self.x)} rows hold NaN or infinity (first: row {bad[0]}); drop these rows, or "
                "fill their gaps"
            )

    def _check_labels(self, given: Array) -> None:
        """Check labels (integers) or responses (floats), and keep them as an array; raise `DataError` for others."""
        y = np.asarray(one_column(given, "y"))
        if not y.shape or len(y) != len(self.x):
            raise DataError(f"y must hold one label or response for each of {len(self.x)} rows; got shape {y.shape}")
        if np.issubdtype(y.dtype, np.floating):
            y = np.ascontiguousarray(y, dtype=np.float64)
            if not np.isfinite(y).all():
                raise DataError("responses must be finite; y holds NaN or infinity. Drop those rows.")
        elif not np.issubdtype(y.dtype, np.integer) or y.ndim != 1 or y.min() < 0 or y.max() >= MOST_CLASSES:
            raise DataError(
                f"labels must be one integer a row, from 0; got {_labels_given(y)}; encode classes as 0, 1, ..., alike "
                f"at all clients (load(..., classes=[...]) does so): write Dataset(x, {_labels_remedy(y)})"
            )
        object.__setattr__(self, "y", y)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.x.shape[0])

    @property
    def features(self) -> int:
        """Number of columns."""
        return int(self.x.shape[1])

    @property
    def classes(self) -> int:
        """1 + the largest label, or the number of class names; 0 where the rows have no labels."""
        if self.class_names:
            return len(self.class_names)
        return int(self.y.max()) + 1 if self.y is not None and np.issubdtype(self.y.dtype, np.integer) else 0

    def labels(self) -> Array:
        """Return the (rows,) class labels; raise `DataError` where the data has none."""
        if self.y is None:
            raise DataError(
                "this algorithm needs labels, the data has none; write Dataset(x, y), y one integer a row, or name the "
                "column with --label-column"
            )
        if not np.issubdtype(self.y.dtype, np.integer):
            raise DataError(
                "this algorithm needs class labels, the data has real responses (float labels); where each value is a "
                f"class write Dataset(x, {_classes_of(self.y)})"
            )
        return self.y

    def responses(self) -> Array:
        """Return the (rows, ...) real responses; raise `DataError` where the data has none."""
        if self.y is None or not np.issubdtype(self.y.dtype, np.floating):
            remedy = "y one real number a row" if self.y is None else "y.astype(float)"
            raise DataError(f"this algorithm needs real responses, the data has none; write Dataset(x, {remedy})")
        return self.y

    def single(self) -> Dataset:
        """Return the rows in float32, for problems that compute in it; reading them takes half the time."""
        return replace(self, x=self.x.astype(np.float32))

    def take(self, index: Array) -> Dataset:
        """Return the rows at `index`: positions, or a mask.

        Consecutive rows in their order are a view, others a copy. A view costs no memory of its own, but keeps all
        rows alive and shows what is written into them.
        """
        rows = _as_slice(np.flatnonzero(index) if index.dtype == bool else index)
        return replace(self, x=self.x[rows], y=None if self.y is None else self.y[rows])


def _labels_given(y: Array) -> str:
    """Return what is wrong with labels, for the error."""
    if np.issubdtype(y.dtype, np.integer):
        if y.ndim != 1:
            return f"shape {y.shape}"
        return f"the label {y.min()}" if y.min() < 0 else f"the label {y.max()}, which would declare as many classes"
    return f"labels of type {y.dtype}"


def _classes_of(y: Array) -> str:
    """Return an expression that turns responses into classes without making two of them one, for the error."""
    column = "y" if y.ndim == 1 else "y[:, 0]" if y.shape[1:] == (1,) else ""
    if column and bool(np.all((y == np.rint(y)) & (y >= 0) & (y < 2**31))):
        return f"{column}.astype(int)"
    if column:
        return f"numpy.unique({column}, return_inverse=True)[1]"
    return "numpy.unique(y.reshape(len(y), -1), axis=0, return_inverse=True)[1].ravel()"


def _labels_remedy(y: Array) -> str:
    """Return an expression that turns such labels into one integer a row, from 0, for the error."""
    numbers = y.dtype == bool or bool(np.issubdtype(y.dtype, np.integer))
    if y.ndim == 2 and y.shape[1] > 1:
        one_hot = numbers and bool(np.all((y == 0) | (y == 1)) and np.all(y.sum(axis=1) == 1))
        # else each row is a class of its own kind, such as a set of marks
        return "y.argmax(axis=1)" if one_hot else "numpy.unique(y, axis=0, return_inverse=True)[1].ravel()"
    if y.ndim > 2:
        return "numpy.unique(y.reshape(len(y), -1), axis=0, return_inverse=True)[1].ravel()"
    column = "y" if y.ndim == 1 else "y[:, 0]"
    if y.dtype == bool:
        return f"{column}.astype(int)"
    fits = numbers and y.min() >= 0 and y.max() < MOST_CLASSES
    return column if fits else f"numpy.unique({column}, return_inverse=True)[1]"


def _as_slice(index: Array) -> Array | slice:
    """Return `index` as a slice where it counts up by one: NumPy cuts a slice without a copy."""
    if not index.size or index[0] < 0 or index[-1] - index[0] != index.size - 1 or (np.diff(index) != 1).any():
        return index
    return slice(int(index[0]), int(index[-1]) + 1)
