"""Count, mean, variance, skewness, covariance and correlation from sums of powers of the rows.

With n the number of rows x_i, s = sum x_i and S = sum x_i x_i^T over all parties:

    mean m = s / n        covariance C = (S / n - m m^T) n / (n - ddof)        variance = diag(C)
    correlation C_ij / sqrt(C_ii C_jj)
    skewness m3 / m2^(3/2),  m2 = q - m^2,  m3 = t - 3 m q + 2 m^3,  with q and t the means of squares and cubes

Each party adds its own sums to one secure sum (`Statistic` in _base.py). Subtracting m m^T loses digits where the mean
is large against the standard deviation; `shift`, a public guess of the mean, is subtracted from all rows before and
keeps them.

Each tensor of the sum is declared with its largest entry at one party, and its sensitivity: the largest L2 norm of what
one row adds. Exact defences sum in fixed point, so that every sum has a known largest error, which the formulas here
carry on to the value. In each class `tensors` declares what is summed, `_within` tells the rows that keep to it,
`_summand` computes one party's part, and `_value` the statistic, the bound on its error, and details by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._tensors import Array
from securefed.errors import DataError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._base import Statistic, check_table
from securefed.statistics._bounded import Bounded
from securefed.statistics._columns import checked_bounds, power_of_two
from securefed.statistics._estimate import Labels, Sums


@dataclass(frozen=True)
class _Moments(Statistic):
    """A statistic of columns with public bounds.

    Attributes:
        features: number of columns, where they have no names.
        bound: largest absolute entry of a row, after the shift: one number, one for each column, or a mapping from
            names of columns to a number or to a pair, the lowest and the highest value.
        rows: most rows of one party.
        shift: subtracted from every row: one number, or one for each column.
        columns: names of the columns, read from tables with named columns.

    Raises:
        ConfigError: a number outside its domain.
    """

    features: int = 1
    bound: Any = 1.0
    rows: int = 2**20
    shift: float | tuple[float, ...] = 0.0
    columns: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("features", self.features, 1)
        check_integer("rows", self.rows, 1)
        bounds = checked_bounds(self.bound, self.shift, self.columns, self.features)
        for name in ("columns", "bound", "shift"):
            object.__setattr__(self, name, getattr(bounds, name))
        object.__setattr__(self, "features", len(bounds.columns) or self.features)

    @property
    def _column_scales(self) -> tuple[float, ...]:
        """The unit of each column: 1 where all have one bound, which then needs none of its own."""
        if isinstance(self.bound, tuple):
            return tuple(map(power_of_two, self.bound))
        return (1.0,) * self.features

    @property
    def _scaled_bounds(self) -> tuple[float, ...]:
        """The bound of each column, in its unit."""
        bounds = self.bound if isinstance(self.bound, tuple) else (float(self.bound),) * self.features
        return tuple(bound / unit for bound, unit in zip(bounds, self._column_scales, strict=True))

    def _power(self, name: str, power: int) -> SummedTensor:
        """Return the tensor of the columns' sums of powers."""
        entries = [math.prod([bound] * power) for bound in self._scaled_bounds]  # infinite where ** would raise
        norm = math.hypot(*entries)
        return SummedTensor(name, (self.features,), self.rows * max(entries), sensitivity=norm)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the numbers of rows, the sum, and what the statistic needs besides."""
        return (*counted(self.rows, self.features, entries=self.outliers == "omit entries"), self._power("sum", 1))

    def _scales(self) -> Mapping[str, float | Array]:
        if not isinstance(self.bound, tuple):
            return {}
        units = np.array(self._column_scales)
        pairs = np.outer(units, units)[np.triu_indices(self.features)]
        return {"sum": units, "squares": units**2, "cubes": units**3, "products": pairs}

    def _shifted(self, x: Array) -> Array:
        """Return the rows less the shift."""
        return np.asarray(x - np.asarray(self.shift))

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, self.features, self.rows)

    def _within(self, x: Array, y: Array | None) -> Array:
        return np.asarray(np.abs(self._shifted(x)) <= np.asarray(self.bound))

    def _declared(self) -> str:
        if not isinstance(self.bound, tuple):
            return f"entries are at most {self.bound:g} from the shift"
        shifts = np.broadcast_to(self.shift, self.features)
        names = self.columns or [f"column {at}" for at in range(self.features)]
        return ", ".join(
            f"{name} from {shift - bound:g} to {shift + bound:g}"
            for name, bound, shift in zip(names, self.bound, shifts, strict=True)
        )

    def _labels(self, value: Array) -> Labels:
        names = self.columns or tuple(f"column {at}" for at in range(self.features))
        return (names,) * value.ndim

    def _counted(self, x: Array) -> dict[str, Array]:
        """Return the numbers of rows, and where entries are omitted those of each column's entries."""
        out = {"count": np.asarray(float(len(x)))}
        if self.outliers == "omit entries":
            out["counts"] = np.count_nonzero(~np.isnan(x), axis=0).astype(np.float64)
        return out

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        return self._counted(x) | {"sum": _column_sums(self._shifted(x))}

    def _means(self, sums: Sums, *names: str) -> tuple[Bounded, ...]:
        """Return the means of sums over all rows, or entries of each column."""
        rows = entries_of(sums)
        return tuple(Bounded(sums.total[name], sums.error[name]) / rows for name in names)

    def _moved(self, mean: Bounded) -> Array:
        """Return the mean before the shift."""
        return np.asarray(mean.value + np.asarray(self.shift))


