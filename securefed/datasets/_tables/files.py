"""Read a table from a file by its ending: .csv, plain or compressed, or .parquet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from securefed.datasets._tables.frames import read_parquet
from securefed.datasets._tables.table import Table
from securefed.datasets._tables.table_format import TableFormat
from securefed.datasets._tables.text_tables import read_csv
from securefed.errors import ConfigError, DataError

TEXT_TABLES: Final = (".csv", ".csv.gz")
TABLES: Final = (*TEXT_TABLES, ".parquet")
"""Endings of tables, in lower case."""


def read_table(path: Path | str, *, encoding: str = "", separator: str = "", decimal: str = "") -> Table:
    """Read a table with named columns, such as one site's rows for a statistic.

        ages = read_table("site.csv").select(["age"])
        Mean(bound=120).summand(ages)

    Args:
        path: a `.csv`, `.csv.gz` or `.parquet` file.
        encoding: encoding of a `.csv` file that has no byte-order mark and is not in UTF-8, such as "cp1252".
        separator: the character between the cells of a `.csv` file, where it cannot be told.
        decimal: the decimal mark of a `.csv` file, "." or ",", where it cannot be told.

    Raises:
        DataError: the file cannot be read, or can be read in two ways; names the line or column and what to write.
        ConfigError: an option does not fit the file.
    """
    return read_file(Path(path), TableFormat(encoding, separator, decimal))


def read_file(path: Path, form: TableFormat | None = None, texts: Iterable[str] = ()) -> Table:
    """Read a table as `read_table` does.

    Args:
        path: the file.
        form: how a text table is written, where the user says so.
        texts: names of columns of a text table that hold texts whatever is in them.
    """
    name, form = path.name.lower(), form or TableFormat()
    if name.endswith(TEXT_TABLES):
        return read_csv(path, form, texts)
    check_no_form(path, form)
    if not name.endswith(".parquet"):
        raise DataError(f"{path} is no table; its name must end in {', '.join(TABLES)}")
    return read_parquet(path)


def check_no_form(path: Path | str, form: TableFormat) -> None:
    """Raise `ConfigError` where the user says how a text table is written of what is none."""
    if given := form.given():
        raise ConfigError(
            f"{', '.join(given)} are of text tables, and {path} is none; leave out {' '.join(form.command_options())}"
        )
