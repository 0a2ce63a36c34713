"""Scaling of columns: fitted on some rows (the training rows), then applied to any.

    scale = fit(train, log1p, z_score)
    train, test = scale(train), scale(test)

Fitting on all rows of a federation together takes statistics of the columns that its clients would have to agree on
(by secure sums, say); nothing here hides them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from securefed.datasets.base import Dataset
from securefed.tensors import Array


@dataclass(frozen=True)
class Scaling:
    """x -> (compress(x) - shift) * factor, column by column, where compress is sign(x) log(1 + |x|) or nothing.

    Attributes:
        shift, factor: (features,) or scalars.
        compress: whether the logarithm is taken first.
        after: what is applied before all of it, `None` for nothing.
    """

    shift: Array
    factor: Array
    compress: bool = False
    after: Scaling | None = None

    def __call__(self, data: Dataset) -> Dataset:
        """`data` with its rows scaled; labels and responses are kept."""
        return Dataset(self.rows(data.x), data.y)

    def rows(self, x: Array) -> Array:
        """(rows, features) scaled, a new array."""
        x = x if self.after is None else self.after.rows(x)
        x = np.copysign(np.log1p(np.abs(x)), x) if self.compress else x
        scaled = x - self.shift
        scaled *= self.factor
        return scaled


Fit = Callable[[Dataset], Scaling]


def z_score(data: Dataset) -> Scaling:
    """Mean 0, standard deviation 1 (of the fitted rows, divided by their number). A constant column becomes 0."""
    return Scaling(data.x.mean(axis=0), _inverse(data.x.std(axis=0), varies=np.ptp(data.x, axis=0) > 0))


def unit_range(data: Dataset) -> Scaling:
    """The fitted rows' smallest entry of a column becomes 0, its largest 1. A constant column becomes 0."""
    low = data.x.min(axis=0)
    spread = data.x.max(axis=0) - low
    return Scaling(low, _inverse(spread, varies=spread > 0))


def column_maximum(data: Dataset) -> Scaling:
    """Each column divided by its largest absolute entry in the fitted rows. A column of zeros stays so."""
    largest = np.maximum(data.x.max(axis=0), -data.x.min(axis=0))
    return Scaling(np.zeros(1), _inverse(largest, varies=largest > 0))


def maximum(data: Dataset) -> Scaling:
    """All columns divided by the one largest absolute entry of the fitted rows: columns keep their proportions."""
    largest = np.atleast_1d(max(data.x.max(), -data.x.min()))
    return Scaling(np.zeros(1), _inverse(largest, varies=largest > 0))


def log1p(data: Dataset) -> Scaling:
    """sign(x) log(1 + |x|): counts over many magnitudes come to a few units, 0 stays 0. Nothing is fitted."""
    return Scaling(np.zeros(1), np.ones(1), compress=True)


def fit(data: Dataset, *steps: Fit) -> Scaling:
    """Several scalings as one, each fitted on `data` as those before leave it; none leaves rows as they are."""
    fitted: Scaling | None = None
    for step in steps:
        made = step(data if fitted is None else fitted(data))
        fitted = Scaling(made.shift, made.factor, made.compress, fitted)
    return fitted or Scaling(np.zeros(1), np.ones(1))


def _inverse(spread: Array, *, varies: Array) -> Array:
    """1 / spread, 0 where the column does not vary: a spread that round-off made out of equal entries is no spread."""
    return np.divide(1.0, spread, out=np.zeros_like(spread), where=varies)
