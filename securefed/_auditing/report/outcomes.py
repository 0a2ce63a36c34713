"""Sort the algorithms of a report by what protects one client's data from a server without undeclared help.

`decision`, `actions` and `next_runs` write their sentences by it. A cell is one attack on one secret in one view (what
an attacker sees), over all runs. `selections.remedies` lists the defences, plain messages among them, that hold in some
views: no interval of leakage reaches above the acceptable level, and the attacks would have noticed such a leak.
`allowed_views.judge` decides from it what may be said of each setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from securefed._auditing.engine.allowed_views import (
    BLIND,
    KEPT,
    LATE,
    LEAKS,
    Allowance,
    Ruling,
    default_threshold,
    judge,
)
from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT, FEDERATION, Cell
from securefed._auditing.engine.statistics import EXPOSED, FOUND, INCONCLUSIVE, NOT_DETECTED, PARTIAL, upper
from securefed._auditing.report.selections import PLAIN, Remedy, alone, remedies, strongest
from securefed._auditing.sentences.names import short

_SINGLE: Final = "server"
"""View of single messages: what leaks from plain ones there must have been looked for under a protection."""
_SUMS: Final = ("collusion", "sum only", "smallest sum", "changing survivors")
"""Beginnings of the names of views of sums."""


@dataclass(frozen=True)
class Outcome:
    """What protects one client's data in one algorithm.

    Attributes:
        name: the name of the algorithm, as it is usually written.
        kind: `safe` (plain messages hold), `held` (a protection holds), `fixed` (one holds while the same clients take
            part in every round), `unknown` (under some protection no leak was found, but its attacks failed or scatter
            too much), or `open` (none holds).
        remedies: the defences that hold, the cheapest first.
        rulings: by defence, what may be said of it.
    """

    name: str
    kind: Literal["safe", "held", "fixed", "unknown", "open"]
    remedies: tuple[Remedy, ...] = ()
    rulings: Mapping[str, Ruling] = field(default_factory=dict)


def outcomes(report: AuditResult) -> list[Outcome]:
    """Sort the algorithms; those of which one client's data were not attacked are left out.

    A protection holds if the upper end of every interval is at most the audit's acceptable leakage. Where plain
    messages alone were attacked, nothing can be said of protection, and the algorithm is left out unless they hold.
    """
    return [found for name in report.algorithms if (found := outcome_of(report, name)) is not None]


def rulings(report: AuditResult, algorithm: str) -> dict[str, Ruling]:
    """Decide by defence what may be said of one algorithm under it.

    Args:
        report: the report of the audit.
        algorithm: the name of the algorithm in the report.
    """
    level = report.settings[AUDIT]["acceptable"]
    cells = [cell for cell in report.of(algorithm) if cell.owner == CLIENT]
    return {
        defense: judge(setting, _states(report, algorithm, setting, level, cells))
        for defense in dict.fromkeys(cell.defense for cell in cells)
        if (setting := _setting(report, algorithm, defense)) is not None
    }


def settings_judged(report: AuditResult) -> list[dict[str, object]]:
    """Say of every setting which views it allows, which were attacked, and what may be said of it, as JSON values."""
    names = report.algorithms if "acceptable" in report.settings.get(AUDIT, {}) else ()
    return [
        {"algorithm": name} | ruling.to_json() | _of_all_clients(report, name, defense)
        for name in names
        for defense, ruling in rulings(report, name).items()
    ]


def _of_all_clients(report: AuditResult, algorithm: str, defense: str) -> dict[str, object]:
    """Say what the sums of a setting tell of all clients' data together and of people in it, as JSON values."""
    seen = [cell for cell in report.of(algorithm) if cell.defense == defense and cell.view in alone(report)]
    found = strongest(cell for cell in seen if cell.owner == FEDERATION)
    read = (cell.read.part for cell in found.values() if cell.secret == "people" and cell.verdict.word in FOUND)
    words = {cell.verdict.word for cell in found.values() if cell.secret != "people"}
    order = (EXPOSED, PARTIAL, INCONCLUSIVE, NOT_DETECTED)
    return {
        "all clients": next((one for one in order if one in words), "not attacked"),
        "people": list(dict.fromkeys(read)),
    }


