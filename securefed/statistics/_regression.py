"""Linear and ridge regression from sums: least squares by the normal equations, with standard errors.

With rows z and weights w_i (1 where there are none), A = sum w z z^T, b = sum w z y and q = sum w y^2 over all parties,

    theta = (A + ridge D)^-1 b        D = identity with 0 for the intercept
    RSS = q - 2 theta b + theta A theta        R2 = 1 - RSS / TSS
    covariance of theta = A^-1 RSS / (n - p)

What is known are sums with errors, A + dA and b + db. The theta computed from them differs from the exact one, wherever
kappa |dA| < 1 (Golub and Van Loan, Matrix Computations, 2.6), by

    |dtheta| <= kappa (|db| + |dA| |theta|) / (1 - kappa |dA|)        kappa = |(A + dA + ridge D)^-1|, spectral norms,

with |theta| the norm of the computed one. The errors are those of fixed point, in which exact defences sum; noise is
not counted in `error`, but in the standard errors: independent noise of deviation s in A's entries and r in b's moves
theta by A^-1 (db - dA theta), whose covariance is A^-1 (r^2 I + s^2 (|theta|^2 I + theta theta^T - diag theta^2)) A^-1.

Standard errors that hold where the spread of y depends on x (HC0 to HC3: White 1980; MacKinnon and White 1985) need the
residuals, and so the coefficients first: a second sum, of (w e)^2 z z^T, e = (y - theta z) / (1 - h)^k with k = 0 (HC0,
HC1), 1/2 (HC2) and 1 (HC3), h = w z A^-1 z. With survey weights HC0 is the linearised variance of the survey packages.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from securefed._hyperparameters import check_choice
from securefed._tensors import Array
from securefed.defenses._chain import Link
from securefed.errors import DataError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._design import Design, check_dependence, triangle
from securefed.statistics._estimate import Estimate, Sums
from securefed.statistics._fitted import Fitted
from securefed.statistics._iterations import SeveralSums
from securefed.statistics._moments import symmetric
from securefed.statistics._one_sum import Rows

ROBUST: Final = ("", "HC0", "HC1", "HC2", "HC3")
"""Standard errors: classical ones, and those that hold under unequal spread."""


@dataclass(frozen=True)
class LinearRegression(SeveralSums):
    """Least squares; the value has shape (features,), and `detail["intercept"]` shape ().

    The result has scikit-learn's names (`coef_`, `intercept_`), `standard_errors_`, `p_values_` and `summary()`.
    `detail` holds `r2`, the `covariance` of all parameters, and the residual `variance`. `from_formula` makes a model
    from a formula.

    Attributes:
        features: number of columns of x, where they have no names.
        bound: largest absolute entry of x: one number, one for each column, or a mapping from names of columns to a
            number or to a pair, the lowest and the highest value.
        target_bound: largest absolute entry of y, or a pair, the lowest and the highest.
        rows: most rows of one party.
        ridge: added to the diagonal of the sum of outer products, but for the intercept's entry.
        intercept: whether the model has an intercept.
        columns: names of the columns of x, where `bound` does not name them.
        target: name of the column of targets, where `y` is not given apart.
        weights: name of a column of weights of rows, such as survey weights; empty for none. In arrays it is the last
            column of x.
        largest_weight: largest weight of a row.
        robust: "" for classical standard errors, or "HC0" to "HC3", which hold where the spread of y depends on x.
            They take a second sum (`simulate` and `fit` make both).

    Raises:
        ConfigError: a number outside its domain.
    """

    robust: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("robust", self.robust, ROBUST)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, the upper triangle of A, b, and q."""
        weight, target = self.rows * self.largest_weight, self.target_bound / self.target_unit
        root, most = math.sqrt(self.square), self.largest_weight
        return (
            SummedTensor("count", (), float(self.rows), sensitivity=1.0),
            SummedTensor("products", (self.entries,), weight * self.largest**2, sensitivity=most * self.square),
            SummedTensor("targets", (self.width,), weight * self.largest * target, sensitivity=most * root * target),
            SummedTensor("squares", (), weight * target**2, sensitivity=most * target**2),
        )

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        z, weight = self.rows_of(x)
        target = (np.asarray(y) - self.target_shift) / self.target_unit
        weighted = z * weight[:, None]
        return {
            "count": np.asarray(float(len(x))),
            "products": triangle(z.T @ weighted),
            "targets": weighted.T @ target,
            "squares": np.asarray(math.fsum(weight * target**2)),
        }

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        plain = symmetric(sums.total["products"], self.width)
        matrix, right = plain + np.diag(self.penalty()), sums.total["targets"]
        moved = sums.error["products"] * self.width  # spectral norm of dA, at most its Frobenius norm
        smallest = check_dependence(matrix, moved, self.parameter_names())
        theta = np.linalg.solve(matrix, right)
        right_moved = sums.error["targets"] * math.sqrt(self.width)  # norm of db
        # the bound above with kappa = 1 / smallest
        bound = (right_moved + moved * float(np.linalg.norm(theta))) / (smallest - moved)
        to_natural = self.natural(self.target_unit)
        parameters, errors = to_natural @ theta, np.abs(to_natural) @ np.full(self.width, bound)
        if self.intercept:
            parameters[0] += self.target_shift
        coefficients, intercept = self.split(parameters)
        detail = {"intercept": intercept, **self._quality(sums, plain, theta, to_natural)}
        return coefficients, self.split(errors)[0], detail

    def _quality(self, sums: Sums, matrix: Array, theta: Array, to_natural: Array) -> dict[str, Array]:
        """Return R2, the residual variance, and the covariance of the parameters."""
        rest = float(sums.total["squares"] - 2 * theta @ sums.total["targets"] + theta @ matrix @ theta)
        total = float(sums.total["squares"])
        if self.intercept:
            total -= float(sums.total["targets"][0]) ** 2 / float(matrix[0, 0])
        degrees = float(sums.total["count"]) - self.width
        rest = max(rest, 0.0)
        variance = rest / degrees if degrees > 0 else math.nan
        covariance = np.full(matrix.shape, math.nan)
        if not self.ridge and degrees > 0:
            inverse = np.linalg.inv(matrix)
            covariance = to_natural @ (inverse * variance + _of_noise(sums, inverse, theta)) @ to_natural.T
        return {
            "r2": np.asarray(1 - rest / total if total > 0 else math.nan),
            "variance": np.asarray(variance * self.target_unit**2),
            "degrees": np.asarray(degrees),
            "covariance": covariance,
            "theta": theta,
            "products": matrix,
        }

    def _estimate(self, found: Estimate) -> Fitted:
        facts = {one.name: getattr(found, one.name) for one in fields(Estimate)}
        return Fitted(**facts, names=self.parameter_names(), law="t", kind="Least squares")

    def fitting(self) -> Generator[Any, Any, Fitted]:
        """Yield the statistic of each sum, receive its estimate, and return the fitted model."""
        first: Fitted = yield replace(self, robust="")
        if not self.robust:
            return first
        inverse = np.linalg.inv(first.detail["products"])
        scores = ResidualProducts(
            **{one.name: getattr(self, one.name) for one in fields(Design)},
            theta=tuple(first.detail["theta"]), inverse=tuple(triangle(inverse)), robust=self.robust,
        )  # fmt: skip
        second: Estimate = yield scores
        to_natural = self.natural(self.target_unit)
        covariance = to_natural @ inverse @ second.value @ inverse @ to_natural.T
        if self.robust == "HC1":
            covariance = covariance * first.count / (first.count - self.width)
        kind = f"Least squares, {self.robust} standard errors"
        return replace(first, detail={**first.detail, "covariance": covariance}, kind=kind)

    def simulate(self, parties: Sequence[Rows], defense: Link | None = None) -> Fitted:
        """Fit where all parties' rows are in this process (`Statistic.simulate`)."""
        if self.robust:
            return super().simulate(parties, defense)
        return Design.simulate(self, parties, defense)  # type: ignore[return-value] # one sum is enough


