"""Say what each column of a table is: owner, label, feature, or none of them, such as row numbers and keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from securefed._shape_repr import ShapeRepr
from securefed._tensors import Array
from securefed.datasets._tables.columns import Column, TextColumn, integers
from securefed.datasets._tables.table import Table
from securefed.errors import DataError

_UNNAMED: Final = re.compile(r"(Unnamed: \d+(_level_\d+)?|__index_level_\d+__)?")
"""Names of columns without one, as pandas writes and reads the index of a frame."""
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_KEY_WORDS: Final = frozenset("id ids uid pid uuid guid mrn ssn patientid subjectid caseid".split())  # noqa: SIM905
"""Words in the names of keys; a column is one where it also holds another whole number in each row."""
_NUMBER_WORDS: Final = frozenset("key index idx nr no num number rownames rowid".split())  # noqa: SIM905
"""Words in the names of keys and of counts; such a column is a key where it counts the rows, or over `_MANY` rows."""
_MANY: Final = 20
"""Rows from which on whole numbers that are all distinct look like a key."""


@dataclass(frozen=True, eq=False, repr=False)
class Classes(ShapeRepr):
    """Labels or responses.

    Attributes:
        y: (rows,) int64 classes from 0, or float64 responses.
        names: the value that stands for each class, in the order of the classes; empty for responses.
    """

    y: Array
    names: tuple[Any, ...] = ()


def features_of(table: Table, taken: tuple[str, ...]) -> tuple[tuple[Column, ...], dict[str, str]]:
    """Return the columns of features, and by name why others are left out.

    Args:
        table: the table.
        taken: names of the columns of owners and labels.

    Raises:
        DataError: a column without a name holds more than row numbers, or no column is a feature.
    """
    features, left_out = [], {}
    for place, column in enumerate(table.columns, 1):
        if column.name and column.name in taken:
            continue
        if _UNNAMED.fullmatch(column.name):
            left_out[column.name or f"column {place}"] = _why_unnamed(table, column, place)
        elif is_key(column):
            left_out[column.name] = "a key, another whole number in each row"
        else:
            features.append(column)
    if not features:
        raise DataError(f"{table.source} has no column of features beside labels and owner{_beside(left_out)}")
    return tuple(features), left_out


def is_key(column: Column) -> bool:
    """Tell whether a column is a key: named like one, and another whole number in each row."""
    words = {word.lower() for word in _WORDS.findall(column.name)} | {column.name.lower()}
    if not words & (_KEY_WORDS | _NUMBER_WORDS) or column.rows < 2 or not _all_distinct(column):
        return False
    counts_rows = column.values.tolist() in ([*range(column.rows)], [*range(1, column.rows + 1)])
    return bool(words & _KEY_WORDS) or column.rows >= _MANY or counts_rows


def remarks(features: tuple[Column, ...]) -> list[str]:
    """Name the features that may be keys, for the line on what was read."""
    found = []
    for column in features:
        if column.rows >= _MANY and _all_distinct(column):
            found.append(f"{column.name!r} holds another whole number in each row")
        elif column.kind == "integer" and "id" in {word.lower() for word in _WORDS.findall(column.name)}:
            found.append(f"{column.name!r} is named like an identifier")
    return found


def refuse_row_numbers(table: Table) -> None:
    """Raise `DataError` where a frame that is given as rows of numbers holds an index as a column."""
    for place, column in enumerate(table.columns, 1):
        if _UNNAMED.fullmatch(column.name):
            name = column.name or f"column {place}"
            raise DataError(
                f"{table.source}: {name!r} has no name of its own, as row numbers have that were written with a table; "
                f"{_dropped(column.name)}, or name it"
            )


def refuse_keys(table: Table) -> None:
    """Raise `DataError` where a frame that is given as features holds a column of keys."""
    if keys := [column.name for column in table.columns if is_key(column)]:
        raise DataError(
            f"{table.source}: column {keys[0]!r} is a key, with another whole number in each row, and no feature; "
            f"{_dropped(keys[0])}, or rename it"
        )


def _dropped(name: str) -> str:
    """Write how a column is dropped from a frame."""
    return f"drop it, by frame.drop(columns={name!r}) in pandas or frame.drop({name!r}) in Polars"


def complete(table: Table, column: Column) -> Column:
    """Return a column of labels or owners; raise `DataError` where rows have none."""
    if column.missing.any():
        row = int(column.missing.argmax())
        text = column.texts[row]
        held = f", which holds {text!r} and so no value" if text else ""
        raise DataError(
            f"{table.source}: {column.missing.sum()} of {len(column.missing)} rows have no value in column "
            f"{column.name!r} (first: row {row}{held}); they would become a class or a client of their own: fill the "
            "column in, or drop these rows"
        )
    return column


def owners(table: Table, column: Column) -> Array:
    """Return a column as (rows,) texts, one for each owner.

    Raises:
        DataError: rows have no owner, or one number is written in two ways.
    """
    texts = np.array(complete(table, column).texts)
    _one_spelling(table, column, texts)
    return texts


def classes(table: Table, column: Column) -> Classes:
    """Return a column of labels as classes, or as responses where it holds fractions.

    Whole numbers from 0 without gaps are classes as they are; other whole numbers, truth values and texts are numbered
    in sorted order. Floats of a file that states types are responses, whole ones too.

    Raises:
        DataError: rows have no label.
    """
    column = complete(table, column)
    if column.kind == "other":
        raise DataError(f"{table.source}: column {column.name!r} holds no labels: {column.described()}")
    if column.kind == "text":  # numbers that a frame holds as texts are numbers, in their order
        read = TextColumn(column.name, column.texts)
        column = read if read.kind in ("integer", "real") else column
    if column.kind == "real":
        texts = isinstance(column, TextColumn)
        values = column.values
        if not texts or not (np.isfinite(values) & (values == np.floor(values))).all():
            return Classes(values.astype(np.float64))
        return numbered(integers([int(value) for value in values]))
    return numbered(column.values)


def numbered(values: Array) -> Classes:
    """Number values in sorted order; whole numbers from 0 without gaps keep their numbers."""
    names, numbers = np.unique(values, return_inverse=True)
    return Classes(numbers.astype(np.int64), tuple(names.tolist()))


def merged(column: Column) -> int:
    """Return how many values of a column became one with another when blanks at their ends were taken off."""
    return len(set(column.spellings)) - len(set(column.texts))


def alike(values: Array) -> str:
    """Return two values that differ in case or inner blanks alone, for a remark; empty where none do."""
    seen: dict[str, str] = {}
    for value in np.unique(values).tolist():
        text = str(value)
        other = seen.setdefault("".join(text.split()).casefold(), text)
        if other != text:
            return f"{other!r} and {text!r}"
    return ""


def _one_spelling(table: Table, column: Column, texts: Array) -> None:
    """Raise `DataError` where one number is written in two ways, such as 7 and 07, which would be two owners."""
    if column.kind not in ("integer", "real"):
        return
    seen: dict[Any, str] = {}
    for text, value in dict(zip(texts.tolist(), column.values.tolist(), strict=True)).items():
        other = seen.setdefault(value, text)
        if other != text:
            raise DataError(
                f"{table.source}: column {column.name!r} holds {other!r} and {text!r}, one number in two spellings; "
                "write it in one way"
            )


def _why_unnamed(table: Table, column: Column, place: int) -> str:
    """Say why a column without a name is left out; raise `DataError` where it may be more than row numbers."""
    if column.kind == "empty":
        return "no name and no values"
    if _all_distinct(column):
        return "row numbers"
    raise DataError(
        f"{table.source}: column {place} has no name ({column.name or 'an empty header'}), and holds more than row "
        f"numbers ({column.texts[0]!r}, ...); name it in the header, or drop it"
    )


def _all_distinct(column: Column) -> bool:
    """Tell whether a column holds another whole number in each row."""
    if column.kind not in ("integer", "real") or column.missing.any():
        return False
    values = column.values
    if column.kind == "real" and not (np.isfinite(values) & (values == np.floor(values))).all():
        return False
    return len(np.unique(values)) == len(values)


def _beside(left_out: Mapping[str, str]) -> str:
    return "".join(f"; {name!r} was left out ({why})" for name, why in left_out.items())
