"""Write which figures and tables of the papers were measured: a sentence and a table for each paper."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from benchmarks.ledger import page, records, staleness
from benchmarks.ledger.catalogue import Catalogue, discover
from benchmarks.ledger.records import Record
from docs.generators.paper_figures import CAPTIONS, MEASURED, OPEN, OUTSIDE, PARTS, UNAVAILABLE, Part

EVERY = "/papers/every-figure.md"
WORDS = {
    MEASURED: "measured again",
    UNAVAILABLE: "not to be had",
    OUTSIDE: "out of scope",
    OPEN: "not measured yet",
}


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
    if not part.experiments:
        return []
    return [
        result
        for result in results(paper)
        if fnmatch.fnmatch(result.name, part.experiments)
        and any(re.search(part.lines, name) for name in _shown(result))
    ]


def _shown(result: Record) -> Iterable[str]:
    assert result.findings is not None
    yield from (f"{line.where} | {line.quantity}" for line in result.findings.lines)
    yield from (curve.figure for curve in result.findings.curves)


def outcome(paper: str, part: Part) -> str:
    """Return what became of a part: measured exactly where a stored result has a line of it."""
    return MEASURED if measuring(paper, part) else part.otherwise


def sentence(paper: str) -> str:
    """Return the first sentence of a paper's page: how many of its figures and tables were measured."""
    kinds = Counter(place.partition(" ")[0] for place in CAPTIONS[paper])
    count = Counter(outcome(paper, part) for part in PARTS[paper])
    counted = [f"{count[what]} {WORDS[what]}" for what in (MEASURED, UNAVAILABLE, OUTSIDE, OPEN) if count[what]]
    old = older(paper)
    return (
        f"The paper's {_number(kinds['Fig.'], 'figure')} and {_number(kinds['Table'], 'table')} have "
        f"{sum(count.values())} parts here: {', '.join(counted[:-1])} and {counted[-1]} "
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
        rows.append(f"| {part.place} | {page.cell(part.shows)} | {page.cell(_here(paper, part, found))} |")
    return "\n".join(rows) + "\n"


def _here(paper: str, part: Part, found: Sequence[Record]) -> str:
    if found:
        names = ", ".join(f"`{result.name}`" for result in found)
        return " ".join([f"{MEASURED}: {names}.", part.why]).strip()
    if part.experiments:
        return (
            f"{part.otherwise}: the experiment `{part.experiments}` is built and has no result yet. {part.why}".strip()
        )
    return f"{part.otherwise}: {part.why}"


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
