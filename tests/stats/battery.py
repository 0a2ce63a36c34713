"""For each statistic, what the same rows give when they are pooled, by another package.

An entry is a statistic, and a function from the pooled frame to what `Estimate` must hold: by name its `value`, or a
detail, each as an array. `OF` names the entries of each class; a class without one fails the battery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
import statsmodels.api as sm

from securefed.statistics import (
    ContingencyTable,
    Correlation,
    Count,
    Covariance,
    GroupBy,
    Histogram,
    LinearRegression,
    Mean,
    MissingValues,
    OrderStatistics,
    Quantiles,
    Skewness,
    Variance,
)  # fmt: skip
from tests.stats.tables import BOUNDS, SEXES, WARDS

Expected = Mapping[str, Any]
NAMES = list(BOUNDS)
EDGES = {"age": tuple(range(0, 121, 10)), "platelets": tuple(np.linspace(0, 1500, 13))}
GRID = {"age": tuple(np.linspace(0, 120, 241)), "dose": tuple(np.geomspace(0.001, 4000, 400))}


@dataclass(frozen=True)
class Entry:
    """A statistic, and what pooled rows give.

    Attributes:
        statistic: what is computed of the sites.
        expected: from the pooled frame, by name the value, details and attributes of the result.
        gaps: whether the tables have missing values.
        within: whether the value is compared up to its own error alone, which a grid sets.
        most_error: largest error that the result may state, in units of 1 + |value|.
    """

    statistic: Any
    expected: Callable[[pd.DataFrame], Expected]
    gaps: bool = True
    within: bool = False
    most_error: float = 1e-7


def moments(kind: Any, **more: Any) -> Any:
    return kind(bound=BOUNDS, rows=300, **more)


def regression(frame: pd.DataFrame, robust: str = "nonrobust", weights: Any = None) -> Expected:
    x = sm.add_constant(frame[["age", "platelets"]].to_numpy())
    fit = (
        sm.OLS(frame["cost"], x).fit(cov_type=robust)
        if weights is None
        else sm.WLS(frame["cost"], x, weights).fit(cov_type=robust)
    )
    made = {"value": fit.params[1:], "intercept_": fit.params.iloc[0], "r2": fit.rsquared, "standard_errors_": fit.bse}
    if robust == "nonrobust":  # statsmodels refers robust ones to the normal
        made |= {"p_values_": fit.pvalues, "statistics_": fit.tvalues}
    return {name: np.asarray(value) for name, value in made.items()}


LINEAR: dict[str, Any] = {
    "bound": {"age": BOUNDS["age"], "platelets": BOUNDS["platelets"]}, "target": "cost", "target_bound": (-200, 600),
    "rows": 300,
}  # fmt: skip

ENTRIES: dict[str, Entry] = {
    "count": Entry(Count(bound=BOUNDS, rows=300, outliers="omit"), lambda f: {"value": len(f[NAMES].dropna())}),
    "mean by row": Entry(moments(Mean, outliers="omit"), lambda f: {"value": f[NAMES].dropna().mean()}),
    "mean by column": Entry(
        moments(Mean, outliers="omit entries"),
        lambda f: {"value": f[NAMES].mean(), "counts": f[NAMES].count(), "missing": f[NAMES].isna().sum()},
    ),
    "variance": Entry(moments(Variance, outliers="omit entries"), lambda f: {"value": f[NAMES].var()}),
    "skewness": Entry(
        moments(Skewness, outliers="omit entries"), lambda f: {"value": scipy.stats.skew(f[NAMES], nan_policy="omit")},
        most_error=1e-5,  # cubes of up to 4000, of doses that are 3 in the mean
    ),
    "covariance": Entry(moments(Covariance, outliers="omit"), lambda f: {"value": f[NAMES].dropna().cov()}),
    "correlation": Entry(moments(Correlation, outliers="omit"), lambda f: {"value": f[NAMES].dropna().corr()}),
    "missing": Entry(
        MissingValues(columns=("age", "ward", "dose"), rows=300),
        lambda f: {"value": f[["age", "ward", "dose"]].isna().sum(), "present": f[["age", "ward", "dose"]].count()},
    ),
    "histogram": Entry(
        Histogram(EDGES, rows=300, least_cell=1, outliers="omit entries"),
        lambda f: {"value": np.stack([np.histogram(f[c].dropna(), edges)[0] for c, edges in EDGES.items()])},
    ),
    "table": Entry(
        ContingencyTable({"ward": WARDS, "sex": SEXES}, rows=300, least_cell=1),
        lambda f: {"value": pd.crosstab(f["ward"], f["sex"]).reindex(index=WARDS, columns=SEXES, fill_value=0)},
    ),
    "quantiles": Entry(
        Quantiles(GRID, probabilities=(0.1, 0.5, 0.9), rows=300, least_cell=1, outliers="omit entries"),
        lambda f: {"value": np.nanquantile(f[list(GRID)], (0.1, 0.5, 0.9), axis=0).T},
        within=True,
    ),
    "order statistics": Entry(
        OrderStatistics(GRID, k=5, rows=300, outliers="omit entries"),
        lambda f: {"value": np.stack([np.sort(f[c].dropna())[[4, -5]] for c in GRID])},
        within=True,
    ),
    "mean by ward": Entry(
        GroupBy(moments(Mean, outliers="omit entries"), "ward", WARDS, least_cell=1),
        lambda f: {
            "value": f.groupby("ward")[NAMES].mean().reindex(WARDS),
            "rows": f["ward"].value_counts().reindex(WARDS, fill_value=0),
            "all": f[NAMES].mean(),
        },
    ),
    "variance by ward": Entry(
        GroupBy(moments(Variance, outliers="omit entries"), "ward", WARDS[:2], least_cell=1),
        lambda f: {"value": f.groupby("ward")[NAMES].var().reindex(WARDS[:2])},
    ),
    "least squares": Entry(
        LinearRegression(**LINEAR, outliers="omit"), lambda f: regression(f.dropna(subset=NAMES[::2]))
    ),
    **{
        f"least squares, {kind}": Entry(
            LinearRegression(**LINEAR, robust=kind, outliers="omit"),
            lambda f, kind=kind: regression(f.dropna(subset=NAMES[::2]), kind),
        )
        for kind in ("HC0", "HC1", "HC2", "HC3")
    },
    "least squares, weighted": Entry(
        LinearRegression(**LINEAR, weights="weight", largest_weight=3.0, outliers="omit"),
        lambda f: regression((g := f.dropna(subset=NAMES[::2])), weights=g["weight"]),
    ),
    "least squares, survey weights": Entry(
        LinearRegression(**LINEAR, weights="weight", largest_weight=3.0, robust="HC0", outliers="omit"),
        lambda f: regression((g := f.dropna(subset=NAMES[::2])), "HC0", g["weight"]),
    ),
}  # fmt: skip
OF = {name: type(entry.statistic).__name__ for name, entry in ENTRIES.items()}
