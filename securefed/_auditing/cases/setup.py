"""The training that a user audits, or asks advice for: data, parties, rounds and hyper-parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from securefed._auditing.alerts import FEWEST, TableFacts, facts_of
from securefed._auditing.cases.held_out import dealt_rows
from securefed._auditing.cases.own_setup import OwnSetup, owners_of
from securefed._class_names import ClassName
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._loaders import load_once
from securefed.datasets._tables.table_format import TableFormat, TableOptions

CLIENTS: Final = 8
"""Clients where no number is named, and rows have no owners."""


class SetupOptions(TableOptions, total=False):
    """The fields of a `TrainingSetup`, as keyword arguments; the class says what each means."""

    data: str
    clients: int | None
    rows_per_client: int | Sequence[int] | None
    rounds: int | None
    settings: Mapping[str, Any] | None
    standardise: bool
    owner_column: str
    label_column: str
    fewest: int
    delta: float


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """The training of a user. It travels to worker processes, so that it holds names and numbers and no data.

    Attributes:
        data: name of a data set, or the path of an `.npz`, `.csv` or `.parquet` file (`securefed.datasets.load`).
        clients: number of clients in a round; client 0 is attacked. By default 8, or one for each owner of rows.
        rows_per_client: rows of every client; by default as each algorithm's audit case has it, and of a file an even
            share. Of several numbers each makes one row of an audit's report for every algorithm.
        rounds: number of training rounds; by default that of each algorithm's audit case.
        settings: hyper-parameters, which replace those of every algorithm's audit case; `None` as a value goes back to
            the algorithm's own default.
        standardise: scale every column to mean 0 and standard deviation 1 over the rows of all clients.
        owner_column: column that says whose row it is; each client then holds the rows of one owner, drawn anew for
            every seed (at most `rows_per_client` of them).
        label_column: column of the labels in a file; by default `y` or `label`.
        fewest: rows of a category, class and party, and people behind a mean, from which on they are not few: k of your
            release rule.
        delta: the delta that goes with every epsilon.
        encoding: encoding of a `.csv` file, where it cannot be told how it is written.
        separator: the character between two of its cells.
        decimal: its decimal mark.
        classes: the classes of a file's labels, in the order of their numbers.
    """

    data: str = "digits"
    clients: int | None = None
    rows_per_client: int | Sequence[int] | None = None
    rounds: int | None = None
    settings: Mapping[str, Any] | None = None
    standardise: bool = False
    owner_column: str = ""
    label_column: str = ""
    fewest: int = FEWEST
    delta: float = 1e-5
    encoding: str = ""
    separator: str = ""
    decimal: str = ""
    classes: Sequence[ClassName] = ()

    @property
    def form(self) -> TableFormat:
        """How a text table of the user's is written."""
        return TableFormat(self.encoding, self.separator, self.decimal, self.classes)

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """The numbers of rows of every client, each of which makes one row of the report."""
        rows = self.rows_per_client
        return (rows,) if rows is None or isinstance(rows, int) else tuple(rows)

    @property
    def own(self) -> OwnSetup:
        """The user's changes of every algorithm's audit case."""
        rows = self.sizes[0] if len(self.sizes) == 1 else None
        changed = tuple((self.settings or {}).items())
        return OwnSetup(rows, self.rounds, changed, self.standardise, self.owner_column, self.fewest)

    def source(self) -> LoadedDataset:
        """Load the data, once in a process."""
        return load_once(self.data, self.owner_column, self.label_column, self.form)

    def digest(self) -> str:
        """Return a text that differs where settings or rows do: a file may change under its name."""
        source = self.source()
        state = hashlib.sha256(np.ascontiguousarray(source.data.x).tobytes())
        for values in (source.data.y, source.groups.get(self.owner_column)):
            state.update(b"" if values is None else np.ascontiguousarray(values).tobytes())
        return f"{self}{state.hexdigest()}"  # a dataclass prints its fields

    def resolved(self) -> Self:
        """Return the same setup with the numbers of clients and of rows that follow from the data.

        Raises:
            ConfigError: an argument is out of range.
            DataError: the data cannot be read.
        """
        source, count, rows = self.source(), self.clients, self.rows_per_client
        if count is None:
            count = owners_of(source, self.owner_column) if self.owner_column else CLIENTS
        if rows is None and not self.owner_column and count > 0:
            rows = dealt_rows(self.data, source, count)
        return replace(self, clients=count, rows_per_client=rows)

    def facts(self) -> TableFacts:
        """Return facts of the data for alerts, of a setup that is `resolved`."""
        held = [size for size in self.sizes if size is not None]
        parties = [min(held)] * (self.clients or 0) if held and not self.owner_column else []
        source, owner, label = self.source(), self.owner_column, self.label_column
        return facts_of(source, owner=owner, label=label, parties=parties, standardised=self.standardise)
