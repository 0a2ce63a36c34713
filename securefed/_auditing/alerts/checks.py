"""Draw alerts from the facts of a table: every check is a function of counts, cheap, and made before any attack."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from securefed._auditing.alerts import alert as kinds
from securefed._auditing.alerts.alert import KINDS, Alert
from securefed._auditing.alerts.category_groups import indicator, singled_out
from securefed._auditing.alerts.column_values import MOST_LEVELS, ColumnValues, column_values
from securefed._auditing.alerts.dominated_components import dominated_components
from securefed._auditing.alerts.domination import dominating
from securefed._auditing.alerts.loose_relations import loose_relations
from securefed._auditing.alerts.near_copies import near_copies
from securefed._auditing.alerts.relations import relations
from securefed._auditing.alerts.table_facts import TableFacts
from securefed._auditing.alerts.words import OF_A_CODE, OF_A_PROFILE, OF_FAR_OFF, OF_FEW_LARGE, OPENS, TOGETHER, listed
from securefed._hyperparameters import check_integer
from securefed._tensors import Array

FEWEST: Final = 5
"""Rows of a category, party or class from which on it is not rare, by default."""
MINORITY_SHARE: Final = 0.05
"""Share of the rows below which a class is a minority; of many classes half an even share, if that is less."""
MINORITY_ROWS: Final = 20
"""Rows below which a class is a minority: a fifth of them is held out, too few to measure anything of that class."""
_OF_A_PERSON: Final = 3
"""Columns of many values from which on equal rows are one person's: of fewer, two people may agree."""
SINGLE: Final = 4
"""Most columns of one kind that get an alert each; more share one, as the pixels at the edge of pictures do."""


@dataclass(frozen=True)
class _Found:
    """One check's finding: its kind, the column's name, the number of rows concerned, a sentence, and what it opens.

    `opens` is empty where the kind says it.
    """

    kind: str
    column: str
    count: int
    text: str
    opens: str = ""


def alerts(facts: TableFacts, fewest: int = FEWEST) -> tuple[Alert, ...]:
    """Draw all alerts from the facts of a table.

    The order of rows and columns changes nothing, except that columns side by side may be one group of categories.

    Args:
        facts: the facts.
        fewest: rows of a category, party or class from which on it is not rare; at least 2.

    Raises:
        ConfigError: `fewest` is no integer of at least 2.
    """
    check_integer("fewest", fewest, 2)
    found = [*_parties(facts.parties, facts.party, fewest)]
    if 0 < facts.rows < fewest:  # every category, class and column is then rare: one alert says it
        found.append(_Found(kinds.FEW_ROWS, "", facts.rows, f"The whole table has {_rows(facts.rows)}."))
    else:
        found += _columns(facts, fewest)
        found += _together(facts, fewest)
        if facts.classes is not None:
            found += _classes(facts.classes, facts.label, fewest)
    if facts.not_scaled:
        spread = facts.not_scaled.partition(", so that ")[0]  # what follows is what it opens
        found.append(_Found(kinds.NOT_SCALED, "", facts.rows, f"{_capital(spread)}."))
    return tuple(_grouped(found))


def _columns(facts: TableFacts, fewest: int) -> Iterator[_Found]:
    """Check every column alone, and which of them are equal."""
    equal: dict[bytes, list[str]] = {}
    for column in facts.columns:
        values = column_values(column.values)
        values = replace(values, numeric=False) if column.codes else values
        yield from _column(column.name, values, fewest, pictures=facts.pictures)
        if len(values.values) > 1 and not facts.pictures:
            equal.setdefault(_digest(column.values), []).append(column.name)
    for names in equal.values():
        if len(names) > 1:
            names.sort(key=_natural)
            same = f"Columns {listed(names)} hold the same values in all {facts.rows} rows."
            yield _Found(kinds.DUPLICATE, ", ".join(names), facts.rows, same)


def _column(name: str, values: ColumnValues, fewest: int, *, pictures: bool) -> Iterator[_Found]:
    """Check one column: gaps, and the first of constant, key, rare values and domination that holds."""
    if values.gaps:
        gaps = f"{_named(name)} has no value in {values.gaps} of {values.gaps + values.rows} rows."
        yield _Found(kinds.MISSING, name, values.gaps, gaps)
    if len(values.values) <= 1:
        if not values.gaps:
            yield _Found(kinds.CONSTANT, name, values.rows, f"{_named(name)} is constant.")
        return
    if values.is_key(fewest) and not pictures:
        repeats = values.rows - len(values.values)
        but = f" but {repeats}" if repeats else ""
        key = f"{_named(name)} has another value in each of its {values.rows} rows{but}."
        yield _Found(kinds.KEY, name, values.rows, key)
        return
    categories = values.has_categories(fewest) and not pictures
    if rare := values.rare(fewest, categories=categories):
        count = min(rare.values()) if categories else sum(rare.values())
        single = values.rows - int(values.counts.max()) < fewest  # a sum over the column is a sum over these rows
        opens = OF_A_CODE if values.numeric and len(values.values) > 2 and not single else ""
        yield _Found(kinds.RARE_CATEGORY, name, count, _rare_words(name, rare, fewest, categories=categories), opens)
        return
    count, share = values.dominating(fewest)
    if count:
        few = "one row holds" if count == 1 else f"{count} rows hold"
        held = f"In {_named(name)[:1].lower()}{_named(name)[1:]} {few} {share:.0%} of the sum of squares."
        yield _Found(kinds.DOMINATED, name, count, held, "" if count == 1 else OF_FEW_LARGE)


