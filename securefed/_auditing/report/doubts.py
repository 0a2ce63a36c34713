"""Say why it is not known whether a protection hides one client's data, for the report's list of what to do.

A cell is one attack on one secret in one view (what an attacker sees), over all runs, with a verdict. `actions` asks
about the algorithms whose outcome is `unknown`: no protection is shown to hold, and under some of them no leak above
the accepted level was found.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT, Cell
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE, upper
from securefed._auditing.report.report_words import in_sentence, leak_text, listed, search_failed, short
from securefed._auditing.report.selections import PLAIN, alone, strongest

_CAUSES: Final = {
    "failed": "the attacks on {names} failed",
    "scatter": "the results of {names} scatter too much to tell",
    "single": "one run does not say how small a leak of {names} could have been missed",
    "missed": "no leak of {names} was found, but one below {size} could have been missed",
}
"""Clauses by cause; `size` is the largest leak that one of the attacks could have missed."""


def doubts(report: AuditResult, names: Collection[str]) -> str:
    """Say under which protections nothing was found of one client's data, and why this is no sign of safety.

    Protections under which a leak above the accepted level was found are left out.

    Args:
        report: the report of the audit.
        names: the names of the algorithms, as they are usually written.
    """
    level = report.settings[AUDIT]["acceptable"]
    cells = [c for c in report.cells if c.owner == CLIENT and c.view in alone(report) and c.defense != PLAIN]
    best = [cell for cell in strongest(cells, by_owner=True).values() if short(cell.algorithm) in names]
    settled = {
        (cell.algorithm, cell.defense)
        for cell in best
        if cell.verdict.word in FOUND and upper(cell.leakage) > level
    }  # fmt: skip
    quiet: dict[str, list[Cell]] = {cause: [] for cause in _CAUSES}
    order = list(_CAUSES)  # of several views under one protection the first cause in this order counts
    for cell in sorted(best, key=lambda one: order.index(_cause(one, level) or order[-1])):
        place = (cell.algorithm, cell.defense)
        if place not in settled and (cause := _cause(cell, level)):
            quiet[cause].append(cell)
            settled.add(place)
    clauses = [_clause(cause, cells) for cause, cells in quiet.items() if cells]
    if not clauses:  # a secret that plain messages give away was not attacked under the protection
        return "Not all that plain messages give away was looked for under a protection."
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _cause(cell: Cell, level: float) -> str:
    """Say why a cell in which no leak above the level was found does not exclude one; empty if it does."""
    if cell.verdict.word == INCONCLUSIVE:
        return "failed" if search_failed(cell) else "scatter"
    if math.isnan(cell.verdict.detectable):
        return "single"
    return "missed" if _missed(cell) > level else ""


def _missed(cell: Cell) -> float:
    """Return the largest leak that the attack of a cell does not exclude."""
    return max(cell.verdict.detectable, upper(cell.leakage))


def _clause(cause: str, cells: list[Cell]) -> str:
    """Say one cause of all its cells: under which protections, in which algorithms."""
    names = listed(short(cell.algorithm) for cell in cells)
    defenses = listed((in_sentence(cell.defense) for cell in cells), "or")
    size = leak_text(max(map(_missed, cells))) if cause == "missed" else ""
    return f"under {defenses} {_CAUSES[cause].format(names=names, size=size)}"
