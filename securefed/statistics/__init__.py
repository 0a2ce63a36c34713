"""Statistics of all parties' rows together, each from one secure sum: what a consortium computes before it trains.

    ages = Mean(features=1, bound=120, rows=10_000)          # public: columns, largest entry, most rows of one party

    ages.simulate([x0, x1, x2], secure_aggregation()).value   # in one process

    terms = ages.terms(clients=3, defense=secure_aggregation())                # between parties (`securefed.parties`)
    reply = client.receive(request, lambda: ages.summand(x))
    ages.estimate(server.result).value

A statistic's settings are public, and the same at all parties; `Estimate` is its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.statistics._base import Estimate, Statistic
    from securefed.statistics._moments import Count, Covariance, Mean, Variance
    from securefed.statistics._regression import LinearRegression
    from securefed.statistics._tables import ContingencyTable, Histogram

__all__ = [
    "ContingencyTable",
    "Count",
    "Covariance",
    "Estimate",
    "Histogram",
    "LinearRegression",
    "Mean",
    "Statistic",
    "Variance",
]

EXPORTS: Final = {
    "securefed.statistics._moments": "Count Mean Variance Covariance",
    "securefed.statistics._tables": "Histogram ContingencyTable",
    "securefed.statistics._regression": "LinearRegression",
    "securefed.statistics._base": "Estimate Statistic",
}
export_lazily(__name__, EXPORTS)
