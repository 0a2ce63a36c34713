"""Scale columns: a scaling is fitted on some rows (the training rows), then applied to any.

    scale = fit(train, log1p, z_score)
    train, test = scale(train), scale(test)

Fitting on all rows of a federation together takes statistics of the columns that its clients would have to agree on
(by secure sums, say); nothing here hides them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from securefed._tensors import Array
from securefed.datasets._base import Dataset


@dataclass(frozen=True)
class ColumnScaling:
    """Scale column by column: x -> (c(x) - shift) * factor, with c(x) = sign(x) log(1 + |x|) if `compress`, else x.

    Attributes:
        shift: (features,) or scalar.
        factor: (features,) or scalar.
        compress: whether the logarithm is taken first.
        after: scaling after which this one comes; `None` where this one is the first.
    """

    shift: Array
    factor: Array
    compress: bool = False
    after: ColumnScaling | None = None

    def __call__(self, data: Dataset) -> Dataset:
        """Scale the rows of `data`; labels and responses are kept."""
        return replace(data, x=self.rows(data.x))

    def rows(self, x: Array) -> Array:
        """Scale (rows, features) into a new array."""
        x = x if self.after is None else self.after.rows(x)
        x = np.copysign(np.log1p(np.abs(x)), x) if self.compress else x
        scaled = x - self.shift
        scaled *= self.factor
        return scaled


ScalingFit = Callable[[Dataset], ColumnScaling]
"""Fits a scaling to rows, as the functions below do."""


def z_score(data: Dataset) -> ColumnScaling:
    """Fit to mean 0, standard deviation 1 (divisor: the number of rows). A constant column becomes 0."""
    return ColumnScaling(data.x.mean(axis=0), _inverse(data.x.std(axis=0), varies=np.ptp(data.x, axis=0) > 0))


def unit_range(data: Dataset) -> ColumnScaling:
    """Fit to [0, 1]: a column's smallest entry becomes 0, its largest 1. A constant column becomes 0."""
    low = data.x.min(axis=0)
    spread = data.x.max(axis=0) - low
    return ColumnScaling(low, _inverse(spread, varies=spread > 0))


def column_maximum(data: Dataset) -> ColumnScaling:
    """Divide each column by its largest absolute entry in the fitted rows. A column of zeros stays so."""
    largest = np.maximum(data.x.max(axis=0), -data.x.min(axis=0))
    return ColumnScaling(np.zeros(1), _inverse(largest, varies=largest > 0))


def maximum(data: Dataset) -> ColumnScaling:
    """Divide all columns by the one largest absolute entry of the fitted rows: columns keep their proportions."""
    largest = np.atleast_1d(max(data.x.max(), -data.x.min()))
    return ColumnScaling(np.zeros(1), _inverse(largest, varies=largest > 0))


def log1p(data: Dataset) -> ColumnScaling:
    """Take sign(x) log(1 + |x|): counts over many magnitudes come to a few units, 0 stays 0. Nothing is fitted."""
    return ColumnScaling(np.zeros(1), np.ones(1), compress=True)


def fit(data: Dataset, *steps: ScalingFit) -> ColumnScaling:
    """Fit several scalings in order, each on the data scaled so far; without any, rows stay as they are."""
    fitted: ColumnScaling | None = None
    for step in steps:
        made = step(data if fitted is None else fitted(data))
        fitted = made if fitted is None else _behind(fitted, made)
    return fitted or ColumnScaling(np.zeros(1), np.ones(1))


def _behind(first: ColumnScaling, later: ColumnScaling) -> ColumnScaling:
    """Put a scaling before all those that `later` consists of."""
    return replace(later, after=first if later.after is None else _behind(first, later.after))


def _inverse(spread: Array, *, varies: Array) -> Array:
    """Return 1 / spread, and 0 where the column does not vary, even if round-off gives it a tiny spread."""
    return np.divide(1.0, spread, out=np.zeros_like(spread), where=varies)
