"""Sort the algorithms of a report by what protects one client's data from a server without help.

`decision`, `actions` and `next_runs` write their sentences by it. A cell is one attack on one secret in one view (what
an attacker sees), over all runs; a server without help sees the views `selections.ALONE`. `selections.remedies` lists
the defences, plain messages among them, that hold: no interval of leakage reaches above the acceptable level, and the
attacks would have noticed such a leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT, Cell
from securefed._auditing.engine.statistics import FOUND, upper
from securefed._auditing.registered.attacker import CHANGING_SURVIVORS
from securefed._auditing.report.report_words import short
from securefed._auditing.report.selections import ALONE, PLAIN, Remedy, remedies

_FIXED: Final = tuple(view for view in ALONE if view != CHANGING_SURVIVORS)
"""Views of the server alone where the same clients take part in every round."""


@dataclass(frozen=True)
class Outcome:
    """What protects one client's data in one algorithm.

    Attributes:
        name: the name of the algorithm, as it is usually written.
        kind: `safe` (plain messages hold), `held` (a protection holds), `fixed` (one holds while the same clients take
            part in every round), `unknown` (under some protection no leak was found, but its attacks failed or scatter
            too much), or `open` (none holds).
        remedies: the defences that hold, the cheapest first.
    """

    name: str
    kind: Literal["safe", "held", "fixed", "unknown", "open"]
    remedies: tuple[Remedy, ...] = ()


def outcomes(report: AuditResult) -> list[Outcome]:
    """Sort the algorithms; those of which one client's data were not attacked are left out.

    A protection holds if the upper end of every interval is at most the audit's acceptable leakage. Where plain
    messages alone were attacked, nothing can be said of protection, and the algorithm is left out unless they hold.
    """
    level = report.settings[AUDIT]["acceptable"]
    out = []
    for name in report.algorithms:
        cells = [cell for cell in report.of(name) if cell.owner == CLIENT and cell.view in ALONE]
        if (found := _outcome(report, name, level, cells)) is not None:
            out.append(found)
    return out


def _outcome(report: AuditResult, name: str, level: float, cells: Sequence[Cell]) -> Outcome | None:
    """Sort one algorithm; `None` where plain messages leak and no protection was attacked.

    Args:
        report: the report of the audit.
        name: the name of the algorithm in the report.
        level: leakage that is accepted.
        cells: on one client's data in the views of the server alone.
    """
    protected = [cell for cell in cells if cell.defense != PLAIN]
    # unprotected messages hide no more than protected ones
    bare = not any(cell.verdict.word in FOUND and upper(cell.leakage) > level for cell in protected)
    held = [item for item in remedies(report, name, level) if bare or item.defense != PLAIN]
    if any(item.defense == PLAIN for item in held):
        return Outcome(short(name), "safe", tuple(item for item in held if item.defense == PLAIN))
    if held:
        return Outcome(short(name), "held", tuple(held))
    kept = [item for item in remedies(report, name, level, views=_FIXED) if item.defense != PLAIN]
    if kept:
        return Outcome(short(name), "fixed", tuple(kept))
    if not protected:
        return None
    return Outcome(short(name), "unknown" if _unknown(protected, level) else "open")


def _unknown(cells: Sequence[Cell], level: float) -> bool:
    """Whether under some protection no leak above the level was found.

    It is called where no protection is shown to hold (`remedies`). A protection without such a leak is then not shown
    to hold for one of three reasons: its attacks failed, a secret that leaks from plain messages was not attacked under
    it, or an interval reaches above the level although no leak was found.
    """
    leaking = {cell.defense for cell in cells if cell.verdict.word in FOUND and upper(cell.leakage) > level}
    return any(cell.defense not in leaking for cell in cells)
