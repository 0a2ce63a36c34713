"""Read single people out of the second moments G = X^T X of the rows X of several clients together.

Line a of G is a weighted sum of rows: G a = sum_i w_i x_i with w = X a. Where a public direction a (`directions`) has a
weight on one row only, G a / w is that row; on few rows it is their weighted mean.

Published centring is undone: a column that takes two values, `low` without the category and `high` with it, has the
weights (x - low) / (high - low). The attacker knows the two values, and the sums that `column_sums` lists; other
columns are read where a direction needs no sums. The values of the rows that dominate a direction
are taken from its own second moment. What the other rows add is taken off as so many mean rows: with sum w_i x_i
= G a + c sum x_i, the mean row m and the sum t of the few rows' weights, x = (G a + c sum x_i - m (sum w_i - t)) / t.
Means to three digits, as a paper prints them, are enough for that where the sums are not known.

Chance is measured by 100 permutations of the weights to other people: the mean of these in place of those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Final

import numpy as np

from securefed._auditing.implied.column_sums import column_sums
from securefed._auditing.implied.public_directions import Direction, directions
from securefed._auditing.implied.truth import Truth
from securefed._tensors import Array

_PERMUTATIONS: Final = 100
_QUANTILE: Final = 0.99
_FEWEST: Final = 3
"""Fewest columns beside those of the direction itself: two values of a person may be right by chance."""

_LEAST: Final = -1.0
_GAIN: Final = 0.05
"""Leakage that an estimate by printed means must gain over one without them."""
DIGITS: Final = 3
"""Digits of a mean that a paper prints, which the attacker knows where second moments do not show it."""


@dataclass(frozen=True)
class ReadPeople:
    """An estimate of the people of one direction, scored.

    Attributes:
        words: who they are, in a sentence part that says whether it is one row or a mean.
        count: their number.
        leakage: 1 - error / error of the pool's mean, over the scaled columns beside those of the direction; at least
            -1, since an estimate worse than the guess says nothing of people, however bad it is.
        error: relative error of the scaled estimate.
        baseline: that of the pool's mean.
        others: leakages of as many other people in place of these, drawn when they are asked for.
    """

    words: str
    count: int
    leakage: float
    error: float
    baseline: float
    others: Callable[[], Array] = field(compare=False, repr=False)

    @cached_property
    def chance(self) -> float:
        """The 99 % quantile of the leakages of other people."""
        return float(np.quantile(self.others(), _QUANTILE))


def people_in_moments(gram: Array, rows: Array, truth: Truth) -> ReadPeople | None:
    """Read the people of each public direction; return those that are read best.

    Args:
        gram: the estimated second moments, (features, features).
        rows: the rows that they sum over; they give the directions their weights, and score the estimates.
        truth: names, scales and the number of people from which on a mean is no leak.

    Returns:
        The best direction's; `None` where no public direction has few rows.
    """
    sums, found = column_sums(gram, rows), list[tuple[float, ReadPeople]]()
    for direction in directions(rows, truth):
        for estimate, words, gain in _estimates(gram, sums, direction, rows):
            read = score_people(estimate, words, direction.weights, direction.columns, rows, truth)
            if read is not None:
                found.append((gain - read.leakage, read))
    best = [read for _, read in sorted(found, key=itemgetter(0))]
    above = (read for read in best if read.leakage > 0 and read.leakage > read.chance)
    return next(above, best[0] if best else None)


def _estimates(gram: Array, sums: Array, direction: Direction, rows: Array) -> Iterator[tuple[Array, str, float]]:
    """Yield estimates of the weighted mean of a direction's rows, NaN in columns of which too little is known.

    Args:
        gram: the estimated second moments.
        sums: sums of the columns; NaN where the attacker does not know them.
        direction: the direction.
        rows: the rows.

    Yields:
        An estimate, the words for the people with what it needs, and by how much it must be better than another one.
    """
    one, constant, words = direction.coefficients, direction.constant, direction.words
    line = np.asarray(gram @ one)
    if direction.total:
        yield (line + constant * sums if constant else line) / direction.total, words, 0.0
        return
    if constant == 0 and (total := _large(direction, float(one @ line))):
        yield line / total, words, 0.0
    unknown, count = np.isnan(sums), len(rows)
    printed = np.array([float(f"{mean:.{DIGITS}g}") for mean in rows.mean(axis=0)])
    means = np.where(unknown, printed, sums / count)
    weights = count * (float(means @ one) + constant)
    squares = float(one @ line) + constant * (weights + count * float(means @ one))
    if total := _large(direction, squares):
        needs = f", by means of columns to {DIGITS} digits" if unknown.any() else ""
        estimate = (line + constant * count * means - means * (weights - total)) / total
        yield estimate, words + needs, _GAIN if needs else 0.0


def _large(direction: Direction, squares: float) -> float:
    """Return about the sum of the weights of a direction's rows, which hold most of the squares; 0 for no squares."""
    return float(np.sign(direction.weights.sum())) * math.sqrt(len(direction.people) * max(squares, 0.0))


def score_people(
    estimate: Array, words: str, weights: Array, columns: Sequence[int], rows: Array, truth: Truth
) -> ReadPeople | None:
    """Compare an estimate with the weighted mean of a few rows, column by column.

    Args:
        estimate: (features,) the estimated weighted mean; columns where it is not finite do not count.
        words: who the people are.
        weights: (rows,) the weight of every row; few are not 0.
        columns: columns that define these people, which are known of them anyway and do not count.
        rows: all rows of the pool.
        truth: names and scales of the columns.

    Returns:
        The score; `None` where fewer than three columns count.
    """
    scale = truth.scale
    varied = np.setdiff1d(np.flatnonzero(rows.std(axis=0) > 0), columns)
    counted, places = varied[np.isfinite(estimate[varied])], np.flatnonzero(weights)
    if len(counted) < _FEWEST or not len(places):
        return None
    scaled = rows[:, counted] / scale[counted]
    shares = weights[places] / weights[places].sum()
    true, guess = shares @ scaled[places], scaled.mean(axis=0)
    baseline, rest = float(np.linalg.norm(guess - true)), np.setdiff1d(np.arange(len(rows)), places)
    if not len(rest) or baseline == 0:
        return None

    def others() -> Array:
        rng = np.random.default_rng([truth.seed, 17])
        drawn = rest[rng.integers(len(rest), size=(_PERMUTATIONS, len(places)))]
        return np.asarray(1 - np.linalg.norm(np.einsum("m,pmj->pj", shares, scaled[drawn]) - true, axis=1) / baseline)

    error, size = float(np.linalg.norm(estimate[counted] / scale[counted] - true)), float(np.linalg.norm(true)) or 1.0
    who = f"{_who(len(places))}{_where(len(counted), len(varied))} ({words})"
    return ReadPeople(who, len(places), max(1 - error / baseline, _LEAST), error / size, baseline / size, others)


def _where(counted: int, columns: int) -> str:
    return "" if counted == columns else f" in {counted} of {columns} other columns"


def _who(count: int) -> str:
    return "the row of one person" if count == 1 else f"the mean of {count} people"
