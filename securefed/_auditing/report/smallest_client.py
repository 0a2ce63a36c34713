"""The smallest client on a line of its own, and in every conclusion of the report.

A report's cells are means over the clients that its runs attacked. `AuditResult.smallest` holds the same cells of the
client with fewest rows, over all runs. `with_smallest` counts these as well, so that no conclusion says of clients what
is not so of the smallest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.results import CLIENT, Cell
from securefed._auditing.engine.statistics import EXPOSED, INCONCLUSIVE, NOT_DETECTED, PARTIAL, reaches_far
from securefed._auditing.report.observers import FEWEST
from securefed._auditing.report.report_words import in_sentence, listed, short
from securefed._auditing.report.selections import PLAIN, alone, strongest, worst
from securefed.attacks.views import CHANGING_SURVIVORS

_WORDS: Final[dict[str, str]] = {
    EXPOSED: "its data can be computed in {names}",
    PARTIAL: "a part of its data can be computed in {names}",
    INCONCLUSIVE: "it is not known for {names}",
    NOT_DETECTED: "no leak was found in {names}",
}
"""By verdict, worst first, what is said of the smallest client."""


Found = TypeVar("Found", bound=AuditResult)


def with_smallest(report: Found) -> Found:
    """Return the report with the cells of the smallest client among its cells."""
    more = tuple(one.cell for one in report.smallest)
    return replace(report, cells=(*report.cells, *more)) if more else report


def smallest_lines(report: AuditResult) -> list[str]:
    """Say of each protection what it leaves open of the smallest client to the server alone; empty for even clients."""
    if not report.smallest:
        return []
    alone = replace(report, cells=tuple(one.cell for one in report.smallest))
    least, most = min(one.least for one in report.smallest), max(one.most for one in report.smallest)
    rows = f"{least} row{'s' * (least != 1)}" if least == most else f"{least} to {most} rows"
    runs = max(one.cell.leakage.seeds for one in report.smallest)
    lines = [f"The smallest client ({rows}) was attacked in every run ({runs})."]
    for defense in dict.fromkeys(one.cell.defense for one in report.smallest):
        where = "Without protection" if defense == PLAIN else f"Under {in_sentence(defense)}"
        for changing in (False, True):
            cells = tuple(cell for cell in alone.cells if (cell.view == CHANGING_SURVIVORS) == changing)
            if said := _found(replace(alone, cells=cells), defense):
                lines.append(f"{where}{', where clients stay away in some rounds' * changing}: {said}.")
    return lines


def _doubtful(report: AuditResult, name: str, defense: str, worst_cell: Cell) -> bool:
    """Whether nothing was found of a client, and a secret's interval reaches so far that this says nothing of it."""
    seen = [cell for cell in report.of(name) if cell.defense == defense and cell.owner == CLIENT]
    open_ = (
        cell for cell in strongest(seen).values() if cell.verdict.word == INCONCLUSIVE and cell.view in alone(report)
    )
    return worst_cell.verdict.word == NOT_DETECTED and any(reaches_far(one.leakage, one.null_leakage) for one in open_)


def _found(report: AuditResult, defense: str) -> str:
    """Say in which algorithms the smallest client's data can be computed under a defence, in part, or not."""
    found = {name: worst(report, name, defense, CLIENT) for name in report.algorithms}
    words = {
        short(name): INCONCLUSIVE if _doubtful(report, name, defense, cell) else cell.verdict.word
        for name, cell in found.items()
        if cell is not None
    }
    runs = max((cell.leakage.seeds for cell in report.cells), default=0)
    quiet = {NOT_DETECTED: "{count} runs are too few to say for {names}"} if runs < FEWEST else {}
    return "; ".join(
        said.format(names=listed([name for name, one in words.items() if one == word]), count=runs)
        for word, said in (_WORDS | quiet).items()
        if word in words.values()
    )
