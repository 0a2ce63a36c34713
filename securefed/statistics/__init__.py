"""Statistics of all parties' rows together, each from one secure sum: what a consortium computes before it trains.

ages = Mean(features=1, bound=120, rows=10_000)          # public: columns, largest entry, most rows of one party

ages.simulate([x0, x1, x2], secure_aggregation()).value   # in one process

terms = ages.terms(clients=3, defense=secure_aggregation())                # between parties (`securefed.parties`)
reply = client.receive(request, lambda: ages.summand(x))
ages.estimate(server.result).value
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from securefed._lazy import lazy_exports

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
    "Count": ("securefed.statistics._moments", "Number of rows."),
    "Mean": ("securefed.statistics._moments", "Mean of each column."),
    "Variance": ("securefed.statistics._moments", "Variance of each column."),
    "Covariance": ("securefed.statistics._moments", "Covariance matrix of the columns."),
    "Histogram": ("securefed.statistics._tables", "Number of rows in each bin, of each column."),
    "ContingencyTable": ("securefed.statistics._tables", "Number of rows with each combination of codes."),
    "LinearRegression": ("securefed.statistics._regression", "Least squares and ridge regression."),
    "Estimate": ("securefed.statistics._base", "The value of a statistic, its error bound and its noise."),
    "Statistic": ("securefed.statistics._base", "Base class of a statistic that follows from one sum."),
}
__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