def _together(facts: TableFacts, fewest: int) -> Iterator[_Found]:
    """Check what several columns say together: people whom no column names alone, and rows that stand twice."""
    known = [(column.name, np.asarray(column.values)) for column in facts.columns]
    held = [(name, values.astype(np.float64)) for name, values in known if values.dtype.kind in "fiub"]
    held = [(name, values) for name, values in held if np.isfinite(values).all()]
    if not held or facts.pictures:
        return
    names, table = [name for name, _ in held], np.column_stack([values for _, values in held])
    made = [indicator(place, name, table[:, place]) for place, name in enumerate(names)]
    for one in singled_out([two for two in made if two is not None], fewest):
        columns = " with ".join(sorted((part.name for part in one.parts), key=_natural))
        count = int(one.has.sum())
        yield _Found(
            kinds.COMBINATION, columns, count, f"{_rows(count)} {'has' if count == 1 else 'have'} {one.words}."
        )
    many = [place for place in range(len(names)) if len(np.unique(table[:, place])) > MOST_LEVELS]
    told = set[bytes]()
    for pair in near_copies(table, many, fewest):
        told.add((pair.gaps != 0).tobytes())
        first, second = sorted((names[pair.first], names[pair.second]), key=_natural)
        count = int(np.count_nonzero(pair.gaps))
        text = f"Columns {first} and {second} say the same but in {_rows(count)}."
        yield _Found(kinds.COMBINATION, f"{first} with {second}", count, text)
    yield from _related(names, table, fewest, told)
    if len(many) >= _OF_A_PERSON:
        repeats = len(table) - len(np.unique(table[:, many], axis=0))
        if repeats:
            text = f"{_capital(_rows(repeats))} repeat{'s' * (repeats == 1)} another row in all columns of many values."
            yield _Found(kinds.REPEATED, "", repeats, text)


def _related(names: Sequence[str], table: Array, fewest: int, told: set[bytes]) -> Iterator[_Found]:
    """Check which columns are sums of others but in few rows, where nothing else tells these rows anyway.

    Args:
        names: the names of the columns.
        table: their values.
        fewest: number of rows from which on they are not few.
        told: the rows (whether each one is among them) that pairs of columns tell.
    """
    known = told | {(table[:, place] != value).tobytes() for place, value in _usual(table, fewest)}
    made = [one for place in range(len(names)) if (one := indicator(place, names[place], table[:, place])) is not None]
    known |= {one.has.tobytes() for one in singled_out(made, fewest)}
    for relation in relations(table, fewest):
        if (key := (relation.gaps != 0).tobytes()) not in known:
            known.add(key)
            columns = sorted((names[place] for place in relation.places), key=_natural)
            count = int(np.count_nonzero(relation.gaps))
            text = f"A weighted sum of columns {listed(columns)} is the same in all rows but {count}."
            yield _Found(kinds.COMBINATION, " with ".join(columns), count, text)
    known |= {_dominating(table[:, place], fewest) for place in range(len(names))}
    order = sorted(range(len(names)), key=lambda place: _natural(names[place]))
    yield from _far_off([names[place] for place in order], table[:, order], fewest, known)


def _far_off(names: Sequence[str], table: Array, fewest: int, known: set[bytes]) -> Iterator[_Found]:
    """Check which few rows are far off what columns say of each other, and which dominate a principal component."""
    for relation in loose_relations(table, fewest):
        if (key := (relation.gaps != 0).tobytes()) not in known:
            known.add(key)
            *parts, last = (names[place] for place in relation.places)
            count, say = int(np.count_nonzero(relation.gaps)), "says" if len(parts) == 1 else "say"
            text = f"In {_rows(count)} column {last} is far from what {listed(parts)} {say}, and near it in all others."
            columns = " with ".join(sorted([*parts, last], key=_natural))
            yield _Found(kinds.COMBINATION, columns, count, text, OF_FAR_OFF)
    for one in dominated_components(table, fewest):
        if (key := (one.weights != 0).tobytes()) not in known:
            known.add(key)
            count = int(np.count_nonzero(one.weights))
            few = "one row holds" if count == 1 else f"{count} rows hold"
            text = f"In principal component {one.number} of the scaled columns {few} {one.share:.0%} of the squares."
            yield _Found(kinds.DOMINATED, f"principal component {one.number}", count, text, OF_A_PROFILE)


def _dominating(column: Array, fewest: int) -> bytes:
    """Return which rows dominate a column around its mean, as `known` has them."""
    weights = column - column.mean()
    count = next((count for count, _ in dominating(*np.unique(weights, return_counts=True), fewest)), 0)
    largest = np.argsort(-np.abs(weights), kind="stable")[:count]
    return np.asarray(np.isin(np.arange(len(column)), largest)).tobytes()


