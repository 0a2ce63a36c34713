"""Read single people out of the second moments G = X^T X of the rows X of several clients together.

Line a of G is a weighted sum of rows: G a = sum_i w_i x_i with w = X a. Where a public direction a has a weight on one
row only, G a / w is that row; on few rows it is their weighted mean. These directions are public:

    a column                 a category that few rows have, or a quantity that is 0 for almost all of them
    an omitted level         of a group of categories, the rows that have none of those that stand in columns
    a difference             of two categories of a group of which one contains the other, such as "over 60", "over 80"

Published centring is undone: a column that takes two values, `low` without the category and `high` with it, has the
weights (x - low) / (high - low). The attacker knows the two values, and takes the sum of every column as 0 where `low`
is not 0, since the columns were centred; a constant column shows the sums themselves.

Chance is measured by 100 permutations of the weights to other people: the mean of these in place of those. A column
counts as read where the estimate's error is below the 1 % quantile of these errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed._auditing.implied.truth import Truth
from securefed._tensors import Array

_PERMUTATIONS: Final = 100
_QUANTILE: Final = 0.01
_FEWEST: Final = 3
"""Fewest columns beside those of the direction itself: two values of a person may be right by chance."""

_LEAST: Final = -1.0
_CENTRED: Final = 3.0
"""Standard errors up to which the mean of a column counts as 0: rows that were centred with others held out."""


@dataclass(frozen=True)
class Direction:
    """A public direction on which few rows have a weight.

    Attributes:
        words: the people who have a weight, for the reader of a report, such as "stage_IV" or "none of stage_*".
        columns: the columns that it is made of.
        weights: (rows,) the weight of every row.
        coefficients: (features,) the direction a, so that G a plus `sums` times the sums of the columns is the
            weighted sum of rows.
        sums: the coefficient of the sums of the columns.
        total: the sum of the weights, as the attacker knows it.
    """

    words: str
    columns: tuple[int, ...]
    weights: Array
    coefficients: Array
    sums: float
    total: float

    @property
    def people(self) -> Array:
        """Places of the rows with a weight."""
        return np.flatnonzero(self.weights)


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
    sums = _column_sums(gram, rows)
    for direction in directions(rows, truth):
        if direction.sums and sums is None:
            continue
        shift = 0.0 if sums is None else direction.sums * sums
        estimate = (gram @ direction.coefficients + shift) / direction.total
        found = score_people(estimate, direction.words, direction.weights, direction.columns, rows, truth)
        if found is not None and (best is None or found.leakage > best.leakage):
            best = found
    return best


def score_people(
    estimate: Array, words: str, weights: Array, columns: Sequence[int], rows: Array, truth: Truth
) -> ReadPeople | None:
    """Compare an estimate with the weighted mean of a few rows, column by column.

    Args:
        estimate: (features,) the estimated weighted mean.
        words: who the people are.
        weights: (rows,) the weight of every row; few are not 0.
        columns: columns that define these people, which are known of them anyway and do not count.
        rows: all rows of the pool.
        truth: names and scales of the columns.

    Returns:
        The score; `None` where fewer than three columns count.
    """
    scale = truth.scale
    counted = np.setdiff1d(np.flatnonzero(rows.std(axis=0) > 0), columns)
    places = np.flatnonzero(weights)
    if len(counted) < _FEWEST or not len(places) or not np.isfinite(estimate).all():
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
        f"{_who(len(places))} ({words})",
        len(places),
        max(1 - float(np.linalg.norm(errors)) / baseline, _LEAST),
        float(np.quantile(leaks, 1 - _QUANTILE)),
        float(np.linalg.norm(errors)) / size,
        baseline / size,
        tuple(truth.column(int(place)) for place in counted[read]),
    )


def directions(rows: Array, truth: Truth) -> Iterator[Direction]:
    """List the public directions on which one row has a weight, or fewer than `truth.few`."""
    two = {place: values for place in range(rows.shape[1]) if len(values := np.unique(rows[:, place])) == 2}
    made = [*_categories(rows, two, truth), *_sparse(rows, two, truth)]
    for group in _groups(two, truth):
        made += [*_omitted(rows, group, two, truth), *_differences(rows, group, two, truth)]
    for direction in made:
        if 1 <= len(direction.people) < truth.few and direction.total > 0:
            yield direction


def _who(count: int) -> str:
    return "the row of one person" if count == 1 else f"the mean of {count} people"


def _indicator(rows: Array, place: int, values: Array) -> tuple[Array, float, float]:
    """Return whether each row has the category of a column of two values, and the values without and with it.

    The rarer of the two values is the category.
    """
    low, high = float(values[0]), float(values[1])
    has = rows[:, place] == high
    if 2 * has.sum() > len(rows) and low != 0:  # a column of 0 and another value says itself which one is the category
        low, high, has = high, low, ~has
    return has.astype(np.float64), low, high


def _categories(rows: Array, two: dict[int, Array], truth: Truth) -> Iterator[Direction]:
    for place, values in two.items():
        weights, low, high = _indicator(rows, place, values)
        coefficients = np.zeros(rows.shape[1])
        coefficients[place] = 1 / (high - low)
        sums = -low / (high - low)
        yield Direction(truth.column(place), (place,), weights, coefficients, sums, float(weights.sum()))


def _sparse(rows: Array, two: dict[int, Array], truth: Truth) -> Iterator[Direction]:
    """List the quantities that are 0 for almost all rows; the sum of the others is public, as a published mean is."""
    for place in range(rows.shape[1]):
        weights = rows[:, place]
        if place in two or not np.count_nonzero(weights) < truth.few:
            continue
        coefficients = np.zeros(rows.shape[1])
        coefficients[place] = 1.0
        yield Direction(
            f"{truth.column(place)} is not 0", (place,), weights, coefficients, 0.0, abs(float(weights.sum()))
        )


def _groups(two: dict[int, Array], truth: Truth) -> Iterator[tuple[str, list[int]]]:
    """List the columns of two values that belong together: those whose names have the same beginning, before _, = or :.

    Where columns have no names, all of them are one group.
    """
    named: dict[str, list[int]] = {}
    for place in two:
        name = truth.column(place)
        cut = max(name.rfind(mark) for mark in "_=:") if truth.columns else 0
        if cut >= 0:
            named.setdefault(name[:cut], []).append(place)
    yield from ((name, places) for name, places in named.items() if len(places) > 1)


def _omitted(rows: Array, group: tuple[str, list[int]], two: dict[int, Array], truth: Truth) -> Iterator[Direction]:
    """List the rows without any category of a group of which no row has two."""
    name, places = group
    made = list(_categories(rows, {place: two[place] for place in places}, truth))
    held = np.sum([one.weights for one in made], axis=0)
    if held.max() > 1:
        return
    weights = 1 - held
    coefficients = -np.sum([one.coefficients for one in made], axis=0)
    sums = 1 - sum(one.sums for one in made)
    words = f"none of the levels of {name}" if name else "none of the categories"
    yield Direction(words, tuple(places), weights, coefficients, sums, float(weights.sum()))


def _differences(rows: Array, group: tuple[str, list[int]], two: dict[int, Array], truth: Truth) -> Iterator[Direction]:
    """List the rows that one category of a group has and another one, which it contains, has not."""
    made = list(_categories(rows, {place: two[place] for place in group[1]}, truth))
    shared = np.array([one.weights for one in made]) @ np.array([one.weights for one in made]).T
    for wide, first in enumerate(made):
        for narrow, second in enumerate(made):
            inside = wide != narrow and shared[wide, narrow] == shared[narrow, narrow]
            if inside and 0 < shared[wide, wide] - shared[narrow, narrow] < truth.few:
                weights = first.weights - second.weights
                yield Direction(
                    f"{first.words} and not {second.words}",
                    (*first.columns, *second.columns),
                    weights,
                    first.coefficients - second.coefficients,
                    first.sums - second.sums,
                    float(weights.sum()),
                )


def _column_sums(gram: Array, rows: Array) -> Array | None:
    """Return the sums of the columns as the attacker knows them; `None` where it does not know all of them.

    A constant column shows the sums of all others. Without one, a category of 0 and another value shows its own, and
    the sum of a centred column is 0.
    """
    constant = np.flatnonzero((np.ptp(rows, axis=0) == 0) & (rows[0] != 0))
    if len(constant):
        return np.asarray(gram[:, constant[0]] / rows[0, constant[0]])
    known = np.zeros(rows.shape[1])
    for place in np.flatnonzero(~is_centred(rows)):
        values = np.unique(rows[:, place])
        if len(values) != 2 or values[0] != 0:
            return None
        known[place] = gram[place, place] / values[1]
    return known


def is_centred(rows: Array) -> Array:
    """Tell of each column whether its mean is 0, up to the error that rows held out of the centring leave."""
    return np.asarray(np.abs(rows.mean(axis=0)) <= _CENTRED * rows.std(axis=0) / np.sqrt(len(rows)))
