"""Linear and ridge regression from sums: least squares by the normal equations.

With rows z = (1, x) (or x without an intercept), A = sum z z^T and b = sum z y over all parties, the coefficients are

    w = (A + ridge D)^-1 b        D = identity with 0 for the intercept

What is known are sums with errors, A + dA and b + db. The w computed from them differs from the exact one, wherever
kappa |dA| < 1 (Golub and Van Loan, Matrix Computations, 2.6), by

    |dw| <= kappa (|db| + |dA| |w|) / (1 - kappa |dA|)        kappa = |(A + dA + ridge D)^-1|, spectral norms,

with |w| the norm of the computed one. The errors are those of fixed point, in which exact defences sum; noise is not
counted.

All of this is in units of the powers of two at or above the bounds of x and y, in which every entry is at most 1:
beside the 1 of the intercept, entries of another size would leave A's parts with errors and noise of another size.

Each party adds its own A, b and number of rows to one secure sum (`Statistic` in _base.py). Each tensor of the sum is
declared with its largest entry at one party, and its sensitivity: the largest L2 norm of what one row adds. `_within`
tells the rows that keep to what was declared, `_summand` computes one party's part, and `_value` the coefficients, the
bound on their error, and details by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from securefed._hyperparameters import check_integer, check_number, check_positive
from securefed._tensors import Array
from securefed.errors import DataError
from securefed.parties._summed_tensor import SummedTensor
from securefed.statistics._base import Statistic, Sums, check_table, power_of_two
from securefed.statistics._moments import symmetric


@dataclass(frozen=True)
class LinearRegression(Statistic):
    """Least squares; the value has shape (features,), and `detail["intercept"]` shape ().

    Attributes:
        features: number of columns of x.
        bound: largest absolute entry of x.
        target_bound: largest absolute entry of y.
        rows: most rows of one party.
        ridge: added to the diagonal of the sum of outer products, but for the intercept's entry.
        intercept: whether the model has an intercept.

    Raises:
        ConfigError: a number outside its domain.
    """

    features: int
    bound: float = 1.0
    target_bound: float = 1.0
    rows: int = 2**20
    ridge: float = 0.0
    intercept: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("features", self.features, 1)
        check_integer("rows", self.rows, 1)
        check_positive("bound", self.bound)
        check_positive("target_bound", self.target_bound)
        check_number("ridge", self.ridge, 0)

    @property
    def _unit(self) -> tuple[float, float]:
        """Units of x and of y."""
        return power_of_two(self.bound), power_of_two(self.target_bound)

    @property
    def _width(self) -> int:
        """Number of coefficients, the intercept included."""
        return self.features + int(self.intercept)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, the upper triangle of A, and b."""
        (unit, target_unit), width = self._unit, self._width
        bound, target = self.bound / unit, self.target_bound / target_unit
        largest = 1.0 if self.intercept else bound
        square = self.features * bound**2 + int(self.intercept)  # largest squared norm of a row z
        return (
            SummedTensor("count", (), float(self.rows), sensitivity=1.0),
            SummedTensor("products", (width * (width + 1) // 2,), self.rows * largest**2, sensitivity=square),
            SummedTensor(
                "targets", (width,), self.rows * largest * target, sensitivity=math.sqrt(square) * target
            ),
        )  # fmt: skip

    def _check(self, x: Array, y: Array | None) -> None:
        check_table(x, self.features, self.rows)
        if y is None or y.shape != (len(x),):
            raise DataError(f"y must hold one target for each of {len(x)} rows; got {None if y is None else y.shape}")

    def _within(self, x: Array, y: Array | None) -> Array:
        return np.asarray((np.abs(x) <= self.bound).all(1) & (np.abs(np.asarray(y)) <= self.target_bound))

    def _declared(self) -> str:
        return f"entries of x are at most {self.bound:g}, of y at most {self.target_bound:g}"

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        unit, target_unit = self._unit
        z = np.column_stack([np.ones(len(x)), x / unit]) if self.intercept else x / unit
        return {
            "count": np.asarray(float(len(x))),
            "products": (z.T @ z)[np.triu_indices(self._width)],
            "targets": z.T @ (np.asarray(y) / target_unit),
        }

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        unit, target_unit = self._unit
        matrix = symmetric(sums.total["products"], self._width)
        penalty = np.full(self._width, self.ridge / unit**2)
        if self.intercept:
            penalty[0] = 0.0
        matrix = matrix + np.diag(penalty)
        smallest = float(np.abs(np.linalg.eigvalsh(matrix)).min())
        moved = sums.error["products"] * self._width  # spectral norm of dA, at most its Frobenius norm
        if smallest <= max(moved, 1e-12 * float(np.abs(matrix).max())):
            raise DataError("the columns are (nearly) linearly dependent over all parties; drop some, or give a ridge")
        weights = np.linalg.solve(matrix, sums.total["targets"])
        right = sums.error["targets"] * math.sqrt(self._width)  # norm of db
        # the bound above with kappa = 1 / smallest
        bound = (right + moved * float(np.linalg.norm(weights))) / (smallest - moved)
        first, slope = int(self.intercept), target_unit / unit
        detail = {"intercept": np.asarray(target_unit * weights[0] if self.intercept else 0.0)}
        return slope * weights[first:], np.full(self.features, slope * bound), detail
