"""Statistics of all parties' rows together, each from one secure sum: what a consortium computes before it trains.

    ages = Mean(features=1, bound=120, rows=10_000)          # public: columns, largest entry, most rows of one party

    ages.simulate([x0, x1, x2], secure_aggregation()).value   # in one process

    terms = ages.terms(clients=3, defense=secure_aggregation())                # between parties (`securefed.parties`)
    reply = client.receive(request, lambda: from_terms(terms).summand(x))
    ages.estimate(server.result).value

`Together` computes several of them in one exchange. A statistic's settings are public, and the same at all parties:
they stand in the terms. `Estimate` is its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.statistics._base import Statistic
    from securefed.statistics._cox import CoxModel
    from securefed.statistics._estimate import Estimate, Estimates
    from securefed.statistics._fitted import Fitted
    from securefed.statistics._grouped import GroupBy
    from securefed.statistics._moments import Correlation, Count, Covariance, Mean, Skewness, Variance
    from securefed.statistics._newton import LogisticModel, PoissonModel
    from securefed.statistics._quantiles import OrderStatistics, Quantiles
    from securefed.statistics._regression import LinearRegression
    from securefed.statistics._settings import from_terms
    from securefed.statistics._survival import KaplanMeier, LogRank
    from securefed.statistics._tables import ContingencyTable, Histogram, MissingValues
    from securefed.statistics._tests import ANOVA, ChiSquare, TTest
    from securefed.statistics._together import Together

__all__ = [
    "ANOVA",
    "ChiSquare",
    "ContingencyTable",
    "Correlation",
    "Count",
    "Covariance",
    "CoxModel",
    "Estimate",
    "Estimates",
    "Fitted",
    "GroupBy",
    "Histogram",
    "KaplanMeier",
    "LinearRegression",
    "LogRank",
    "LogisticModel",
    "Mean",
    "MissingValues",
    "OrderStatistics",
    "PoissonModel",
    "Quantiles",
    "Skewness",
    "Statistic",
    "TTest",
    "Together",
    "Variance",
    "from_terms",
]

EXPORTS: Final = {
    "securefed.statistics._together": "Together",
    "securefed.statistics._moments": "Count Mean Variance Skewness Covariance Correlation",
    "securefed.statistics._tables": "MissingValues Histogram ContingencyTable",
    "securefed.statistics._quantiles": "Quantiles OrderStatistics",
    "securefed.statistics._grouped": "GroupBy",
    "securefed.statistics._regression": "LinearRegression",
    "securefed.statistics._newton": "LogisticModel PoissonModel",
    "securefed.statistics._survival": "KaplanMeier LogRank",
    "securefed.statistics._cox": "CoxModel",
    "securefed.statistics._tests": "TTest ANOVA ChiSquare",
    "securefed.statistics._base": "Statistic",
    "securefed.statistics._estimate": "Estimate Estimates",
    "securefed.statistics._fitted": "Fitted",
    "securefed.statistics._settings": "from_terms",
}
export_lazily(__name__, EXPORTS)
