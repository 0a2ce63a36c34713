"""Write the settings of a statistic into the terms of its sum, and make the statistic from the terms at each party.

Settings are public: columns, bounds, edges, levels of categories. In the terms they are agreed once, and parties that
understood them differently (another order of levels) have other terms, whose messages are refused.
"""

from __future__ import annotations

import json
from dataclasses import fields
from importlib import import_module
from typing import Any, Final

import numpy as np

from securefed.errors import ConfigError, DataError
from securefed.parties._terms import SumTerms

_MODULES: Final = {
    "_moments": "Count Mean Variance Skewness Covariance Correlation",
    "_regression": "LinearRegression ResidualProducts",
    "_tables": "MissingValues Histogram ContingencyTable",
    "_quantiles": "Quantiles OrderStatistics",
    "_grouped": "GroupBy",
    "_together": "Together",
    "_newton": "NewtonStep",
    "_survival": "KaplanMeier LogRank",
    "_cox": "EventCounts CoxStep",
    "_tests": "TTest ANOVA ChiSquare",
}
STATISTICS: Final = {name: module for module, names in _MODULES.items() for name in names.split()}
"""By name of its class, the module of each statistic whose settings terms hold."""
_KIND: Final = "class"


def settings_text(statistic: Any) -> str | None:
    """Return a statistic's settings as JSON; `None` for a class of the caller's own, which each party makes in code."""
    made = _written(statistic)
    return None if made is None else json.dumps(made, sort_keys=True)


def from_terms(terms: SumTerms) -> Any:
    """Make the statistic whose sum these terms describe, with the settings that all parties agreed on.

        statistic = from_terms(SumTerms.from_bytes(Path("terms.json").read_bytes()))
        statistic.summand(read_table("site.csv"))

    Raises:
        ConfigError: the terms are of no statistic of this package, or bind it to a base.
        DataError: their settings cannot be read.
    """
    if not isinstance(terms, SumTerms):
        raise ConfigError(f"from_terms needs the terms of a sum; got {type(terms).__name__}")
    if terms.about is None:
        raise ConfigError(
            "these terms do not say what is summed; take terms that `Statistic.terms` made, of a statistic of this "
            "package, or make the statistic in code, alike at all parties"
        )
    if terms.base:
        raise ConfigError(
            "these terms bind a statistic to a base: the rows of a party add the same to it under every base, so that "
            "sums over all parties and all but one would subtract; take terms that `Statistic.terms` made"
        )
    try:
        made = _read(json.loads(terms.about))
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise DataError(f"the settings of a statistic in these terms cannot be read: {error!r}") from error
    if not hasattr(made, "summed_tensors") or made.summed_tensors() != terms.tensors:
        raise DataError("the settings of a statistic in these terms do not fit the tensors that they sum")
    return made


def _written(value: Any) -> Any:
    """Return a value of a setting as JSON has it; `None` in place of a statistic that is not of this package."""
    kind = type(value).__name__
    if hasattr(value, "summed_tensors"):
        if type(value).__module__ != f"securefed.statistics.{STATISTICS.get(kind)}":
            return None
        settings = {one.name: _written(getattr(value, one.name)) for one in fields(value)}
        asked = [getattr(value, name) for name in settings]
        if any(new is None and old is not None for new, old in zip(settings.values(), asked, strict=True)):
            return None
        return {_KIND: kind, **settings}
    if isinstance(value, tuple | list):
        made = [_written(item) for item in value]
        return None if any(new is None and old is not None for new, old in zip(made, value, strict=True)) else made
    return value.item() if isinstance(value, np.generic) else value


def _read(value: Any) -> Any:
    """Return what `_written` wrote."""
    if isinstance(value, list):
        return tuple(map(_read, value))
    if not isinstance(value, dict):
        return value
    settings = {name: _read(item) for name, item in value.items()}
    kind = settings.pop(_KIND)
    cls = getattr(import_module(f"securefed.statistics.{STATISTICS[kind]}"), kind)
    return cls(*settings.pop("statistics", ()), **settings)
