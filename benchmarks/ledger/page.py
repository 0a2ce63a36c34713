"""The tables of docs/reproduction.md, made from the results of full runs: the same results give the same tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.ledger import plots, records
from benchmarks.ledger.catalogue import Catalogue, Entry
from benchmarks.ledger.ledger import COMPARISON, MISSED, REPRODUCED, UNSTATED, Line
from benchmarks.ledger.records import Record
from benchmarks.ledger.staleness import missing_seeds, stale

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = "reproduction"  # beside the page that includes the tables
TABLES = Path("generated") / "records" / "reproduction.md"

SUMMARY = ("reproduced", "under an unstated setting", "not reproduced", "for comparison")
COLUMNS = (REPRODUCED, UNSTATED, MISSED, COMPARISON)
NIGHT = " (left to the nightly run)"


@dataclass
class Notes:
    """Numbered notes below a table; the same text keeps its number."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The reference to put into a cell; nothing for no text."""
        if not text.strip():
            return ""
        if text not in self.texts:
            self.texts.append(text)
        return f" <sup>{self.texts.index(text) + 1}</sup>"

    def rows(self) -> list[str]:
        """The list itself."""
        return [f"{number}. {cell(text)}" for number, text in enumerate(self.texts, start=1)]


def write(catalogue: Catalogue, *, folder: Path, docs: Path) -> Path:
    """Write the tables and pictures; pictures that no experiment has any more are removed."""
    results = known(catalogue, folder)
    wanted: set[Path] = set()
    for name, result in results.items():
        drawn = plots.figures(result.findings.curves if result.findings else ())
        for figure, curves in drawn.items():
            path = docs / PICTURES / plots.file_name(name, figure, len(drawn))
            plots.draw(curves, path)
            wanted.add(path)
    for path in (docs / PICTURES).glob("*.png"):
        if path not in wanted:
            path.unlink()
    page = docs / TABLES
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text(catalogue, results), encoding="utf-8")
    return page


def known(catalogue: Catalogue, folder: Path) -> dict[str, Record]:
    """The results of full runs, by the names of experiments."""
    found = {name: records.read(folder, name) for name in catalogue.entries}
    return {name: result for name, result in found.items() if result is not None and not result.kind.quick}


def text(catalogue: Catalogue, results: Mapping[str, Record]) -> str:
    """The tables: a summary, then every experiment of every paper."""
    papers: dict[str, list[Entry]] = {}
    for entry in catalogue.entries.values():
        papers.setdefault(entry.experiment.paper, []).append(entry)
    parts = ["## Summary", _summary(papers, results)]
    if catalogue.broken:
        parts.append("Could not be collected:")
        parts.append("\n".join(f"- `{what}`: {cell(why)}" for what, why in catalogue.broken.items()))
    for paper, entries in papers.items():
        parts.append(f"## {paper}")
        for entry in entries:
            parts += _experiment(entry, results.get(entry.experiment.name))
    return "\n\n".join(parts) + "\n"


def _summary(papers: Mapping[str, Sequence[Entry]], results: Mapping[str, Record]) -> str:
    rows = [_row("paper", *SUMMARY, "experiments failed", "not run", "older than the code")]
    rows.append("| --- |" + " ---: |" * (len(SUMMARY) + 3))
    for paper, entries in papers.items():
        done = {entry: results.get(entry.experiment.name) for entry in entries}
        lines = [line for result in done.values() if result and result.findings for line in result.findings.lines]
        count = Counter(line.verdict for line in lines)
        failed = sum(result is not None and result.findings is None for result in done.values())
        old = sum(result is not None and stale(entry, result) for entry, result in done.items())
        missing = sum(result is None for result in done.values())
        anchor = "".join(c for c in paper.lower().replace(" ", "-") if c.isalnum() or c in "-_")
        rows.append(
            _row(f"[{paper}](#{anchor})", *(str(count[v]) for v in COLUMNS), str(failed), str(missing), str(old))
        )
    return "\n".join(rows)


def _experiment(entry: Entry, result: Record | None) -> Iterable[str]:
    name = entry.experiment.name
    yield f"### {entry.experiment.title}"
    again = f"`make reproduce REPRODUCE_ARGS={name}`"
    if result is None:
        yield f"Not run yet{NIGHT if entry.experiment.nightly else ''}; {again}."
        return
    versions = ", ".join(f"{what} {which}" for what, which in result.machine.items())
    seeds = ", ".join(map(str, result.kind.seeds))
    code = f"commit {result.commit}" if result.commit else "the commit was not noted"
    yield f"{again}: {duration(result.seconds)} on {result.date}; {code}; seeds {seeds}; {versions}."
    if few := missing_seeds(entry, result):
        yield f"{few}; the nightly run adds the others."
    if stale(entry, result):
        yield f"> **Older than the code**: code that this result depends on has changed since. Run it again: {again}."
    if result.findings is None:
        yield f"**Failed**: {cell(result.failure or '')}"
        return
    yield from _table(result.findings.lines)
    drawn = plots.figures(result.findings.curves)
    for figure in drawn:
        yield f"![{cell(figure)}]({PICTURES}/{plots.file_name(name, figure, len(drawn))})"


def _table(lines: Sequence[Line]) -> Iterable[str]:
    notes = Notes()
    rows = [_row("where", "quantity", "printed", "ours", "target", "verdict")]
    rows.append("| --- | --- | ---: | ---: | ---: | --- |")
    for line in lines:
        evidence = line.evidence if line.explained else "No evidence was given: the experiment owes it."
        rows.append(
            _row(
                cell(line.where),
                cell(line.quantity) + notes.mark(line.setting),
                "" if line.printed is None else number(line.printed, line.unit),
                ours(line),
                target(line),
                line.verdict + notes.mark(evidence),
            )
        )
    yield "\n".join(rows)
    yield "\n".join(notes.rows())


def ours(line: Line) -> str:
    """Mean, lowest and highest value, and the number of seeds."""
    low, high = line.spread
    if len(line.values) == 1:
        return f"{number(line.mean, line.unit)} (1 seed)"
    return f"{number(line.mean, line.unit)} ({number(low)} .. {number(high)}, {len(line.values)} seeds)"


def target(line: Line) -> str:
    """The range of the mean in words."""
    low, high = (None if end is None else number(end) for end in line.target)
    if low is not None and high is not None:
        return low if low == high else f"{low} .. {high}"
    return f"≥ {low}" if low is not None else f"≤ {high}" if high is not None else ""


def number(value: float, unit: str = "") -> str:
    """Four significant digits, all those of an integer; powers of ten where zeros would have to be counted."""
    size = abs(value)
    if value == int(value) and size < 1e6:
        digits = str(int(value))
    elif 1e-3 <= size < 1e6:
        digits = f"{value:.4g}" if size < 1e4 else f"{value:.0f}"
    else:
        mantissa, _, power = f"{value:.2e}".partition("e")
        digits = f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{digits} {unit}".strip()


def duration(seconds: float) -> str:
    """Seconds below two minutes, else minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def cell(content: str) -> str:
    """Text that neither ends a cell nor a line of a table."""
    return " ".join(content.split()).replace("|", "\\|")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
