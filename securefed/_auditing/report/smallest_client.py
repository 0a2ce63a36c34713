"""The smallest client on a line of its own, and in every conclusion of the report.

A report's cells are means over the clients that its runs attacked. `AuditResult.smallest` holds the same cells of the
client with fewest rows, over all runs. `with_smallest` counts these as well, so that no conclusion says of clients what
is not so of the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeVar

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.results import CLIENT, Cell
from securefed._auditing.engine.statistics import EXPOSED, FEWEST, INCONCLUSIVE, NOT_DETECTED, PARTIAL, reaches_far
from securefed._auditing.report.selections import PLAIN, alone, strongest, worst
from securefed._auditing.report.sentence import Sentence, sentence
from securefed._auditing.sentences.names import in_sentence
from securefed._auditing.sentences.table import NOTHING, counted, listed
from securefed.attacks.views import CHANGING_SURVIVORS

WORDS: Final = (EXPOSED, PARTIAL, INCONCLUSIVE, "few", NOT_DETECTED)
"""What may be said of the smallest client, the worst first; `few` runs say nothing."""

Found = TypeVar("Found", bound=AuditResult)


def with_smallest(report: Found) -> Found:
    """Return the report with the cells of the smallest client among its cells."""
    more = tuple(one.cell for one in report.smallest)
    return replace(report, cells=(*report.cells, *more)) if more else report


def of_smallest(report: AuditResult, algorithm: str) -> Iterator[Sentence]:
    """Say what each protection leaves open of the smallest client to the server alone; nothing of even clients."""
    found = [one for one in report.smallest if one.cell.algorithm == algorithm]
    if not found:
        return
    least, most = min(one.least for one in found), max(one.most for one in found)
    runs = max(one.cell.leakage.seeds for one in found)
    rows = counted(least, "row") if least == most else f"{least} to {counted(most, 'row')}"
    yield sentence("smallest", rows=rows, runs=runs)
    for changing in (False, True):
        cells = tuple(one.cell for one in found if (one.cell.view == CHANGING_SURVIVORS) == changing)
        seen = replace(report, cells=cells)
        words = {defense: _word(seen, algorithm, defense, runs) for defense in dict.fromkeys(c.defense for c in cells)}
        few = {"runs": counted(runs, "run")}
        for word in WORDS:
            more = few if word == "few" else {}
            if words.get(PLAIN) == word and not changing:
                yield sentence(word, "none", "smallest", **more)
            names = [in_sentence(defense) for defense, one in words.items() if one == word and defense != PLAIN]
            if names:
                where = "absent" if changing else NOTHING
                yield sentence(word, "some", "smallest", where, protections=listed(names), **more)


def _word(report: AuditResult, algorithm: str, defense: str, runs: int) -> str:
    """Return the verdict on the smallest client under a defence; of silence in few runs, that they are few."""
    cell = worst(report, algorithm, defense, CLIENT)
    if cell is None or _doubtful(report, algorithm, defense, cell):
        return INCONCLUSIVE
    return "few" if cell.verdict.word == NOT_DETECTED and runs < FEWEST else cell.verdict.word


def _doubtful(report: AuditResult, name: str, defense: str, worst_cell: Cell) -> bool:
    """Whether nothing was found of a client, and a secret's interval reaches so far that this says nothing of it."""
    seen = [cell for cell in report.of(name) if cell.defense == defense and cell.owner == CLIENT]
    open_ = (
        cell for cell in strongest(seen).values() if cell.verdict.word == INCONCLUSIVE and cell.view in alone(report)
    )
    return worst_cell.verdict.word == NOT_DETECTED and any(reaches_far(one.leakage, one.null_leakage) for one in open_)
