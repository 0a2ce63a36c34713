"""Choose which combinations of a battery `make test` runs; `make test-all` runs every one.

A battery runs one check on every combination of an algorithm with other factors: a defence, a way to fail, a data set.
`make test` keeps all combinations of three algorithms, one of each kind of state between rounds, and of the others a
pairwise cover: each algorithm occurs, each value of each factor occurs with each family of algorithms (`pca/...`,
`graph/...`: they share code), and each value of one factor occurs with each value of every other factor. What is left
carries the mark `exhaustive`. Some batteries take less: see `covered_rows` and `of_each_family`, and `in_turn` of
`test_parity.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any, Final

import pytest

REPRESENTATIVES: Final = {
    "pca/ssi": "its clients keep nothing between rounds",
    "optimization/scaffold": "its clients keep a control variate between rounds",
    "pca/fedpg": "its clients keep what followed from the sum of a round (`needs_outcome`)",
}

Row = tuple[Any, ...]
"""A combination: the name of an algorithm, then one value for each other factor."""


def sampled(*factors: Iterable[Any]) -> list[Any]:
    """Mark the combinations of algorithms (the first factor) and other factors that `make test` leaves out.

    Args:
        *factors: names of algorithms, then the values of each other factor.

    Returns:
        Parameters for `pytest.mark.parametrize`: all combinations, those outside the sample with the mark `exhaustive`.
    """
    return sampled_rows(list(product(*factors)))


def sampled_rows(rows: Sequence[Row]) -> list[Any]:
    """Like `sampled`, for a list of combinations that is not a whole product."""
    kept = set(quick(rows))
    return [pytest.param(*row, marks=() if row in kept else pytest.mark.exhaustive) for row in rows]


def covered_rows(rows: Sequence[Row]) -> list[Any]:
    """Like `sampled_rows`, but a pairwise cover of the representatives too: for batteries whose runs cost most."""
    kept = set(cover(rows))
    return [pytest.param(*row, marks=() if row in kept else pytest.mark.exhaustive) for row in rows]


def of_each_family(names: Sequence[str], values: Iterable[Any]) -> list[Any]:
    """Like `sampled`, but of the other algorithms only the first of each family, each with one of the values in turn.

    It is for checks of what a family shares, in files where another battery runs every algorithm.

    Args:
        names: names of algorithms.
        values: the values of another factor.
    """
    given = list(values)
    first = list({name.split("/")[0]: name for name in reversed(names)}.values())
    kept = {*product(REPRESENTATIVES, given), *((name, given[k % len(given)]) for k, name in enumerate(first))}
    rows = product(names, given)
    return [pytest.param(*row, marks=() if row in kept else pytest.mark.exhaustive) for row in rows]


def quick(rows: Sequence[Row]) -> list[Row]:
    """Choose all rows of the representative algorithms, and a pairwise cover of the others; the same in every run."""
    kept = [row for row in rows if row[0] in REPRESENTATIVES]
    return kept + cover([row for row in rows if row[0] not in REPRESENTATIVES])


def cover(rows: Sequence[Row]) -> list[Row]:
    """Choose rows until they have all pairs that occur in `rows`: each time the first of those that add most."""
    missing = set().union(*map(pairs, rows)) if rows else set()
    kept = []
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        kept.append(best)
        missing -= pairs(best)
    return kept


def pairs(row: Row) -> set[tuple[int, int, Any, Any]]:
    """List the pairs of factor values of a combination: family of algorithms with value, value with value.

    The algorithm itself is in it as a pair with its family.
    """
    algorithm, *others = row
    columns = [algorithm.split("/")[0], *others]
    found = {(i, j, columns[i], columns[j]) for i, j in combinations(range(len(columns)), 2)}
    return found | {(-1, 0, algorithm, columns[0])}


def each_value(*factors: Iterable[Any]) -> list[Any]:
    """Keep, of all combinations of the factors, so many that each value of each factor occurs; mark the rest."""
    columns = [list(factor) for factor in factors]
    longest = max(map(len, columns))
    kept = {tuple(k % len(column) for column in columns) for k in range(longest)}
    places = product(*(range(len(column)) for column in columns))
    return [
        pytest.param(
            *(column[i] for column, i in zip(columns, place, strict=True)),
            marks=() if place in kept else pytest.mark.exhaustive,
        )
        for place in places
    ]


def first_ones(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Keep the first values of a list, and mark the others; a tuple is the values of several parameters."""
    marks = pytest.mark.exhaustive
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=() if k < count else marks)
        for k, value in enumerate(values)
    ]
