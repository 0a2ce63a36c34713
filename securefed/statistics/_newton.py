"""Logistic and Poisson regression by Newton's method, each iteration from one secure sum.

With rows z, weights w (1 where there are none), eta = theta z, mean mu(eta) and variance v(eta) of the target, which
is mu (1 - mu) for a yes or no and mu for a count, each party adds at the current theta

    score s = sum w z (y - mu)        information I = sum w v z z^T        log-likelihood l
    products M = sum w^2 (y - mu)^2 z z^T, for robust standard errors

and theta moves by (I + ridge D)^-1 (s - ridge D theta). The covariance is I^-1; robust, I^-1 M I^-1. Poisson regression
starts where statsmodels and R do, one weighted least squares step of log y: from 0 its first step may be astronomic.

theta is public to all parties, as it is the broadcast of every iteration. What the sums hold has public bounds: |z| is
at most 1 in its units, so |eta| is at most |theta_0| + sum |theta_c| b_c.

The result is known up to |I^-1| times the error of the score, plus the last step. With noise the steps end where they
are as small as what noise does to them. Where the last steps do not shrink,
or I vanishes on the way, some columns tell the outcomes apart entirely: then there is no maximum (`SeparationError`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

import numpy as np

from securefed._hyperparameters import check_choice, check_positive
from securefed._tensors import Array
from securefed.errors import CollinearityError, ConfigError, ConvergenceError
from securefed.parties._terms_parts import SummedTensor
from securefed.statistics._design import Design, check_dependence, triangle
from securefed.statistics._estimate import Estimate, Sums
from securefed.statistics._fitted import Fitted
from securefed.statistics._iterations import SETTLED, Iterated, separated, stuck
from securefed.statistics._moments import symmetric

Family = Literal["binomial", "poisson"]


@dataclass(frozen=True)
class NewtonStep(Design):
    """One iteration of a regression: the value is the score at `theta`, (parameters,); `detail` holds the rest.

    Attributes:
        family: "binomial" or "poisson".
        theta: parameters of z, public; empty for the first step of a Poisson regression.
    """

    family: Family = field(default="binomial", kw_only=True)
    theta: tuple[float, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("family", self.family, ("binomial", "poisson"))
        if self.target_shift:
            raise ConfigError("targets of this regression start at 0: give target_bound as one number")
        if self.theta and len(self.theta) != self.width:
            raise ConfigError(f"theta holds {len(self.theta)} numbers, and the model has {self.width} parameters")

    @property
    def _reach(self) -> float:
        """Largest absolute value of eta."""
        reach = np.append(np.ones(int(self.intercept)), self.scaled_bounds)
        return float(np.abs(self.theta) @ reach) if self.theta else 0.0

    def _largest(self) -> tuple[float, float, float]:
        """Return the largest weight in I, residual, and log-likelihood of a row."""
        reach, most = self._reach, self.target_bound
        if self.family == "binomial":
            return 0.25, 1.0, reach + math.log(2)
        if not self.theta:
            return most + 0.1, (most + 0.1) * (math.log(most + 1.1) + 3), 1.0
        mean = math.exp(min(reach, _LARGEST_ETA))
        return mean, max(most, mean), most * reach + mean + math.lgamma(most + 1)

    def tensors(self) -> tuple[SummedTensor, ...]:
        """Return count, information, the score with the log-likelihood behind it, and products of scores.

        The score is 0 at the maximum, within its error; beside the log-likelihood that is no loss of all digits.
        """
        (weight, residual, likelihood), rows = self._largest(), float(self.rows)
        most, root = self.largest_weight, math.sqrt(self.square)
        of_weight, of_residual, of_product = most * weight, most * residual, (most * residual) ** 2
        tail = most * likelihood
        largest = max(of_residual * self.largest, tail)
        return (
            SummedTensor("count", (), rows, sensitivity=1.0),
            SummedTensor(
                "information", (self.entries,), rows * of_weight * self.largest**2, sensitivity=of_weight * self.square
            ),
            SummedTensor("score", (self.width + 1,), rows * largest, sensitivity=math.hypot(of_residual * root, tail)),
            SummedTensor(
                "squares", (self.entries,), rows * of_product * self.largest**2, sensitivity=of_product * self.square
            ),
        )

    def _within(self, x: Array, y: Array | None) -> Array:
        target = np.asarray(y)
        fits = np.isin(target, (0.0, 1.0)) if self.family == "binomial" else target >= 0
        return np.asarray(super()._within(x, y) & fits)

    def _declared(self) -> str:
        return super()._declared() + ("; targets are 0 or 1" if self.family == "binomial" else "; targets are counts")

    def _moments(self, eta: Array, y: Array) -> tuple[Array, Array, Array]:
        """Return variances, residuals and log-likelihoods."""
        from scipy.special import expit, gammaln  # noqa: PLC0415 - loads SciPy

        if self.family == "binomial":
            mean = expit(eta)
            return mean * (1 - mean), y - mean, y * eta - np.logaddexp(0.0, eta)
        if not self.theta:
            mean = y + 0.1
            return mean, mean * np.log(mean) + y - mean, np.zeros(len(y))
        mean = np.exp(eta)
        return mean, y - mean, y * eta - mean - gammaln(y + 1)

    def _summand(self, x: Array, y: Array | None) -> dict[str, Array]:
        z, weight = self.rows_of(x)
        eta = z @ np.array(self.theta) if self.theta else np.zeros(len(z))
        variance, residual, likelihood = self._moments(eta, np.asarray(y))
        scores = z * (weight * residual)[:, None]
        return {
            "count": np.asarray(float(len(x))),
            "information": triangle(z.T @ (z * (weight * variance)[:, None])),
            "score": np.append(scores.sum(0), math.fsum(weight * likelihood)),
            "squares": triangle(scores.T @ scores),
        }

    def _value(self, sums: Sums) -> tuple[Array, Array, dict[str, Array]]:
        detail = {
            "information": symmetric(sums.total["information"], self.width),
            "squares": symmetric(sums.total["squares"], self.width),
            "likelihood": np.asarray(sums.total["score"][-1]),
            "information_error": np.asarray(sums.error["information"] * self.width),
            "score_error": np.asarray(sums.error["score"] * math.sqrt(self.width)),
            "information_noise": np.asarray(sums.noise.get("information", 0.0) * 2 * math.sqrt(self.width)),
            "score_noise": np.asarray(sums.noise.get("score", 0.0) * math.sqrt(self.width)),
        }
        return sums.total["score"][:-1], np.full(self.width, sums.error["score"]), detail

    def _labels(self, value: Array) -> tuple[tuple[str, ...], ...]:
        return (self.parameter_names(),)


_LARGEST_ETA: Final = 30.0
"""Largest eta that the bounds of a Poisson regression count with: e^30 rows are more than any party has. A party whose
means exceed it sits out."""


@dataclass(frozen=True)
class _Newton(Iterated):
    """A regression that is fitted by Newton's method.

    Attributes:
        robust: whether standard errors are robust (HC0), as for survey weights.
    """

    robust: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("target_bound", self.target_bound)

    @property
    @abstractmethod
    def _family(self) -> Family:
        """Law of the target."""

    def step(self, theta: tuple[float, ...]) -> NewtonStep:
        """Return the statistic of one iteration."""
        settings = {one.name: getattr(self, one.name) for one in fields(Design)}
        return NewtonStep(**settings, family=self._family, theta=theta)

    def _first(self) -> NewtonStep:
        return self.step(() if self._family == "poisson" else (0.0,) * self.width)

    def fitting(self) -> Generator[Any, Any, Fitted]:
        """Yield the statistic of each sum, receive its estimate, and return the fitted model."""
        names, sizes = self.parameter_names(), list[float]()
        found = yield self._first()
        theta, move = self._moved(np.zeros(self.width), found, names, first=True)
        if self._family == "binomial":
            sizes.append(float(np.abs(move).max()))
        for iteration in range(2, self.iterations + 1):
            found = yield self.step(tuple(theta.tolist()))
            try:
                after, move = self._moved(theta, found, names, first=False)
            except CollinearityError as error:
                raise separated(move, names, found) from error
            size, floor = float(np.abs(move).max()), self._floor(found)
            if size <= max(SETTLED, 4 * (floor + self._floor(found, "score_noise"))):
                return self._fitted(found, after, size + floor, iteration)
            sizes.append(size)
            if stuck(sizes):
                raise separated(move, names, found)
            theta = after
        raise self._unsettled(move, names)

    def _moved(self, theta: Array, found: Estimate, names: tuple[str, ...], *, first: bool) -> tuple[Array, Array]:
        """Return theta after one step, and the step."""
        penalty = self.penalty()
        matrix = found.detail["information"] + np.diag(penalty)
        noise = float(found.detail["information_noise"])  # about the spectral norm of the noise
        if noise and float(np.linalg.eigvalsh(matrix)[0]) <= 2 * noise:
            raise separated(np.linalg.eigh(matrix)[1][:, 0], names, found)
        check_dependence(matrix, float(found.detail["information_error"]), names)
        move = np.linalg.solve(matrix, found.value - penalty * theta)
        if not first and not np.isfinite(move).all():
            raise ConvergenceError("a step is not finite; give bounds near the largest entries, or a ridge")
        return theta + move, move

    def _floor(self, found: Estimate, of: str = "score_error") -> float:
        """Return the bound on theta's error that comes from the errors of the sums, or theta's spread by noise."""
        matrix = found.detail["information"] + np.diag(self.penalty())
        smallest = float(np.abs(np.linalg.eigvalsh(matrix)).min())
        return float(found.detail[of]) / max(smallest - float(found.detail["information_error"]), 1e-300)

    def _fitted(self, found: Estimate, theta: Array, bound: float, iterations: int) -> Fitted:
        """Return the model in the units of x."""
        to_natural = self.natural(1.0)
        parameters, errors = to_natural @ theta, np.abs(to_natural) @ np.full(self.width, bound)
        covariance = np.full((self.width, self.width), math.nan)
        if not self.ridge:
            inverse = np.linalg.inv(found.detail["information"])
            middle = inverse @ found.detail["squares"] @ inverse if self.robust else inverse
            covariance = to_natural @ middle @ to_natural.T
        coefficients, intercept = self.split(parameters)
        detail = {
            "intercept": intercept, "covariance": covariance, "log_likelihood": found.detail["likelihood"],
            "iterations": np.asarray(float(iterations)),
        }  # fmt: skip
        made = replace(
            found, value=coefficients, error=self.split(errors)[0], detail=detail, labels=self._labels(coefficients)
        )
        facts = {one.name: getattr(made, one.name) for one in fields(Estimate)}
        spread = ", robust standard errors" if self.robust else ""
        return Fitted(**facts, names=self.parameter_names(), law="z", kind=f"{type(self).__name__}{spread}")


@dataclass(frozen=True)
class LogisticModel(_Newton):
    """Logistic regression of a target that is 0 or 1; the value has shape (features,).

    The result has scikit-learn's names (`coef_`, `intercept_`), `standard_errors_`, `p_values_` and `summary()`. There
    is no penalty unless `ridge` is given, which adds ridge / 2 |coef|^2 to the negative log-likelihood. `fit(ask)` and
    `simulate(parties, defense)` take one secure sum for each iteration. With noise its standard errors do not count it.
    Settings are those of `LinearRegression`, and `iterations`, the most sums; `robust` is true or false.
    """

    @property
    def _family(self) -> Family:
        return "binomial"


@dataclass(frozen=True)
class PoissonModel(_Newton):
    """Poisson regression of a target that counts, with a log link; the value has shape (features,).

    As `LogisticModel`; `target_bound` is the largest count.
    """

    @property
    def _family(self) -> Family:
        return "poisson"
