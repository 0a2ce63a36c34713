"""Split the text of a table into cells: find its separator, and refuse lines of another length than the header.

A separator is found where exactly one of commas, semicolons, tabs and bars splits all lines into as many cells as the
header. A cell that holds the separator stands in quotes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from securefed.datasets._tables.table_format import SEPARATORS, remedy, separator_word
from securefed.errors import DataError

_SAMPLE: Final = 1000
"""Lines by which a separator is chosen; all lines are checked by the one chosen."""
_DECLARED: Final = re.compile(r"sep=(.)\r?\n")
"""The first line by which some spreadsheets declare the separator."""
_QUOTE_AFTER_BLANKS: Final = re.compile(r'[,;\t|] +"')
_EMPTY: Final = "{} holds no rows; the first line must name the columns, and rows must follow"
_SHOWN: Final = 4
"""Names of columns that an error shows."""


@dataclass(frozen=True)
class Cells:
    """The cells of a text table.

    Attributes:
        header: the cells of the first line.
        lines: the cells of every other line that is not empty.
        separator: the character between two cells.
    """

    header: list[str]
    lines: list[list[str]]
    separator: str


def split_cells(text: str, source: str, separator: str = "") -> Cells:
    """Split the text of a table into cells.

    Args:
        text: the text.
        source: the table's name, for errors.
        separator: the character between two cells, where the user names it.

    Returns:
        The cells.

    Raises:
        DataError: no line, several separators or none that fit, quotes without an end, or a line with more or fewer
            cells than the header; names the line and the option to write.
    """
    skipped = 0
    if (declared := _DECLARED.match(text)) is not None:
        text, skipped, separator = text[declared.end() :], 1, separator or declared[1]
    given = _Text(text, source, skipped, _QUOTE_AFTER_BLANKS.search(text) is not None)
    found = _named(given, separator) if separator else _separator(given)
    records = list(_records(given, found))
    if len(records) < 2:
        raise DataError(_EMPTY.format(source))
    (_, header), width = records[0], len(records[0][1])
    # an empty line is a row without a value where there is one column, and no row elsewhere
    rows = [(number, cells or [""]) for number, cells in records[1:] if cells or width == 1]
    for number, cells in rows:
        if len(cells) != width:
            raise DataError(_odd_line(source, number, cells, header, found, named=bool(separator)))
    return Cells(header, [cells for _, cells in rows], found)


@dataclass(frozen=True)
class _Text:
    """The text of a table.

    Attributes:
        text: the text from its header on.
        source: the table's name, for errors.
        skipped: number of lines above the header.
        quotes_after_blanks: whether blanks stand between a separator and a quote. Only then are blanks skipped as the
            cells are split: else it could no longer be said that blanks had told two owners apart.
    """

    text: str
    source: str
    skipped: int
    quotes_after_blanks: bool


def _records(given: _Text, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the line, cells) of each record up to the last one that is not empty."""
    lines = io.StringIO(given.text, newline="")
    reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=given.quotes_after_blanks)
    empty: list[tuple[int, list[str]]] = []
    started, before = False, given.skipped
    try:
        for cells in reader:
            number, before = before + 1, reader.line_num + given.skipped
            if not cells:
                empty += [(number, cells)] * started
                continue
            yield from empty
            yield number, cells
            empty, started = [], True
    except csv.Error as error:
        raise DataError(
            f"{given.source}: the cells of line {before + 1} cannot be read ({error}); a cell that holds a quote "
            "stands in quotes, with each of its own quotes written twice"
        ) from error


@dataclass(frozen=True)
class _Split:
    """The first lines split by one separator: cells of the header, and the share of lines with as many."""

    separator: str
    header: list[str]
    share: float

    @property
    def whole(self) -> bool:
        """Whether it splits all lines into several cells, each line into as many."""
        return self.share == 1 and len(self.header) > 1


def _try(given: _Text, separator: str) -> _Split:
    """Split the first lines by a separator."""
    records: list[list[str]] = []
    try:
        records += (cells for _, cells in islice(_records(given, separator), _SAMPLE) if cells)
    except DataError:  # a quote without an end: the line is named when the table is read by this separator
        return _Split(separator, records[0] if records else [], 0.0)
    if not records:
        raise DataError(_EMPTY.format(given.source))
    header, lines = records[0], records[1:]
    share = sum(len(cells) == len(header) for cells in lines) / len(lines) if lines else 1.0
    return _Split(separator, header, share)


def _separator(given: _Text) -> str:
    """Return the one separator that splits all lines alike.

    Raises:
        DataError: none does, or several do.
    """
    tried = [_try(given, separator) for separator in SEPARATORS]
    whole = [one for one in tried if one.whole]
    if len(whole) > 1:
        readings = " or ".join(
            f"{separator_word(one.separator)} ({len(one.header)} columns: {_names(one.header)})" for one in whole
        )
        choices = " or ".join(remedy(separator=one.separator) for one in whole)
        raise DataError(f"{given.source} can be separated by {readings}; write {choices}")
    best = max(tried, key=lambda one: (one.whole, len(one.header) > 1, one.share))
    if len(best.header) > 1 or all(one.share == 1 for one in tried):
        return best.separator  # where lines differ in length, the first of them is named when the table is read
    odd = next(one for one in tried if one.share < 1)  # the header has one cell, and this separator splits a line
    number, cells = next((number, cells) for number, cells in _records(given, odd.separator) if len(cells) > 1)
    raise DataError(
        f"{given.source}: line {number} has {len(cells)} cells between {separator_word(odd.separator)}, and the header "
        f"has one ({_names(odd.header)}); name every column, or, where its numbers have decimal commas, write "
        f"{remedy(separator=';', decimal=',')}"
    )


def _named(given: _Text, separator: str) -> str:
    """Return the separator that was named; raise `DataError` where it splits no line, and another one splits all."""
    if len(_try(given, separator).header) == 1:
        for other in SEPARATORS:
            if (split := _try(given, other)).whole:
                raise DataError(
                    f"{given.source} has one cell a line between {separator_word(separator)}, and {len(split.header)} "
                    f"between {separator_word(other)}; write {remedy(separator=other)}"
                )
    return separator


def _odd_line(source: str, number: int, cells: list[str], header: list[str], separator: str, *, named: bool) -> str:
    """Say which line has another number of cells than the header."""
    word, count = separator_word(separator), "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    other = "" if named else "; if the cells have another separator, name it with --separator (separator= in Python)"
    return (
        f"{source}: line {number} has {count} between {word}, and the header has {len(header)} "
        f"({_names(header)}); mend the line (a cell that holds a separator stands in quotes){other}"
    )


def _names(header: list[str]) -> str:
    """Write the first names of a header."""
    shown = ", ".join(repr(name.strip()) for name in header[:_SHOWN])
    return shown + (", ..." if len(header) > _SHOWN else "")