def counted(rows: int, features: int, *, entries: bool) -> tuple[SummedTensor, ...]:
    """Return the tensor of the number of rows, and that of each column's entries where entries are omitted."""
    count = SummedTensor("count", (), float(rows), sensitivity=1.0)
    if not entries:
        return (count,)
    return (count, SummedTensor("counts", (features,), float(rows), sensitivity=math.sqrt(features)))


@dataclass(frozen=True)
class Count(_Moments):
    """Number of rows of all parties; the value has shape ()."""

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the count."""
        return super().tensors()[:1]

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        return self._counted(x)

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        return sums.total["count"], np.asarray(sums.error["count"]), {}


@dataclass(frozen=True)
class Mean(_Moments):
    """Mean of each column; the value has shape (features,)."""

    by_column: ClassVar[bool] = True

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        (mean,) = self._means(sums, "sum")
        return self._moved(mean), mean.error, details(sums)


@dataclass(frozen=True)
class Variance(_Moments):
    """Variance of each column; the value has shape (features,). `detail["mean"]` is the mean.

    Attributes:
        ddof: the divisor is n - ddof.
    """

    by_column: ClassVar[bool] = True

    ddof: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("ddof", self.ddof, 0)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, sum and sum of squares."""
        return (*super().tensors(), self._power("squares", 2))

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        return super()._summand(x, y) | {"squares": _column_sums(self._shifted(x) ** 2)}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        mean, second = self._means(sums, "sum", "squares")
        variance = unbiased(sums, self.ddof, second - mean * mean)
        # rounding takes the variance of a constant column below 0; noise may do so too, and would be biased by a cut
        value = variance.value if sums.noised else np.maximum(variance.value, 0.0)
        return value, variance.error, {"mean": self._moved(mean), **details(sums)}


