"""Describe the audited data: their rows, columns and parties, and the digest of their file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from securefed._auditing.alerts.table_facts import TableFacts


@dataclass(frozen=True)
class DataSheet:
    """Facts of the data by which a reader recognises them.

    Attributes:
        rows: number of rows; 0 where nothing is known.
        columns: names of the columns of features.
        parties: by name of a party, its number of rows; empty where the splits of the audit cases say it.
        party: word for a party, such as the name of the column of owners.
        digest: SHA-256 of the file; empty where the data come from no file of the caller's.
    """

    rows: int = 0
    columns: tuple[str, ...] = ()
    parties: Mapping[str, int] = field(default_factory=dict)
    party: str = "party"
    digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)


def data_sheet(facts: TableFacts, path: str = "") -> DataSheet:
    """Describe data by their facts; `path` is that of their file, or a name that is no file."""
    digest = ""
    if path and Path(path).is_file():
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    columns = tuple(column.name for column in facts.columns)
    return DataSheet(facts.rows, columns, facts.parties, facts.party, digest)


def sheet_lines(sheet: DataSheet) -> Sequence[tuple[str, str]]:
    """Write a sheet as (word, text) pairs for a page; empty where nothing is known."""
    lines = []
    if sheet.rows:
        lines.append(("rows", str(sheet.rows)))
    if sheet.parties:
        each = [f"{name} {rows}" for name, rows in sheet.parties.items()]
        lines.append((f"rows by {sheet.party}", ", ".join(each)))
    if sheet.columns:
        lines.append((f"{len(sheet.columns)} columns", ", ".join(sheet.columns)))
    if sheet.digest:
        lines.append(("SHA-256 of the file", sheet.digest))
    return lines
