"""Score an estimate column by column, so that one heavy-tailed column does not decide about the others.

The leakage of an estimate is one relative Frobenius error, which the column of the largest entries decides: with a
laboratory value in thousands beside ages and blood groups, an estimate that misses it is "worse than a guess" even if
it has every other column right. So each column has a leakage of its own, in its own units, in every run; over the runs
`columns_read` tells which columns were read, with a threshold that allows for their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from scipy.stats import t as student

from securefed._auditing.engine.statistics import EXPOSED_FROM, PARTIAL_FROM
from securefed._tensors import Array

_FEWEST_RUNS: Final = 3
"""Runs below which no column is judged: two runs have an interval twelve times as wide as ten."""
_FALSE: Final = 0.02
"""Probability, over all columns of a cell together, that a column that says nothing counts as read."""
Leaks = Mapping[str, float]
"""By name of a column, its leakage."""


def leaks_by_column(estimate: Array, truth: Array, guess: Array) -> dict[int, float]:
    """Return by place of a column 1 - ||estimate - truth|| / ||guess - truth|| over its entries.

    Columns of which the guess knows all are left out.

    Args:
        estimate: (entries, columns), each column in one unit.
        truth: the secret, of the same shape.
        guess: what could be said without the messages, of the same shape.
    """
    errors, baselines = (np.linalg.norm(values - truth, axis=0) for values in (estimate, guess))
    floor = 1e-12 * np.linalg.norm(truth, axis=0)
    return {int(j): float(1 - errors[j] / baselines[j]) for j in np.flatnonzero(baselines > floor)}


def gram_leaks_by_column(estimate: Array, truth: Array, guess: Array) -> dict[int, float]:
    """Return the same of Gram matrices: line j holds the products of column j, each divided by the other's size."""
    size = np.sqrt(np.maximum(np.diagonal(guess), 0.0))
    size = np.where(size > 0, size, 1.0)[:, None]
    return leaks_by_column(estimate / size, truth / size, guess / size)


def columns_read(runs: Sequence[tuple[Leaks, Leaks]]) -> tuple[tuple[str, ...], bool]:
    """Tell which columns were read, over all runs of an attack.

    A column is read if the lower end of Student's interval of its leakage, at 2 % over all columns together, is above
    .05 and above the mean of its null plus the same width.

    Args:
        runs: for each run the leakages of the columns, and those of the null.

    Returns:
        The names of the columns that were read, the best known first; and whether they are at least half of all
        columns, each with a lower end of .9 or more.
    """
    names = [name for name in (runs[0][0] if runs else {}) if all(name in leaks for leaks, _ in runs)]
    if len(runs) < _FEWEST_RUNS or not names:
        return (), False
    values = np.array([[leaks[name] for name in names] for leaks, _ in runs])
    nulls = np.array([[null.get(name, 0.0) for name in names] for _, null in runs])
    quantile = float(student.ppf(1 - _FALSE / len(names), len(runs) - 1)) / math.sqrt(len(runs))
    low = values.mean(axis=0) - quantile * values.std(axis=0, ddof=1)
    chance = np.maximum(nulls.mean(axis=0) + quantile * nulls.std(axis=0, ddof=1), PARTIAL_FROM)
    chance = np.where(nulls.max(axis=0) < PARTIAL_FROM, PARTIAL_FROM, chance)  # a null that is far below 0 in all runs
    found = [place for place in np.argsort(-low, kind="stable") if low[place] > chance[place]]
    most = 2 * sum(low[place] >= EXPOSED_FROM for place in found) >= len(names)
    return tuple(names[place] for place in found), most


def first_few(names: Sequence[str], most: int = 4) -> str:
    """List names, and count those beyond the first few."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