@dataclass(frozen=True)
class Skewness(_Moments):
    """Skewness of each column, m3 / m2^(3/2); the value has shape (features,).

    `detail` holds the mean, and the variance, whose divisor is n. A column whose variance may be 0 within its error has
    no skewness: NaN.
    """

    by_column: ClassVar[bool] = True

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, and sums of the first three powers."""
        return (*super().tensors(), self._power("squares", 2), self._power("cubes", 3))

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        shifted = self._shifted(x)
        powers = {"squares": _column_sums(shifted**2), "cubes": _column_sums(shifted**3)}
        return super()._summand(x, y) | powers

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        mean, second, third = self._means(sums, "sum", "squares", "cubes")
        variance = _rounded(second - mean * mean, second.value)
        skewness = (third - mean * second * 3.0 + mean * mean * mean * 2.0) / (variance * variance.sqrt())
        detail = {"mean": self._moved(mean), "variance": variance.value, **details(sums)}
        return skewness.value, skewness.error, detail


@dataclass(frozen=True)
class Covariance(_Moments):
    """Covariance matrix of the columns; the value has shape (features, features). `detail["mean"]` is the mean.

    Attributes:
        ddof: the divisor is n - ddof.
    """

    ddof: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("ddof", self.ddof, 0)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, sum and the upper triangle of the sum of outer products."""
        bounds, entries = self._scaled_bounds, self.features * (self.features + 1) // 2
        squares = [bound * bound for bound in bounds]
        moment = SummedTensor("products", (entries,), self.rows * max(squares), sensitivity=math.fsum(squares))
        return (*super().tensors(), moment)

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        shifted = self._shifted(x)
        return super()._summand(x, y) | {"products": (shifted.T @ shifted)[np.triu_indices(self.features)]}

    def _covariance(self, sums: Sums) -> tuple[Bounded, Bounded]:
        """Return the matrix and the mean of the shifted rows."""
        mean, products = self._means(sums, "sum", "products")
        second = Bounded(symmetric(products.value, self.features), symmetric(products.error, self.features))
        return unbiased(sums, self.ddof, second - mean.outer(mean)), mean

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        covariance, mean = self._covariance(sums)
        return covariance.value, covariance.error, {"mean": self._moved(mean)}


@dataclass(frozen=True)
class Correlation(Covariance):
    """Correlation matrix of the columns (Pearson); the value has shape (features, features).

    `detail` holds the mean and the covariance. A column whose variance may be 0 within its error has no correlation
    with others: NaN.
    """

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        covariance, mean = self._covariance(sums)
        squares = np.diag(covariance.value) + mean.value**2
        deviation = _rounded(Bounded(np.diag(covariance.value), np.diag(covariance.error)), squares).sqrt()
        found = covariance / deviation.outer(deviation)
        value, error = found.value.copy(), found.error.copy()
        known = np.isfinite(np.diag(value))
        value[known, known], error[known, known] = 1.0, 0.0
        return value, error, {"mean": self._moved(mean), "covariance": covariance.value}


def _column_sums(x: Array) -> Array:
    """Sum each column, rounded once: adding row by row would lose more digits than fixed point does.

    Entries that are left out are NaN.
    """
    return np.array([math.fsum(column[~np.isnan(column)]) for column in x.T])


def symmetric(triangle: Array, size: int) -> Array:
    """Return the symmetric matrix with this upper triangle, row by row."""
    out = np.zeros((size, size))
    out[np.triu_indices(size)] = triangle
    return out + np.triu(out, 1).T


def entries_of(sums: Sums) -> Bounded:
    """Return the number of rows, or of each column's entries: at least 1, also where noise has made it smaller."""
    name = "counts" if "counts" in sums.total else "count"
    return Bounded(np.maximum(sums.total[name], 1.0), sums.error[name])


def details(sums: Sums) -> dict[str, Array]:
    """Return the number of entries of each column and of those that were left out, where they are counted apart."""
    if "counts" not in sums.total:
        return {}
    return {"counts": sums.total["counts"], "missing": sums.total["count"] - sums.total["counts"]}


def _rounded(variance: Bounded, squares: Array) -> Bounded:
    """Count the rounding of float64 in a variance that is divided by: that of a constant column is not quite 0."""
    return Bounded(variance.value, variance.error + 1e-15 * np.abs(squares))


def unbiased(sums: Sums, ddof: int, moment: Bounded) -> Bounded:
    """Multiply a central moment by n / (n - ddof).

    Raises:
        DataError: fewer than ddof + 1 rows.
    """
    rows = entries_of(sums)
    if np.any(rows.value <= ddof):
        raise DataError(f"{rows.value.min():g} rows, and more than ddof={ddof} are needed")
    counts = np.stack([
        rows.value, np.maximum(rows.value - rows.error, max(ddof + 1.0, 1.0)), rows.value + rows.error
    ])  # as summed, and how many there may be  # fmt: skip
    scale, *others = counts / (counts - ddof)
    return moment * Bounded(scale, np.max([np.abs(other - scale) for other in others], axis=0))
