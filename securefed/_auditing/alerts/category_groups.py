"""People whom several columns of two values single out together, though each of these columns has many rows.

A column of two values is a category: a row has it or has not. Three combinations of categories have the weight 1 on few
rows and 0 on all others, so that a sum over these columns is a sum over these rows:

    an omitted level    rows that have none of the categories of a group of which no row has two
    a difference        rows that have one category and not another one, which only rows with the first have
    an overlap          rows that have both of two categories of which every row has at least one

A group are columns whose names have the same beginning, such as `stage_II` and `stage_III`, and columns side by side:
programs that code categories write them so, whatever the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from securefed._auditing.alerts.words import listed
from securefed._tensors import Array

_MARKS: Final = re.compile(r"[_=:.\- ]")
"""Marks that end the beginning of a name, by which columns of one group are known."""
MOST_INDICATORS: Final = 200
"""Most columns of two values that are combined; the work grows with their square. Pixels and genes are more."""


@dataclass(frozen=True)
class Indicator:
    """A column of two values as a category.

    Attributes:
        place: place of the column in its table.
        name: name of the column.
        low: value of a row without the category.
        high: value of a row with it.
        has: (rows,) whether each row has it.
    """

    place: int
    name: str
    low: float
    high: float
    has: Array


@dataclass(frozen=True)
class SingledOut:
    """Rows with the weight 1 in `constant` + sum of `signs` times indicators, where all other rows have 0.

    Attributes:
        words: who they are, such as "none of the levels of stage".
        parts: the indicators.
        signs: 1 or -1 for each of them.
        constant: -1, 0 or 1.
        has: (rows,) whether each row is among them.
    """

    words: str
    parts: tuple[Indicator, ...]
    signs: tuple[int, ...]
    constant: int
    has: Array


def indicator(place: int, name: str, values: Array) -> Indicator | None:
    """Return a column as a category; `None` for a column of more or fewer than two values.

    Of two values the rarer one is the category; a column of 0 and another value says itself which one it is.
    """
    found = np.unique(values)
    if len(found) != 2:
        return None
    low, high = float(found[0]), float(found[1])
    has = np.asarray(values == high)
    if 2 * has.sum() > len(has) and low != 0:
        low, high, has = high, low, ~has
    return Indicator(place, name, low, high, has)


def singled_out(made: Sequence[Indicator], fewest: int) -> list[SingledOut]:
    """List the combinations of categories that single out fewer than `fewest` rows.

    Those that a single category singles out are left out, and of several combinations for the same rows all but the
    first.

    Args:
        made: the categories, in the order of their columns.
        fewest: number of rows from which on they are not few.
    """
    if not 2 <= len(made) <= MOST_INDICATORS:
        return []
    known = {one.has.tobytes() for one in made} | {(~one.has).tobytes() for one in made}
    out = []
    for found in (*_omitted(made), *_pairs(made, fewest)):
        key = found.has.tobytes()
        if 1 <= found.has.sum() < fewest and key not in known:
            known.add(key)
            out.append(found)
    return out


def groups(made: Sequence[Indicator]) -> Iterator[tuple[Indicator, ...]]:
    """List the groups of two categories or more of which no row has two, each once."""
    seen = set()
    for group in (*_by_name(made), *_side_by_side(made)):
        key = tuple(one.place for one in group)
        if key not in seen and np.sum([one.has for one in group], axis=0).max() <= 1:
            seen.add(key)
            yield group


def _by_name(made: Sequence[Indicator]) -> Iterator[tuple[Indicator, ...]]:
    """Group columns by every beginning of their names that ends before a mark."""
    named: dict[str, list[Indicator]] = {}
    for one in made:
        for mark in _MARKS.finditer(one.name):
            named.setdefault(one.name[: mark.start()], []).append(one)
    yield from (tuple(group) for group in named.values() if len(group) > 1)


def _side_by_side(made: Sequence[Indicator]) -> Iterator[tuple[Indicator, ...]]:
    """List every run of neighbouring columns of which no row has two categories."""
    for start in range(len(made)):
        held, end = made[start].has, start + 1
        while end < len(made) and made[end].place == made[end - 1].place + 1 and not (held & made[end].has).any():
            held, end = held | made[end].has, end + 1
            yield tuple(made[start:end])


def _omitted(made: Sequence[Indicator]) -> Iterator[SingledOut]:
    """List the rows without any category of a group; longer groups come first, since they are whole variables."""
    for group in sorted(groups(made), key=lambda group: (-len(group), sorted(one.name for one in group))):
        none = ~np.any([one.has for one in group], axis=0)
        yield SingledOut(_none_of(group), group, (-1,) * len(group), 1, none)


def _pairs(made: Sequence[Indicator], fewest: int) -> Iterator[SingledOut]:
    """List the rows by which two categories differ, of which one contains the other or they hold all rows."""
    has = np.array([one.has for one in made], np.float64)
    both, counts, rows = has @ has.T, has.sum(axis=1), has.shape[1]
    left = counts[:, None] - both  # rows with the first and not the second
    for wide, narrow in np.argwhere((left > 0) & (left < fewest) & (both == counts) & (both > 0)):
        first, second = made[wide], made[narrow]
        words = f"{first.name} and not {second.name}"
        yield SingledOut(words, (first, second), (1, -1), 0, first.has & ~second.has)
    neither = rows - counts[:, None] - counts + both
    for one, other in np.argwhere(np.triu((both == 0) & (neither > 0) & (neither < fewest), 1)):
        first, second = sorted((made[one], made[other]), key=lambda one: one.name)
        words = f"neither {first.name} nor {second.name}"
        yield SingledOut(words, (first, second), (-1, -1), 1, ~(first.has | second.has))
    for one, other in np.argwhere(np.triu((neither == 0) & (both > 0) & (both < fewest), 1)):
        first, second = sorted((made[one], made[other]), key=lambda one: one.name)
        yield SingledOut(f"both {first.name} and {second.name}", (first, second), (1, 1), -1, first.has & second.has)


def _none_of(group: Sequence[Indicator]) -> str:
    """Say that rows have no category of a group, named by the beginning of its names where these have one in common."""
    names = sorted(one.name for one in group)
    beginnings = [{name[: mark.start()] for mark in _MARKS.finditer(name)} for name in names]
    shared = max(set.intersection(*beginnings), key=len, default="")
    if shared and any(one.name != f"column {one.place}" for one in group):  # these are columns without names
        return f"none of the levels of {shared}"
    return f"neither {names[0]} nor {names[1]}" if len(names) == 2 else f"none of {listed(names)}"
