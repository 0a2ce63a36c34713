"""Find the decimal mark of a text table: a point or a comma, never a guess between 1,102 = 1.102 and 1,102 = 1102."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from securefed.datasets._tables.columns import NO_NUMBER
from securefed.datasets._tables.table_format import remedy
from securefed.errors import DataError

_NUMBER: Final = re.compile(r"[+-]?[0-9]*(?:[.,][0-9]*)?(?:[eE][+-]?[0-9]+)?")
"""A number with at most one mark, of either kind."""
_GROUPED: Final = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")
"""A number that can be thousands or have a fraction of three digits: 1.102 or 1,102."""


@dataclass(frozen=True)
class _Marked:
    """The cells with a mark in a column of numbers: the first, and the first that can only be a fraction, if any."""

    name: str
    cell: str
    fraction: str


def decimal_mark(
    columns: Iterable[tuple[str, Sequence[str]]], source: str, separator: str, texts: Iterable[str] = ()
) -> str:
    """Return the decimal mark of a table's numbers.

    Args:
        columns: (name, cells) of each column.
        source: the table's name, for errors.
        separator: its separator; tables with semicolons or tabs come from places that write decimal commas, so that
            there a point too can stand between thousands.
        texts: names of columns that are texts whatever they hold.

    Raises:
        DataError: both marks occur, or the cells do not say whether a mark stands before a fraction or between
            thousands.
    """
    named = frozenset(texts)
    found = {".": _first(columns := list(columns), ".", named), ",": _first(columns, ",", named)}
    point, comma = found["."], found[","]
    if point is not None and comma is not None:
        raise DataError(
            f"{source}: column {point.name!r} holds {point.cell!r} and column {comma.name!r} holds {comma.cell!r}, "
            "with two decimal marks; write one of them everywhere, and no marks between thousands"
        )
    if comma is not None:
        if not comma.fraction:
            raise DataError(_doubt(source, comma, ","))
        return ","
    if point is not None and not point.fraction and separator in ";\t":
        raise DataError(_doubt(source, point, "."))
    return "."


def _first(columns: Sequence[tuple[str, Sequence[str]]], mark: str, texts: frozenset[str]) -> _Marked | None:
    """Return what the columns of numbers hold with this mark; `None` where no cell has it."""
    first = None
    for name, cells in columns:
        if name in texts:
            continue
        marked = [cell for cell in cells if mark in cell]
        if not marked or not all(_NUMBER.fullmatch(cell.strip()) for cell in cells if not _is_gap(cell)):
            continue
        fraction = next((cell for cell in marked if not _GROUPED.fullmatch(cell.strip())), "")
        first = first or _Marked(name, marked[0].strip(), "")
        if fraction:
            return _Marked(first.name, first.cell, fraction)
    return first


def _is_gap(cell: str) -> bool:
    text = cell.strip()
    return text in NO_NUMBER or text.lower().lstrip("+-") in ("inf", "infinity")


def _doubt(source: str, found: _Marked, mark: str) -> str:
    """Say that a mark may stand before a fraction or between thousands."""
    fraction, whole = found.cell.replace(",", "."), found.cell.replace(mark, "")
    return (
        f"{source}: column {found.name!r} holds {found.cell!r}, which is {fraction} or {whole}, and no other cell says "
        f"which; write {remedy(decimal=mark)} for {fraction}, or write the numbers without marks between thousands"
    )