@dataclass(frozen=True)
class ResidualProducts(Design):
    """The sum of (w e)^2 z z^T for robust standard errors; the value has shape (parameters, parameters).

    Attributes:
        theta: parameters of z, public.
        inverse: upper triangle of A^-1, for the leverages h.
        robust: "HC0" to "HC3".
    """

    theta: tuple[float, ...] = field(default=(), kw_only=True)
    inverse: tuple[float, ...] = field(default=(), kw_only=True)
    robust: str = field(default="HC1", kw_only=True)

    @property
    def _largest_residual(self) -> float:
        reach = np.append(np.ones(int(self.intercept)), self.scaled_bounds)
        most = self.target_bound / self.target_unit + float(np.abs(self.theta) @ reach)
        return float(self.largest_weight * most * (2.0**_ROOM if self.robust in ("HC2", "HC3") else 1.0))

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count and the upper triangle."""
        most = self._largest_residual**2
        bound = self.rows * most * self.largest**2
        return (
            SummedTensor("count", (), float(self.rows), sensitivity=1.0),
            SummedTensor("meat", (self.entries,), bound, sensitivity=most * self.square),
        )

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        z, weight = self.rows_of(x)
        target = (np.asarray(y) - self.target_shift) / self.target_unit
        residual = target - z @ np.array(self.theta)
        leverage = weight * np.einsum("ij,jk,ik->i", z, symmetric(np.array(self.inverse), self.width), z)
        power = {"HC2": 0.5, "HC3": 1.0}.get(self.robust, 0.0)
        if power and (leverage > 1 - 2.0**-_ROOM).any():
            raise DataError(
                f"a row has a leverage of {leverage.max():.3g}: it nearly determines a parameter alone, so that "
                f"{self.robust} divides by almost 0; agree on robust='HC1'"
            )
        entries = (weight * residual / (1 - leverage) ** power if power else weight * residual)[:, None] * z
        return {"count": np.asarray(float(len(x))), "meat": triangle(entries.T @ entries)}

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        value = symmetric(sums.total["meat"], self.width)
        return value, np.full(value.shape, sums.error["meat"]), {}


_ROOM: Final = 4
"""HC2 and HC3 allow leverages up to 1 - 2^-4, which bounds their sum. Up to 1 - 2^-8 the bound, and the rounding, would
be 256 times as large; up to 1 - 2^-2, rows of small groups would be refused too."""


def _of_noise(sums: Sums, inverse: Array, theta: Array) -> Array:
    """Return the covariance of theta that comes from noise in A and b."""
    if "products" not in sums.noise:
        return np.zeros(inverse.shape)
    spread = (theta @ theta) * np.eye(len(theta)) + np.outer(theta, theta) - np.diag(theta**2)
    moved = sums.noise["targets"] ** 2 * np.eye(len(theta)) + sums.noise["products"] ** 2 * spread
    return np.asarray(inverse @ moved @ inverse)
