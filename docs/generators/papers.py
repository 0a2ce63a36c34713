"""Write the figures of the papers' digests: claims beside what was measured, and what the messages give away."""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ledger import page, records
from benchmarks.ledger.ledger import COMPARISON, MISSED, REPRODUCED, UNSTATED, Line
from docs.generators import records as records_of_papers
from docs.generators import which_leaks
from docs.generators.paper_claims import PAPERS, Claim, Paper

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "ledger" / "results"
_FEW = 6  # figures that are printed one by one; of more, the lowest and the highest


def pages() -> dict[str, str]:
    """Return what the digests include: claims and leaks of each paper, and the summary of all."""
    found = {"papers/summary.md": summary()}
    for paper in PAPERS:
        found[f"papers/{paper.page}-claims.md"] = claims(paper)
        found[f"papers/{paper.page}-leaks.md"] = leaks(paper)
    return found


def summary() -> str:
    """Return the table of all papers, with the verdicts on all figures of each."""
    rows = [
        "| paper | reproduced | under an unstated setting | not reproduced | tables |",
        "| --- | --- | --- | --- | --- |",
    ]
    for paper in PAPERS:
        count = Counter(line.verdict for _, line in lines_of(paper.page))
        figures = " | ".join(str(count[verdict]) for verdict in (REPRODUCED, UNSTATED, MISSED))
        rows.append(f"| [{paper.methods}](/papers/{paper.page}.md) | {figures} | [all]({anchor(paper)}) |")
    return "\n".join(rows) + "\n"


def claims(paper: Paper) -> str:
    """Return the table of a paper's claims, the reasons why some were not reproduced, and the count of all figures."""
    notes: list[str] = []
    rows = ["| claim | the paper | here | verdict |", "| --- | --- | --- | --- |"]
    for claim in paper.claims:
        lines = lines_of_claim(paper, claim)
        if claim.why and claim.why not in notes:
            notes.append(claim.why)
        rows.append(table_row(claim, lines, f" <sup>{notes.index(claim.why) + 1}</sup>" if claim.why else ""))
    numbered = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*rows, "", *numbered, "", _count(paper)]) + "\n"


def table_row(claim: Claim, lines: Sequence[Line], mark: str) -> str:
    """Return the row of one claim: what the paper prints, the means over seeds here, and the verdict with its mark."""
    return f"| {claim.text} | {_printed(lines)} | {_ours(lines)} | {_verdict(lines)}{mark} |"


def leaks(paper: Paper) -> str:
    """Return the table of what an attacker recovers, for each algorithm of a paper, from the last full audit."""
    kept = json.loads(which_leaks.RESULTS.read_text())
    rows = [
        "| what the attacker has | algorithm | one client's data | all clients' data |",
        "| --- | --- | --- | --- |",
    ]
    rows += [row for name in paper.algorithms for row in _leaks_of(kept, name)]
    setting, secret = kept["setting"], which_leaks.secret_of(kept, paper.algorithms[0])
    ending = (
        f"The secret is a client's {secret}. The figure is the leakage of the strongest attack: 1 is exact, 0 is no "
        f"better than a guess without the messages ({setting['data']}, {setting['clients']} clients, "
        f"{setting['seeds']} seeds, noise of epsilon {setting['epsilon']:g}). An empty cell was not attacked."
    )
    return "\n".join([*rows, "", ending]) + "\n"


def lines_of(family: str) -> list[tuple[str, Line]]:
    """Return date and line of all results of a paper, by the first part of its experiments' names."""
    found = []
    for path in sorted(RESULTS.glob(f"{family}-*.json")):
        result = _read(path)
        found += [(result.date, line) for line in (result.findings.lines if result.findings else ())]
    return found


def lines_of_claim(paper: Paper, claim: Claim) -> list[Line]:
    """Return the lines of the ledger that a claim rests on."""
    found: list[Line] = []
    for path in sorted(RESULTS.glob(f"{paper.page}-*.json")):
        result = _read(path)
        if result.findings and fnmatch.fnmatch(result.name, claim.experiments):
            lines = result.findings.lines
            found += [line for line in lines if re.search(claim.lines, f"{line.where} | {line.quantity}")]
    return found


def anchor(paper: Paper) -> str:
    """Return the address of a paper's section in the ledger's page."""
    titles = {entry.experiment.paper for entry in records_of_papers.catalogue().entries.values()}
    heading = next(title for title in sorted(titles) if title.startswith(paper.heading))
    return "/reproduction.md#" + "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _count(paper: Paper) -> str:
    dated = lines_of(paper.page)
    count = Counter(line.verdict for _, line in dated)
    first, last = min(date for date, _ in dated), max(date for date, _ in dated)
    return (
        f"Of all {len(dated) - count[COMPARISON]} figures that were judged, {count[REPRODUCED]} were reproduced under "
        f"the setting that the paper states, {count[UNSTATED]} where a part of the setting was chosen here because the "
        f"paper is silent on it, and {count[MISSED]} were not. Runs of {first}"
        f"{'' if first == last else f' to {last}'}; [all figures with settings and seeds]({anchor(paper)})."
    )


def _read(path: Path) -> records.Record:
    result = records.read(RESULTS, json.loads(path.read_text())["name"])
    assert result is not None
    return result


def _leaks_of(kept: dict[str, object], name: str) -> list[str]:
    client, everyone = (which_leaks.shown_of(kept, name, owner) for owner in ("client", "federation"))
    return [
        f"| {view} | `{name}` | {client[view]} | {everyone[view]} |"
        for view in client
        if client[view] or everyone[view]
    ]


def _printed(lines: Sequence[Line]) -> str:
    return _figures([line.printed for line in lines if line.printed is not None])


def _ours(lines: Sequence[Line]) -> str:
    if len(lines) == 1:
        return page.ours(lines[0])
    seeds = sorted({len(line.values) for line in lines})
    each = f"{seeds[0]} seed{'s' if seeds[0] > 1 else ''}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    return f"{_figures([line.mean for line in lines])} ({each} each)"


def _figures(values: Sequence[float]) -> str:
    if len(values) > _FEW:
        return f"{page.number(min(values))} to {page.number(max(values))}, {len(values)} figures"
    texts = [page.number(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def _verdict(lines: Sequence[Line]) -> str:
    count = Counter(line.verdict for line in lines)
    if len(count) == 1:
        return next(iter(count))
    return f"{count[REPRODUCED] + count[UNSTATED]} of {len(lines) - count[COMPARISON]} reproduced"
