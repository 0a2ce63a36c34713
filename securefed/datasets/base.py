"""One client's rows, and the checks that every loader and every federation applies to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed.errors import DataError
from securefed.tensors import Array, real_array


@dataclass(frozen=True)
class Dataset:
    """Rows are samples, as in scikit-learn.

    Attributes:
        x: (rows, features) float64, or float32 where it is given so: half the memory, for problems that compute in it.
        y: (rows,) int64 class labels from 0, or (rows, ...) float64 responses, or `None` where the task has none.
    """

    x: Array
    y: Array | None = None

    def __post_init__(self) -> None:
        if self.x is None:
            raise DataError("data must be a (rows, features) matrix; got None. Write Dataset(x), or Dataset(x, y).")
        given = real_array(self.x, "data")
        kept = np.float32 if given.dtype == np.float32 else np.float64
        object.__setattr__(self, "x", np.ascontiguousarray(given, dtype=kept))
        if self.x.ndim != 2 or not self.x.size:
            each = "; write one Dataset for each client" if self.x.ndim == 3 else ""
            raise DataError(f"data must be a non-empty (rows, features) matrix, not of shape {self.x.shape}{each}")
        bad = np.flatnonzero(~np.isfinite(self.x).all(axis=1))
        if bad.size:
            raise DataError(
                f"{bad.size} of {len(self.x)} rows hold NaN or infinity (first: row {bad[0]}); drop or fill"
            )
        if self.y is not None:
            object.__setattr__(self, "y", np.asarray(self.y))
            if not self.y.shape or len(self.y) != len(self.x):
                raise DataError(f"{len(self.x)} rows need as many labels, not an array of shape {self.y.shape}")
            if np.issubdtype(self.y.dtype, np.floating):
                object.__setattr__(self, "y", np.ascontiguousarray(self.y, dtype=np.float64))
                if not np.isfinite(self.y).all():
                    raise DataError("responses hold NaN or infinity; drop those rows")
            elif not np.issubdtype(self.y.dtype, np.integer) or self.y.ndim != 1 or self.y.min() < 0:
                raise DataError("labels must be one integer a row, from 0; encode classes as 0, 1, ...")

    @property
    def rows(self) -> int:
        return int(self.x.shape[0])

    @property
    def features(self) -> int:
        return int(self.x.shape[1])

    @property
    def classes(self) -> int:
        """1 + the largest label; 0 where the rows have no labels."""
        return int(self.y.max()) + 1 if self.y is not None and np.issubdtype(self.y.dtype, np.integer) else 0

    def labels(self) -> Array:
        """(rows,) class labels, or `DataError` where the data has none."""
        if self.y is None:
            raise DataError("this algorithm needs labels, the data has none; pass Dataset(x, y)")
        if not np.issubdtype(self.y.dtype, np.integer):
            raise DataError(
                "this algorithm needs class labels, the data has real responses (float labels); write "
                "Dataset(x, y.astype(int))"
            )
        return self.y

    def responses(self) -> Array:
        """(rows, ...) real responses, or `DataError` where the data has none."""
        if self.y is None or not np.issubdtype(self.y.dtype, np.floating):
            raise DataError("this algorithm needs real responses, the data has none; pass Dataset(x, y) with y float64")
        return self.y

    def single(self) -> Dataset:
        """The rows in float32, for problems that compute in it; reading them takes half the time."""
        return Dataset(self.x.astype(np.float32), self.y)

    def take(self, index: Array) -> Dataset:
        """The rows at `index`: positions, or a mask. Consecutive rows in their order are a view, others a copy.

        A view costs no memory of its own but keeps all rows alive, and sees what is written into them.
        """
        rows = _run(np.flatnonzero(index) if index.dtype == bool else index)
        return Dataset(self.x[rows], None if self.y is None else self.y[rows])


def _run(index: Array) -> Array | slice:
    """`index` as a slice where it counts up by one, which NumPy cuts without a copy."""
    if not index.size or index[0] < 0 or index[-1] - index[0] != index.size - 1 or (np.diff(index) != 1).any():
        return index
    return slice(int(index[0]), int(index[-1]) + 1)
