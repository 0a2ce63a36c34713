"""List the public directions of a table on which few rows have a weight.

A direction a gives row x the weight w = x a + c, with a constant c. It is public where its coefficients follow from
what columns mean, or from means and standard deviations that were published so that all parties scale alike:

    a category           a column of two values, `low` without it: (x - low) / (high - low)
    categories together  an omitted level, a difference or an overlap of categories (`category_groups`)
    a rare quantity      a column that has one usual value u in almost all rows: x - u
    a near copy          two columns of which one follows from the other in almost all rows: x - slope z - offset
    a broken relation    a column that is a sum of others in almost all rows, as a total is: x - sum of slope z - offset
    a loose relation     the same where the other rows are near it, as a ratio or a second visit is, and few far off
    a dominated column   a column in which few rows hold most of the sum of squares: x, or x - mean, in these rows
    a principal component that few rows dominate, whose eigenvector the second moments show themselves
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from securefed._auditing.alerts.category_groups import Indicator, indicator, singled_out
from securefed._auditing.alerts.dominated_components import dominated_components
from securefed._auditing.alerts.domination import dominating
from securefed._auditing.alerts.loose_relations import loose_relations
from securefed._auditing.alerts.near_copies import near_copies
from securefed._auditing.alerts.relations import relations
from securefed._auditing.alerts.words import listed
from securefed._auditing.implied.truth import Truth
from securefed._tensors import Array

_SEVERAL: Final = 0.5
"""Share of a sum of squares from which on a few rows are tried as those who dominate; alerts need more of several."""


@dataclass(frozen=True)
class Direction:
    """A public direction on which few rows have a weight.

    Attributes:
        words: the people who have a weight, for the reader of a report, such as "stage_IV" or "none of the levels of
            stage".
        columns: the columns that it is made of.
        weights: (rows,) the weight of every row.
        coefficients: (features,) the direction a, so that G a plus `constant` times the sums of the columns is the
            weighted sum of rows.
        constant: the constant c.
        total: the sum of the weights, as the attacker knows it; 0 where the attacker takes it from the second moment of
            the direction itself, as weights of about one size.
    """

    words: str
    columns: tuple[int, ...]
    weights: Array
    coefficients: Array
    constant: float
    total: float

    @property
    def people(self) -> Array:
        """Places of the rows with a weight."""
        return np.flatnonzero(self.weights)


@dataclass(frozen=True)
class _Table:
    """Rows with the names of their columns, and the number of people from which on a mean is no leak.

    Tables are compared by a digest of their rows.
    """

    digest: bytes
    names: tuple[str, ...]
    few: int
    rows: Array = field(compare=False, repr=False)

    def column(self, place: int) -> str:
        """Name a column."""
        return self.names[place]


def directions(rows: Array, truth: Truth) -> tuple[Direction, ...]:
    """List the public directions on which one row has a weight, or fewer than `truth.few`.

    Weights of several rows have one sign, so that their weighted mean is a mean of people. Of the same rows, which
    several views of one run sum over, they are computed once.

    Args:
        rows: (rows, features) all rows of the pool.
        truth: names of the columns, and the number of people from which on a mean is no leak.
    """
    names = tuple(truth.column(place) for place in range(rows.shape[1]))
    return _listed(_Table(hashlib.sha256(np.ascontiguousarray(rows).data).digest(), names, truth.few, rows))


@lru_cache(maxsize=4)
def _listed(table: _Table) -> tuple[Direction, ...]:
    rows, out = table.rows, list[Direction]()
    made = indicators(rows, table)
    two = {one.place for one in made}
    told = set[bytes]()  # the people whom simpler directions tell
    for one in (*_categories(made, rows), *_together(made, rows, table), *_quantities(rows, two, table)):
        told.add(one.people.tobytes())
        out.append(one)
    for one in (*_broken_relations(rows, table), *_loose_relations(rows, table), *_components(rows, table)):
        if one.people.tobytes() not in told:
            out.append(one)
    return tuple(one for one in out if _few_of_one_sign(one, table))


def _few_of_one_sign(one: Direction, truth: _Table) -> bool:
    signs = np.sign(one.weights[one.people])
    return 1 <= len(signs) < truth.few and bool((signs == signs[0]).all())


def indicators(rows: Array, truth: _Table) -> list[Indicator]:
    """Return the columns of two values as categories."""
    found = (indicator(place, truth.column(place), rows[:, place]) for place in range(rows.shape[1]))
    return [one for one in found if one is not None]


def _categories(made: Sequence[Indicator], rows: Array) -> Iterator[Direction]:
    for one in made:
        yield _of_indicators(one.name, (one,), (1,), 0, one.has, rows.shape[1])


def _together(made: Sequence[Indicator], rows: Array, truth: _Table) -> Iterator[Direction]:
    for one in singled_out(made, truth.few):
        yield _of_indicators(one.words, one.parts, one.signs, one.constant, one.has, rows.shape[1])


def _of_indicators(
    words: str, parts: Sequence[Indicator], signs: Sequence[int], constant: int, has: Array, features: int
) -> Direction:
    """Make a direction of categories; published centring is undone by the two values that each column takes."""
    shift = constant - sum(sign * one.low / (one.high - one.low) for one, sign in zip(parts, signs, strict=True))
    places = tuple(one.place for one in parts)
    weights = has.astype(np.float64)
    return Direction(words, places, weights, _coefficients(parts, signs, features), shift, float(weights.sum()))


def _coefficients(parts: Sequence[Indicator], signs: Sequence[int], features: int) -> Array:
    out = np.zeros(features)
    for one, sign in zip(parts, signs, strict=True):
        out[one.place] = sign / (one.high - one.low)
    return out


def _quantities(rows: Array, two: set[int], truth: _Table) -> Iterator[Direction]:
    """List the directions of columns that are no categories; the sum of a column is public, as a published mean is."""
    places = [place for place in np.flatnonzero(np.ptp(rows, axis=0) > 0).tolist() if place not in two]
    for place in places:
        name, column, unit = truth.column(place), rows[:, place], np.eye(rows.shape[1])[place]
        values, counts = np.unique(column, return_counts=True)
        usual = float(values[np.argmax(counts)])
        if len(rows) - counts.max() < truth.few:
            words = f"{name} is not 0" if usual == 0 else f"{name} is not at its usual value"
            weights = column - usual
            yield Direction(words, (place,), weights, unit, -usual, float(weights.sum()))
        else:
            yield from _dominated(name, place, rows, truth)
    for pair in near_copies(rows, places, truth.few):
        coefficients = np.zeros(rows.shape[1])
        coefficients[[pair.second, pair.first]] = 1.0, -pair.slope
        words = f"{truth.column(pair.second)} is not as {truth.column(pair.first)} says"
        columns = pair.second, pair.first
        yield Direction(words, columns, pair.gaps, coefficients, -pair.offset, float(pair.gaps.sum()))


def _dominated(name: str, place: int, rows: Array, truth: _Table) -> Iterator[Direction]:
    """List the directions of the rows that dominate a column, as it stands and around its mean.

    The rest of the rows has a weight too, by which the estimate is off; the value of the largest rows is not public.
    """
    for centre in (0.0, float(rows[:, place].mean())):
        weights = rows[:, place] - centre
        for count, _ in dominating(*np.unique(weights, return_counts=True), truth.few, _SEVERAL):
            largest = np.argsort(-np.abs(weights), kind="stable")[:count]
            only = np.where(np.isin(np.arange(len(rows)), largest), weights, 0.0)
            who = f"the {count} who dominate" if count > 1 else "the one who dominates"
            yield Direction(f"{who} {name}", (place,), only, np.eye(rows.shape[1])[place], -centre, 0.0)


def _broken_relations(rows: Array, truth: _Table) -> Iterator[Direction]:
    for one in relations(rows, truth.few):
        names = listed([truth.column(place) for place in sorted(one.places)])
        words = f"a weighted sum of {names} is not the usual one"
        yield Direction(words, one.places, one.gaps, one.coefficients, -one.offset, float(one.gaps.sum()))


def _loose_relations(rows: Array, truth: _Table) -> Iterator[Direction]:
    """List the directions of rows far off a relation that the others nearly keep; the size of the gap is not public."""
    for one in loose_relations(rows, truth.few, _SEVERAL):
        *parts, last = (truth.column(place) for place in one.places)
        words = f"{last} is far from what {listed(parts)} {'says' if len(parts) == 1 else 'say'}"
        yield Direction(words, one.places, one.gaps, one.coefficients, -one.offset, 0.0)


def _components(rows: Array, truth: _Table) -> Iterator[Direction]:
    """List the principal components that few rows dominate; no column defines them, so that all columns are read."""
    for one in dominated_components(rows, truth.few, _SEVERAL):
        count = int(np.count_nonzero(one.weights))
        who = "the one who dominates" if count == 1 else f"the {count} who dominate"
        words = f"{who} principal component {one.number}"
        yield Direction(words, (), one.weights, one.coefficients, -one.offset, 0.0)
