"""What a run shows on the terminal: what is at work, what each experiment found, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from benchmarks.ledger import records
from benchmarks.ledger.catalogue import Catalogue, Entry
from benchmarks.ledger.ledger import MISSED, QUICK, REPRODUCED, UNSTATED
from benchmarks.ledger.page import duration, number, ours, target
from benchmarks.ledger.records import Record
from benchmarks.ledger.staleness import stale

COLOURS = {REPRODUCED: "green", UNSTATED: "yellow", MISSED: "red", QUICK: "dim"}


class Display:
    """A watcher of `runner.run`: live rows on a terminal, plain lines in a log."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0
        columns = [TextColumn(f"{{task.{what}}}", markup=False) for what in ("description", "fields[said]")]
        elapsed = TimeElapsedColumn()
        self._progress = Progress(
            SpinnerColumn(), elapsed, *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._all = self._progress.add_task("experiments", said="")
        self._count(0)
        self._rows: dict[str, TaskID] = {}

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def skipped(self, done: Record) -> None:
        """A result of the same kind is there."""
        self._say(f"{done.name}: up to date ({done.date})")
        self._count(1)

    def started(self, name: str) -> None:
        """A process has begun."""
        self._rows[name] = self._progress.add_task(name, total=None, said="")
        if not self._console.is_terminal:
            self._say(f"{name}: started")

    def said(self, name: str, text: str) -> None:
        """The experiment says how far it is."""
        self._progress.update(self._rows[name], said=text)

    def ended(self, done: Record, trace: str) -> None:
        """The experiment is done, one way or the other."""
        self._progress.remove_task(self._rows.pop(done.name))
        self._count(1)
        if done.findings is None:
            self._console.print(Text(trace, style="dim"))
            self._console.print(
                Text(f"{done.name}: failed after {duration(done.seconds)}: {done.failure}", style="red")
            )
        else:
            self._console.print(found(done))

    def _count(self, more: int) -> None:
        self._done += more
        self._progress.update(self._all, said=f"{self._done} of {self._total}")

    def _say(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))


def found(done: Record) -> Group:
    """The lines of one experiment as a table."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in ("where", "quantity", "printed", "ours", "target", "verdict"):
        table.add_column(name, justify="right" if name in ("printed", "ours", "target") else "left")
    for line in done.findings.lines if done.findings else ():
        verdict = done.verdict(line)
        printed = "" if line.printed is None else number(line.printed, line.unit)
        plain = (Text(content) for content in (line.where, line.quantity, printed, ours(line), target(line)))
        table.add_row(*plain, Text(verdict, style=COLOURS.get(verdict, "")))
    return Group(Text(f"{done.name}: {duration(done.seconds)}", style="bold"), table)


def overview(catalogue: Catalogue, chosen: Sequence[Entry], folder: Path) -> Table:
    """The experiments, and what results there are."""
    table = Table(box=None, pad_edge=False)
    for name in ("experiment", "title", "core-minutes", "results"):
        table.add_column(name, justify="right" if name == "core-minutes" else "left")
    names = {entry.experiment.name for entry in chosen}
    for name, entry in catalogue.entries.items():
        if name in names:
            state = _state(entry, records.read(folder, name))
            table.add_row(name, Text(entry.experiment.title), f"{entry.experiment.core_minutes:g}", state)
    return table


def _state(entry: Entry, result: Record | None) -> Text:
    if result is None:
        return Text("none, left to the night" if entry.experiment.nightly else "none", style="dim")
    if result.findings is None:
        return Text(f"failed: {result.failure}", style="red")
    return Text("older than the code", style="yellow") if stale(entry, result) else Text(result.date, style="green")
