"""Read text tables: .csv files of any encoding and separator, and the logs of Zeek."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from securefed.datasets._tables.columns import TextColumn, clean
from securefed.datasets._tables.decimal_mark import decimal_mark
from securefed.datasets._tables.decoding import decoded, read_bytes
from securefed.datasets._tables.dialect import split_cells
from securefed.datasets._tables.table import Table
from securefed.datasets._tables.table_format import TableFormat, separator_word
from securefed.errors import DataError


def read_csv(path: Path, form: TableFormat | None = None, texts: Iterable[str] = ()) -> Table:
    """Read a text table with a header line, plain or compressed by gzip.

    Args:
        path: the file.
        form: how it is written, where the user says so.
        texts: names of columns that hold texts whatever is in them, so that they say nothing of the decimal mark.

    Raises:
        DataError: the file cannot be read, or can be read in two ways; names the line or the column, and what to write.
    """
    return parsed(read_bytes(path), str(path), form or TableFormat(), texts)


def parsed(data: bytes, source: str, form: TableFormat, texts: Iterable[str] = ()) -> Table:
    """Read the bytes of a text table; arguments and errors are those of `read_csv`."""
    text, encoding = decoded(data, source, form.encoding)
    cells = split_cells(text, source, form.separator)
    names = [clean(name) for name in cells.header]
    if _is_row(names):
        raise DataError(
            f"{source}: the first line holds numbers ({', '.join(names[:3])}), and it must name the columns; put a "
            "line of names above it"
        )
    columns = list(zip(names, zip(*cells.lines, strict=True), strict=True))
    mark = form.decimal or decimal_mark(columns, source, cells.separator, texts)
    words = [encoding, separator_word(cells.separator)] if len(names) > 1 else [encoding]
    words += ["decimal commas"] * (mark == ",")
    lost = ["letters that were lost before (U+FFFD)"] * ("\ufffd" in text)
    return Table(source, tuple(TextColumn(name, values, mark) for name, values in columns), ", ".join(words + lost))


def read_zeek(path: Path) -> Table:
    """Read a Zeek log: names from its `#fields` line, fields separated by blanks, no field holding one.

    Blanks and not tabs alone, since the labelled logs of IoT-23 put three blanks before each of their own two fields.
    """
    text, _ = decoded(read_bytes(path), str(path))
    names: list[str] = []
    lines: list[tuple[int, Sequence[str]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#fields"):
            names = line.split()[1:]
        elif line.strip() and not line.startswith("#"):
            lines.append((number, line.split()))
    if not names or not lines:
        raise DataError(f"{path} holds no rows")
    if odd := [(number, len(cells)) for number, cells in lines if len(cells) != len(names)]:
        raise DataError(f"{path}: line {odd[0][0]} has {odd[0][1]} fields, and its #fields line names {len(names)}")
    columns = zip(*(cells for _, cells in lines), strict=True)
    return Table(str(path), tuple(TextColumn(name, values) for name, values in zip(names, columns, strict=True)))


def _is_row(names: Sequence[str]) -> bool:
    """Tell whether a header is a row of numbers; numbers that count up name the columns of tables without names."""
    try:
        numbers = [float(name) for name in names if name]
    except ValueError:
        return False
    return bool(numbers) and numbers not in ([*range(len(numbers))], [*range(1, len(numbers) + 1)])
