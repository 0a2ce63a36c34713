"""A fitted regression: coefficients with standard errors, tests and a summary, under scikit-learn's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from securefed._extras import needed_for
from securefed._tensors import Array
from securefed.statistics._estimate import Estimate

Law = Literal["t", "z"]
INTERCEPT = "intercept"


@dataclass(frozen=True, eq=False)
class Fitted(Estimate):
    """A fitted regression. `value` holds the coefficients without the intercept, and `error` bounds their error.

    Attributes:
        names: names of all parameters, the intercept first where there is one.
        law: whether tests refer to Student's t, with `detail["degrees"]` degrees of freedom, or to the normal (z).
        kind: the model, and how its standard errors were computed, in words.
    """

    names: tuple[str, ...] = ()
    law: Law = "t"
    kind: str = ""

    @property
    def coef_(self) -> Array:
        """Coefficients, (features,)."""
        return self.value

    @property
    def intercept_(self) -> float:
        """The intercept, 0 for a model without one."""
        return float(self.detail["intercept"])

    @property
    def parameters_(self) -> Array:
        """All parameters in the order of `names`."""
        return np.append(self.intercept_, self.value) if len(self.names) > len(self.value) else self.value

    @property
    def covariance_(self) -> Array:
        """Covariance matrix of all parameters, in the order of `names`."""
        return self.detail["covariance"]

    @property
    def standard_errors_(self) -> Array:
        """Standard errors of all parameters; NaN under a ridge, which has none of this kind."""
        return np.sqrt(np.maximum(np.diag(self.covariance_), 0.0)) if np.isfinite(self.covariance_).all() else self._nan

    @property
    def statistics_(self) -> Array:
        """Parameters in units of their standard errors: t or z."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.parameters_ / self.standard_errors_)

    @property
    def p_values_(self) -> Array:
        """Two-sided p values of the parameters."""
        return two_sided(self.statistics_, self._degrees)

    def confidence(self, level: float = 0.95) -> Array:
        """Return confidence intervals of all parameters, (parameters, 2)."""
        from scipy.special import ndtri, stdtrit  # noqa: PLC0415 - loads SciPy

        at = (1 + level) / 2
        width = (ndtri(at) if self.law == "z" else stdtrit(self._degrees, at)) * self.standard_errors_
        return np.stack([self.parameters_ - width, self.parameters_ + width], axis=1)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each parameter.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with needed_for("to_frame()"):
            import pandas as pd  # noqa: PLC0415 - optional
        return pd.DataFrame(self._columns(), index=list(self.names))

    def summary(self) -> str:
        """Return a table of the parameters as text."""
        columns = self._columns()
        width = max(map(len, (*self.names, INTERCEPT)))
        facts = [f"{self.count:.10g} rows of {len(self.survivors)} parties"]
        facts += [f"{words} {float(self.detail[name]):.6g}" for name, words in _FACTS.items() if name in self.detail]
        lines = [f"{self.kind}; {', '.join(facts)}", " " * width + "".join(f"{name:>12}" for name in columns)]
        for at, name in enumerate(self.names):
            lines.append(f"{name:<{width}}" + "".join(f"{column[at]:>12.4g}" for column in columns.values()))
        if self.noise and self.law == "z":
            lines.append("Noise was added to the sums; these standard errors do not count it.")
        return "\n".join(lines)

    def _columns(self) -> dict[str, Array]:
        low, high = self.confidence().T
        return {
            "coef": self.parameters_, "std err": self.standard_errors_, self.law: self.statistics_,
            f"P>|{self.law}|": self.p_values_, "[0.025": low, "0.975]": high,
        }  # fmt: skip

    @property
    def _degrees(self) -> float:
        return float(self.detail["degrees"]) if self.law == "t" else np.inf

    @property
    def _nan(self) -> Array:
        return np.full(len(self.names), np.nan)


_FACTS = {
    "r2": "R2", "log_likelihood": "log-likelihood", "iterations": "iterations", "events": "events",
    "concordance": "concordance",
}  # fmt: skip
"""Details that a summary names, in words."""


def two_sided(statistic: Array, degrees: float) -> Array:
    """Return two-sided p values under Student's t; under the normal for infinitely many degrees of freedom."""
    from scipy.special import ndtr, stdtr  # noqa: PLC0415 - loads SciPy

    tail = -np.abs(statistic)
    return np.asarray(2 * (stdtr(degrees, tail) if np.isfinite(degrees) else ndtr(tail)))
