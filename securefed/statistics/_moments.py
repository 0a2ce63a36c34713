"""Count, mean, variance and covariance from sums of powers of the rows.

With n the number of rows x_i, s = sum x_i and S = sum x_i x_i^T over all parties:

    mean m = s / n        covariance C = (S / n - m m^T) n / (n - ddof)        variance = diag(C)

Each party adds its own n, s and S to one secure sum (`Statistic` in _base.py). Subtracting m m^T loses digits where the
mean is large against the standard deviation; `shift`, a public guess of the mean, is subtracted from all rows before
and keeps them.

Each tensor of the sum is declared with its largest entry at one party, and its sensitivity: the largest L2 norm of what
one row adds. Exact defences sum in fixed point, so that every sum has a known largest error, which the formulas here
carry on to the value. In each class `tensors` declares what is summed, `_within` tells the rows that keep to it,
`_summand` computes one party's part, and `_value` the statistic, the bound on its error, and details by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from securefed._hyperparameters import check_integer, check_number, check_positive
from securefed._tensors import Array
from securefed.errors import ConfigError, DataError
from securefed.parties._summed_tensor import SummedTensor
from securefed.statistics._base import Statistic, Sums, check_table


@dataclass(frozen=True)
class _Moments(Statistic):
    """A statistic of columns with a public bound.

    Attributes:
        features: number of columns.
        bound: largest absolute entry of a row, after the shift.
        rows: most rows of one party.
        shift: subtracted from every row: one number, or one for each column.

    Raises:
        ConfigError: a number outside its domain.
    """

    features: int = 1
    bound: float = 1.0
    rows: int = 2**20
    shift: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("features", self.features, 1)
        check_integer("rows", self.rows, 1)
        check_positive("bound", self.bound)
        if np.ndim(self.shift) and np.shape(self.shift) != (self.features,):
            raise ConfigError(f"shift must be one number or {self.features}; got {np.size(self.shift)}")
        for number in np.ravel(self.shift):
            check_number("shift", number)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, sum, and what the statistic needs besides."""
        rows, root = float(self.rows), math.sqrt(self.features)
        return (
            SummedTensor("count", (), rows, sensitivity=1.0),
            SummedTensor("sum", (self.features,), rows * self.bound, sensitivity=root * self.bound),
        )

    def _shifted(self, x: Array) -> Array:
        """Return the rows less the shift."""
        return np.asarray(x - np.asarray(self.shift))

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, self.features, self.rows)

    def _within(self, x: Array, y: Array | None) -> Array:
        return np.asarray((np.abs(self._shifted(x)) <= self.bound).all(1))

    def _declared(self) -> str:
        return f"entries are at most {self.bound:g} from the shift"

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        return {"count": np.asarray(float(len(x))), "sum": _column_sums(self._shifted(x))}

    def _mean(self, sums: Sums) -> tuple[Array, Array]:
        """Return the mean of the shifted rows, and the bound on its error."""
        return _ratio(sums, sums.total["sum"], "sum")


@dataclass(frozen=True)
class Count(_Moments):
    """Number of rows of all parties; the value has shape ()."""

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return the count."""
        return super().tensors()[:1]

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        return {"count": np.asarray(float(len(x)))}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        return sums.total["count"], np.asarray(sums.error["count"]), {}


@dataclass(frozen=True)
class Mean(_Moments):
    """Mean of each column; the value has shape (features,)."""

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        mean, error = self._mean(sums)
        return mean + np.asarray(self.shift), error, {}


@dataclass(frozen=True)
class Variance(_Moments):
    """Variance of each column; the value has shape (features,). `detail["mean"]` is the mean.

    Attributes:
        ddof: the divisor is n - ddof.
    """

    ddof: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("ddof", self.ddof, 0)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, sum and sum of squares."""
        square = float(self.bound) * self.bound  # infinite where ** raises; `SummedTensor` refuses it by name
        moment = SummedTensor(
            "squares", (self.features,), self.rows * square, sensitivity=math.sqrt(self.features) * square
        )
        return (*super().tensors(), moment)

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        return super()._summand(x, y) | {"squares": _column_sums(self._shifted(x) ** 2)}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        mean, error = self._mean(sums)
        second, moved = _ratio(sums, sums.total["squares"], "squares")
        # (m + e)^2 differs from m^2 by at most 2 |m| e + e^2
        value, bound = _unbiased(sums, self.ddof, second - mean**2, moved + 2 * np.abs(mean) * error + error**2)
        # rounding takes the variance of a constant column below 0; noise may do so too, and would be biased by a cut
        value = value if sums.noised else np.maximum(value, 0.0)
        return value, bound, {"mean": mean + np.asarray(self.shift)}


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
        square, entries = float(self.bound) * self.bound, self.features * (self.features + 1) // 2
        moment = SummedTensor("products", (entries,), self.rows * square, sensitivity=self.features * square)
        return (*super().tensors(), moment)

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        shifted = self._shifted(x)
        return super()._summand(x, y) | {"products": (shifted.T @ shifted)[np.triu_indices(self.features)]}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        mean, error = self._mean(sums)
        second, moved = _ratio(sums, symmetric(sums.total["products"], self.features), "products")
        cross = np.outer(np.abs(mean), error)  # (m_i + e_i)(m_j + e_j) differs from m_i m_j by these and e_i e_j
        centred, bound = second - np.outer(mean, mean), moved + cross + cross.T + np.outer(error, error)
        value, bound = _unbiased(sums, self.ddof, centred, bound)
        return value, bound, {"mean": mean + np.asarray(self.shift)}


def _column_sums(x: Array) -> Array:
    """Sum each column, rounded once: adding row by row would lose more digits than fixed point does."""
    return np.array([math.fsum(column) for column in x.T])


def symmetric(triangle: Array, size: int) -> Array:
    """Return the symmetric matrix with this upper triangle, row by row."""
    out = np.zeros((size, size))
    out[np.triu_indices(size)] = triangle
    return out + np.triu(out, 1).T


def _at_least_one(sums: Sums) -> float:
    """Return the count, or 1 where noise has made it smaller."""
    return max(float(sums.total["count"]), 1.0)


def _ratio(sums: Sums, total: Array, name: str) -> tuple[Array, Array]:
    """Return total / count, and the bound on its error where the total called `name` and the count are off by theirs.

    With the true t = total + dt and n = count + dn, t / n - ratio = (dt - ratio dn) / n.
    """
    count, error = _at_least_one(sums), sums.error["count"]
    ratio = total / count
    return ratio, (sums.error[name] + np.abs(ratio) * error) / max(count - error, 1.0)


def _unbiased(sums: Sums, ddof: int, moment: Array, error: Array) -> tuple[Array, Array]:
    """Multiply a central moment by n / (n - ddof); return it and the bound on its error, that of the count included."""
    count, off = _at_least_one(sums), sums.error["count"]
    if count <= ddof:
        raise DataError(f"{count:g} rows, and more than ddof={ddof} are needed")
    counts = np.array([count, max(count - off, ddof + 1.0, 1.0), count + off])  # as summed, and how many there may be
    scale, *others = counts / (counts - ddof)  # n / (n - ddof) at each
    moved = max(abs(other - scale) for other in others)
    return moment * scale, error * (scale + moved) + np.abs(moment) * moved
