"""Write which figures and tables of the papers were measured: a sentence and a table for each paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from benchmarks.ledger import page, records, staleness
from benchmarks.ledger.catalogue import Catalogue, discover
from benchmarks.ledger.paper_figures import CAPTIONS, MEASURED, OUTCOMES, OUTSIDE, PARTS, UNAVAILABLE, Part
from benchmarks.ledger.records import Record

EVERY = "/papers/every-figure.md"
WORDS = {MEASURED: "measured", UNAVAILABLE: "not to be had", OUTSIDE: "out of scope"}


@cache
def catalogue() -> Catalogue:
    """Return the experiments; collecting them imports torch."""
    return discover()


@cache
def results(paper: str) -> tuple[Record, ...]:
    """Return the stored results of a paper's experiments."""
    found = [records.read(records.FULL, name) for name in sorted(catalogue().entries) if name.startswith(f"{paper}/")]
    return tuple(result for result in found if result is not None and result.findings is not None)


def pages() -> dict[str, str]:
    """Return what the papers' pages include: the first sentence of each, and the table of its figures."""
    found: dict[str, str] = {}
    for paper in PARTS:
        found[f"papers/{paper}-counts.md"] = sentence(paper) + "\n"
        found[f"papers/{paper}-figures.md"] = table(paper)
    return found


def measuring(paper: str, part: Part) -> list[Record]:
    """Return the stored results with lines or plots of a part."""
    return [
        result for result in results(paper) if any(part.measures(result.name, name) for name in names_shown(result))
    ]


def names_shown(result: Record) -> Iterable[str]:
    """Return how a part finds the lines ("WHERE | QUANTITY") and the plots of a result."""
    assert result.findings is not None
    yield from (f"{line.where} | {line.quantity}" for line in result.findings.lines)
    yield from (curve.figure for curve in result.findings.curves)


def sentence(paper: str) -> str:
    """Return the first sentence of a paper's page: how many of its figures and tables were measured."""
    kinds = Counter(place.partition(" ")[0] for place in CAPTIONS[paper])
    parts = [part for part in PARTS[paper] if part.printed]
    count = Counter(part.outcome for part in parts)
    missing = sum(part.outcome == MEASURED and not measuring(paper, part) for part in parts)
    counted = [f"{count[what]} {WORDS[what]}" for what in OUTCOMES if count[what]]
    counted[0] += f" ({missing} of them not yet run)" if missing else ""
    old = older(paper)
    return (
        f"The paper's {_number(kinds['Fig.'], 'figure')} and {_number(kinds['Table'], 'table')} have "
        f"{len(parts)} parts here: {', '.join(counted[:-1])} and {counted[-1]} "
        f"([each with its reason]({EVERY}#{paper})). "
        + (
            f"{len(old)} of {len(results(paper))} results are older than the code: see the [ledger](/reproduction.md)."
            if old
            else "All results were made by the code that stands here."
        )
    )


def older(paper: str) -> list[str]:
    """Return the experiments whose results the code has outrun."""
    entries = catalogue().entries
    return [result.name for result in results(paper) if staleness.stale(entries[result.name], result)]


def table(paper: str) -> str:
    """Return the table of a paper's figures and tables, part by part."""
    rows = ["| part | shows | here |", "| --- | --- | --- |"]
    for part in PARTS[paper]:
        found = measuring(paper, part)
        rows.append(f"| {part.place} | {page.cell(part.shows)} | {page.cell(_here(part, found))} |")
    return "\n".join(rows) + "\n"


def _here(part: Part, found: Sequence[Record]) -> str:
    if part.outcome != MEASURED:
        return f"{WORDS[part.outcome]}: {part.why}"
    names = ", ".join(f"`{result.name}`" for result in found) or f"`{part.experiments}`, not yet run"
    return " ".join([f"{WORDS[MEASURED]}: {names}.", part.why]).strip()


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
