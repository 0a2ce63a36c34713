"""Read single people out of the second moments G = X^T X of the rows X of several clients together.

Line a of G is a weighted sum of rows: G a = sum_i w_i x_i with w = X a. Where a public direction a (`directions`) has a
weight on one row only, G a / w is that row; on few rows it is their weighted mean.

Published centring is undone: a column that takes two values, `low` without the category and `high` with it, has the
weights (x - low) / (high - low). The attacker knows the two values, and the sums that `column_sums` lists; other
columns are read where a direction needs no sums. The values of the rows that dominate a direction
are taken from its own second moment. What the other rows add is taken off as so many mean rows: with sum w_i x_i
= G a + c sum x_i, the mean row m and the sum t of the few rows' weights, x = (G a + c sum x_i - m (sum w_i - t)) / t.
Means to three digits, as a paper prints them, are enough for that where the sums are not known.

Chance is measured by 100 permutations of the weights to other people: the mean of these in place of those. A column
counts as read where the estimate's error is below the 1 % quantile of these errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed._auditing.implied.column_sums import column_sums
from securefed._auditing.implied.public_directions import Direction, directions
from securefed._auditing.implied.truth import Truth
from securefed._tensors import Array

_PERMUTATIONS: Final = 100
_QUANTILE: Final = 0.01
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
        chance: the 99 % quantile of the same for permuted weights.
        error: relative error of the scaled estimate.
        baseline: that of the pool's mean.
        read: names of the columns that were read.
    """

    words: str
    count: int
    leakage: float
    chance: float
    error: float
    baseline: float
    read: tuple[str, ...]

    def beats(self, other: ReadPeople, gain: float = 0.0) -> bool:
        """Return whether it is more of a leak: first what is above chance, then what is larger, by more than `gain`."""
        mine, others = self.leakage > self.chance, other.leakage > other.chance
        return mine > others or (mine == others and self.leakage > other.leakage + gain)


def people_in_moments(gram: Array, rows: Array, truth: Truth) -> ReadPeople | None:
    """Read the people of each public direction; return those that are read best.

    Args:
        gram: the estimated second moments, (features, features).
        rows: the rows that they sum over; they give the directions their weights, and score the estimates.
        truth: names, scales and the number of people from which on a mean is no leak.

    Returns:
        The best direction's; `None` where no public direction has few rows.
    """
    best: ReadPeople | None = None
    sums = column_sums(gram, rows)
    for direction in directions(rows, truth):
        for estimate, words, gain in _estimates(gram, sums, direction, rows):
            found = score_people(estimate, words, direction.weights, direction.columns, rows, truth)
            if found is not None and (best is None or found.beats(best, gain)):
                best = found
    return best


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
    errors = np.abs(estimate[counted] / scale[counted] - true)
    rng = np.random.default_rng([truth.seed, 17])
    rest = np.setdiff1d(np.arange(len(rows)), places)
    if not len(rest):
        return None
    others = rest[rng.integers(len(rest), size=(_PERMUTATIONS, len(places)))]
    chances = np.abs(np.einsum("m,pmj->pj", shares, scaled[others]) - true)
    read = errors < np.quantile(chances, _QUANTILE, axis=0)
    baseline = float(np.linalg.norm(guess - true))
    if baseline == 0:
        return None
    leaks = 1 - np.linalg.norm(chances, axis=1) / baseline
    size = float(np.linalg.norm(true)) or 1.0
    return ReadPeople(
        f"{_who(len(places))}{_where(len(counted), len(varied))} ({words})",
        len(places),
        max(1 - float(np.linalg.norm(errors)) / baseline, _LEAST),
        float(np.quantile(leaks, 1 - _QUANTILE)),
        float(np.linalg.norm(errors)) / size,
        baseline / size,
        tuple(truth.column(int(place)) for place in counted[read]),
    )


def _where(counted: int, columns: int) -> str:
    return "" if counted == columns else f" in {counted} of {columns} other columns"


def _who(count: int) -> str:
    return "the row of one person" if count == 1 else f"the mean of {count} people"