def _usual(table: Array, fewest: int) -> Iterator[tuple[int, float]]:
    """Yield the columns that fewer than `fewest` rows take off their usual value, each with that value."""
    for place in range(table.shape[1]):
        values, counts = np.unique(table[:, place], return_counts=True)
        if 0 < len(table) - counts.max() < fewest:
            yield place, float(values[np.argmax(counts)])


def _rare_words(name: str, rare: Mapping[Any, int], fewest: int, *, categories: bool) -> str:
    """Say which values of a column are rare."""
    if not categories:
        return f"{_named(name)} differs from its usual value in {_rows(sum(rare.values()))}."
    shown = [f"{_value(value)} in {_rows(count)}" for value, count in sorted(rare.items(), key=lambda item: item[1])]
    if len(rare) == 1:
        return f"{_named(name)} has the value {shown[0]}."
    return f"{_named(name)} has {len(rare)} categories of fewer than {fewest} rows: {listed(shown)}."


def _parties(parties: Mapping[str, int], word: str, fewest: int) -> Iterator[_Found]:
    """Check the numbers of rows of the parties."""
    small = {name: rows for name, rows in parties.items() if rows < fewest}
    if not small:
        return
    least, most = min(small.values()), max(small.values())
    if len(small) > SINGLE:
        each = _rows(least) if least == most else f"{least} to {_rows(most)}"
        number = f"All {len(small)}" if len(small) == len(parties) else f"{len(small)} of {len(parties)}"
        plural = word if word.endswith("s") else f"{word[:-1]}ies" if word.endswith("ty") else f"{word}s"
        yield _Found(kinds.SMALL_PARTY, "", least, f"{number} {plural} have {each} each.")
        return
    for name, rows in small.items():
        own = name if name.startswith(word) else f"{word} {name}"
        yield _Found(kinds.SMALL_PARTY, name, rows, f"{_capital(own)} has {_rows(rows)}.")


def _classes(classes: Any, label: str, fewest: int) -> Iterator[_Found]:
    """Check the numbers of rows of the classes: first those of fewer than `fewest` rows, else the smallest class."""
    values, counts = np.unique(classes, return_counts=True)
    if len(values) < 2:
        return
    order = np.lexsort((np.arange(len(values)), counts))
    small = [(values[place], int(counts[place])) for place in order if counts[place] < fewest]
    if small:
        shown = [f"class {_value(value)} with {_rows(count)}" for value, count in small]
        many = f"{len(small)} classes have" if len(small) > 1 else "a class has"
        text = f"In column {label} {many} fewer than {fewest} rows: {listed(shown)}."
        yield _Found(kinds.SMALL_CLASS, label, small[0][1], text)
    value, least = values[order[0]], int(counts[order[0]])
    if is_minority(counts):
        text = f"Class {_value(value)} of column {label} has {_rows(least)}, {least / counts.sum():.1%} of the table."
        yield _Found(kinds.MINORITY, label, least, text)


def is_minority(counts: Any) -> bool:
    """Return whether the smallest of some classes is a minority, by the number of rows of each."""
    return int(np.min(counts)) < MINORITY_ROWS or imbalanced(counts)


def imbalanced(counts: Any) -> bool:
    """Return whether the smallest of some classes has so small a share of the rows that accuracy says little."""
    return len(counts) > 1 and int(np.min(counts)) < int(np.sum(counts)) * min(MINORITY_SHARE, 0.5 / len(counts))


def _grouped(found: Sequence[_Found]) -> Iterator[Alert]:
    """Make alerts of what was found: one for each column, or one for all columns of a kind where they are many."""
    for kind in KINDS:
        group = sorted((one for one in found if one.kind == kind), key=lambda one: (one.count, _natural(one.column)))
        if kind in TOGETHER and len(group) > (1 if kind == kinds.CONSTANT else SINGLE):
            group.sort(key=lambda one: _natural(one.column))
            names, least = [one.column for one in group], min(one.count for one in group)
            text = TOGETHER[kind].format(number=len(group), least=_rows(least), names=listed(names))
            yield Alert(kind, ", ".join(names), least, OPENS[kind], text)
        else:
            yield from (Alert(kind, one.column, one.count, one.opens or OPENS[kind], one.text) for one in group)


def _digest(values: Any) -> bytes:
    """Hash a column; -0 and 0 are the same."""
    given = np.asarray(values)
    if given.dtype.kind in "fiub":
        return hashlib.sha256(np.ascontiguousarray(given.astype(np.float64) + 0.0).tobytes()).digest()
    return hashlib.sha256(repr(given.tolist()).encode()).digest()


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key of names in which `column 9` comes before `column 10`."""
    parts = [part for part in re.split(r"(\d+)", name) if part]
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def _named(column: str) -> str:
    """Name a column at the start of a sentence; columns without names are called `column 3`."""
    return _capital(column) if column.startswith("column ") else f"Column {column}"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _value(value: Any) -> str:
    return repr(str(value)) if isinstance(value, str) else f"{value:g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