def _setting(report: AuditResult, algorithm: str, defense: str) -> Allowance | None:
    """Return the setting in which an algorithm ran under a defence; `None` where its number of clients is not known."""
    shared = report.settings[AUDIT]
    if "clients" not in shared:
        return None
    clients = int(shared["clients"])
    threshold = int(shared.get("threshold", default_threshold(clients)))
    summed = any(cell.view.startswith(_SUMS) for cell in report.of(algorithm) if cell.defense == defense)
    rounds = report.settings[algorithm].get("rounds", 2)
    rounds = rounds if isinstance(rounds, int) else 2
    late = bool(report.settings[algorithm].get(LATE))
    return Allowance(defense, clients, threshold, int(shared.get("colluders", 0)), rounds, summed, late)


def _states(
    report: AuditResult, algorithm: str, setting: Allowance, level: float, cells: Sequence[Cell]
) -> dict[str, str]:
    """Say of each attacked view of a setting whether it keeps the leak at the level."""
    base = setting.same_clients
    found: dict[str, str] = {}
    for view in setting.allowed:
        seen = [cell for cell in cells if cell.defense == setting.defense and cell.view == view]
        if not seen:
            continue
        held = remedies(report, algorithm, level, views=(_SINGLE, *base, view))
        if any(item.defense == setting.defense for item in held):
            found[view] = KEPT
        else:
            leaks = any(cell.verdict.word in FOUND and upper(cell.leakage) > level for cell in seen)
            found[view] = LEAKS if leaks else BLIND
    return found


def outcome_of(report: AuditResult, name: str) -> Outcome | None:
    """Sort one algorithm; `None` where plain messages leak and no protection was attacked, or nothing was.

    Args:
        report: the report of the audit.
        name: the name of the algorithm in the report.
    """
    level = report.settings[AUDIT]["acceptable"]
    cells = [cell for cell in report.of(name) if cell.owner == CLIENT and cell.view in alone(report)]
    protected = [cell for cell in cells if cell.defense != PLAIN]
    # unprotected messages hide no more than protected ones
    bare = not any(cell.verdict.word in FOUND and upper(cell.leakage) > level for cell in protected)
    ruled = rulings(report, name)
    plain = [item for item in remedies(report, name, level, views=alone(report)) if item.defense == PLAIN]
    if bare and plain:
        return Outcome(short(name), "safe", tuple(plain), ruled)
    for kind in ("held", "fixed"):
        named = [defense for defense, ruling in ruled.items() if ruling.word == kind and defense != PLAIN]
        kept: list[Remedy] = []
        if named:
            seen = ruled[named[0]].setting
            views = seen.allowed if kind == "held" else seen.same_clients
            held = remedies(report, name, level, views=(_SINGLE, *views))
            kept = [item for item in held if item.defense in named]
        if kept:
            return Outcome(short(name), kind, tuple(kept), ruled)
    if not protected:
        return None
    return Outcome(short(name), "unknown" if _unknown(protected, level) else "open", (), ruled)


def _unknown(cells: Sequence[Cell], level: float) -> bool:
    """Whether under some protection no leak above the level was found.

    It is called where no protection is shown to hold (`remedies`). A protection without such a leak is then not shown
    to hold for one of three reasons: its attacks failed, a secret that leaks from plain messages was not attacked under
    it, or an interval reaches above the level although no leak was found.
    """
    leaking = {cell.defense for cell in cells if cell.verdict.word in FOUND and upper(cell.leakage) > level}
    return any(cell.defense not in leaking for cell in cells)
