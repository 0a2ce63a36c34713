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
import statsmodels.formula.api as smf
from lifelines import CoxPHFitter, KaplanMeierFitter
from lifelines.statistics import multivariate_logrank_test

from securefed.statistics import (
    ANOVA,
    ChiSquare,
    ContingencyTable,
    Correlation,
    Count,
    Covariance,
    CoxModel,
    GroupBy,
    Histogram,
    KaplanMeier,
    LinearRegression,
    LogisticModel,
    LogRank,
    Mean,
    MissingValues,
    OrderStatistics,
    PoissonModel,
    Quantiles,
    Skewness,
    TTest,
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


def glm(frame: pd.DataFrame, family: Any, target: str, *, weights: str = "", robust: bool = False) -> Expected:
    f = frame.dropna(subset=NAMES[::2])
    x = sm.add_constant(f[["age", "platelets"]].to_numpy())
    fit = sm.GLM(f[target], x, family, freq_weights=f[weights] if weights else None).fit(
        tol=1e-14, maxiter=100, cov_type="HC0" if robust else "nonrobust"
    )
    made = {
        "value": fit.params[1:], "intercept_": fit.params.iloc[0], "standard_errors_": fit.bse,
        "p_values_": fit.pvalues, "statistics_": fit.tvalues,
    }  # fmt: skip
    if not weights:
        made["log_likelihood"] = fit.llf
    return {name: np.asarray(value) for name, value in made.items()}


def lives(frame: pd.DataFrame, times: Any) -> pd.DataFrame:
    """The rows with times rounded to the grid; those that last longer leave it alive at its end."""
    f = frame.dropna(subset=NAMES[::2]).copy()
    places = np.searchsorted(times, f["time"])
    f["died"] = np.where(places < len(times), f["died"], 0.0)
    f["time"] = np.append(times, times[-1] + 1)[places]
    return f


def kaplan_meier(frame: pd.DataFrame) -> Expected:
    curves, low, high = [], [], []
    for sex in SEXES:
        f = lives(frame, GRID_OF_TIMES)
        f = f[f["sex"] == sex]
        fit = KaplanMeierFitter().fit(f["time"], f["died"])
        curves.append(fit.survival_function_at_times(GRID_OF_TIMES))
        interval = fit.confidence_interval_.reindex(np.append(0, GRID_OF_TIMES), method="ffill").iloc[1:]
        low.append(interval.iloc[:, 0])
        high.append(interval.iloc[:, 1])
    return {"value": np.stack(curves), "low": np.stack(low), "high": np.stack(high)}


def log_rank(frame: pd.DataFrame) -> Expected:
    f = lives(frame, GRID_OF_TIMES)
    fit = multivariate_logrank_test(f["time"], f["ward"].replace("burns", "surgery"), f["died"])
    return {"value": fit.test_statistic, "p": fit.p_value}


def cox(frame: pd.DataFrame) -> Expected:
    f = lives(frame, GRID_OF_TIMES)[["age", "platelets", "time", "died"]]
    fit = CoxPHFitter().fit(f, "time", "died", fit_options={"precision": 1e-14})
    return {
        "value": fit.params_, "standard_errors_": fit.standard_errors_, "log_likelihood": fit.log_likelihood_,
        "p_values_": fit.summary["p"],
    }  # fmt: skip


def hazards(frame: pd.DataFrame, ties: str, columns: Any = ("age", "platelets")) -> Expected:
    """Cox regression by statsmodels, whose Newton steps go on to the last digits; lifelines stops a little before."""
    f = lives(frame, GRID_OF_TIMES).assign(sex=lambda each: (each["sex"] == "m") * 1.0)
    fit = sm.PHReg(f["time"], f[list(columns)], f["died"], ties=ties).fit(tol=1e-12)
    return {"value": fit.params, "standard_errors_": fit.bse}


def by_group(frame: pd.DataFrame, test: Any) -> Expected:
    made = [test(*(f[name].dropna() for _, f in frame.groupby("sex"))) for name in NAMES]
    return {"value": [one.statistic for one in made], "p": [one.pvalue for one in made]}


def formulas(frame: pd.DataFrame, kind: Any, text: str, *last: str, fit: Any = None, **more: Any) -> Expected:
    """What statsmodels makes of a formula; `last` are the parameters that we have at the end."""
    made = kind(text, frame.dropna(subset=NAMES[::2]), **more).fit(**(fit or {}))
    order = [name for name in made.params.index if name not in last] + list(last)
    return {"parameters_": made.params[order], "standard_errors_": made.bse[order]}


GRID_OF_TIMES = np.arange(2.0, 41.0, 2.0)
COVARIATES = {"age": BOUNDS["age"], "platelets": BOUNDS["platelets"]}
FORMULA: dict[str, Any] = {
    "bounds": COVARIATES, "levels": {"sex": SEXES, "group": ("icu", "surgery")}, "rows": 300, "outliers": "omit"
}  # fmt: skip
NEWTON: dict[str, Any] = {"bound": COVARIATES, "rows": 300, "outliers": "omit"}
LIVES: dict[str, Any] = {**NEWTON, "target": "time", "event": "died", "times": GRID_OF_TIMES, "least_events": 1}
TABLE: dict[str, Any] = {"times": GRID_OF_TIMES, "event": "died", "rows": 300, "least_events": 1}
GROUPS: dict[str, Any] = {
    "bound": BOUNDS, "by": "sex", "levels": SEXES, "rows": 300, "least_cell": 2, "outliers": "omit entries"
}  # fmt: skip


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
    "logistic": Entry(
        LogisticModel(**NEWTON, target="readmitted"), lambda f: glm(f, sm.families.Binomial(), "readmitted")
    ),
    "logistic, survey weights": Entry(
        LogisticModel(**NEWTON, target="readmitted", weights="weight", largest_weight=3.0),
        lambda f: glm(f, sm.families.Binomial(), "readmitted", weights="weight"),
    ),
    "logistic, robust": Entry(
        LogisticModel(**NEWTON, target="readmitted", robust=True),
        lambda f: glm(f, sm.families.Binomial(), "readmitted", robust=True),
    ),
    "poisson": Entry(
        PoissonModel(**NEWTON, target="visits", target_bound=60),
        lambda f: glm(f, sm.families.Poisson(), "visits"),
    ),
    "kaplan-meier": Entry(
        KaplanMeier(**TABLE, by="sex", levels=SEXES, outliers="omit"), kaplan_meier, gaps=False
    ),
    "log-rank": Entry(
        LogRank(**{**TABLE, "least_events": 1}, by="group", levels=("icu", "surgery"), outliers="omit"), log_rank,
        gaps=False,
    ),
    "cox": Entry(CoxModel(**LIVES), cox),
    "cox, breslow": Entry(CoxModel(**LIVES, ties="breslow"), lambda f: hazards(f, "breslow")),
    "least squares by formula": Entry(
        LinearRegression.from_formula("cost ~ sex + group + age*sex + platelets", target_bound=(-200, 600), **FORMULA),
        lambda f: formulas(f, smf.ols, "cost ~ sex + group + age + age:sex + platelets", "platelets", "age:sex[T.m]"),
    ),
    "least squares without an intercept": Entry(
        LinearRegression.from_formula("cost ~ age + platelets - 1", target_bound=600, **{**FORMULA, "levels": {}}),
        lambda f: formulas(f, smf.ols, "cost ~ age + platelets - 1"),
    ),
    "logistic by formula": Entry(
        LogisticModel.from_formula("readmitted ~ C(group) + age + age:platelets", **FORMULA),
        lambda f: formulas(
            f, smf.glm, "readmitted ~ group + age + age:platelets", family=sm.families.Binomial(),
            fit={"tol": 1e-14, "maxiter": 100},
        ),
    ),
    "cox by formula": Entry(
        CoxModel.from_formula("sex + age", **FORMULA, target="time", event="died", times=GRID_OF_TIMES, least_events=1),
        lambda f: hazards(f, "efron", ["sex", "age"]), gaps=False,
    ),
    "welch": Entry(TTest(**GROUPS), lambda f: by_group(f, lambda a, b: scipy.stats.ttest_ind(a, b, equal_var=False))),
    "student": Entry(TTest(**GROUPS, equal_variances=True), lambda f: by_group(f, scipy.stats.ttest_ind)),
    "anova": Entry(ANOVA(**GROUPS), lambda f: by_group(f, scipy.stats.f_oneway)),
    "chi-square": Entry(
        ChiSquare({"group": ("icu", "surgery"), "sex": SEXES}, rows=300, least_cell=1),
        lambda f: dict(
            zip(
                ("value", "p"),
                scipy.stats.chi2_contingency(pd.crosstab(f["group"], f["sex"]), correction=False)[:2],
                strict=True,
            )
        ),
    ),
}  # fmt: skip
OF = {name: type(entry.statistic).__name__ for name, entry in ENTRIES.items()}
