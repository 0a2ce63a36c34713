"""Count leaks found in sums also as leaks of unprotected messages, since a reader of single messages can add them.

The page (`audit_page.render`) and the terminal (`_commands.display.show_audit`) draw their conclusions from
`with_sums(report)`. Else a report whose attack on single messages failed, and whose attack on their sums did not, would
read as if no protection were better than secure aggregation.

A cell is one attack on one secret in one view (what an attacker sees), over all runs, with a verdict. Only exact
defences count, under which the clients send the same messages as without: under noise training goes another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.statistics import FOUND
from securefed._auditing.report.selections import PLAIN, strongest, weight
from securefed.attacks.views import ACTIVE_SERVER, SUM_ONLY

_EXACT: Final = ("quantise", "secure_aggregation", "paillier", "paillier_threshold", "ckks")
"""Defences without noise."""
_READS: Final[Mapping[str, str]] = {SUM_ONLY: "server", ACTIVE_SERVER: ACTIVE_SERVER}
"""By view of a server under such a defence, the view of the same server without it."""


def with_sums(report: AuditResult) -> AuditResult:
    """Add a cell for each secret of which sums are known to give away more than unprotected messages are.

    Secrets that were not attacked in unprotected messages are left out.
    """
    best = strongest(report.cells)
    more: dict[tuple[str, str, str], Cell] = {}
    for (name, defense, view, secret), cell in best.items():
        if defense not in _EXACT or view not in _READS or cell.verdict.word not in FOUND:
            continue
        key = name, _READS[view], secret
        plain = more.get(key) or best.get((name, PLAIN, *key[1:]))
        if plain is not None and weight(cell) > weight(plain):
            more[key] = replace(
                cell,  # what was found is that of the sums; how it ran, that of unprotected messages
                defense=PLAIN,
                view=key[1],
                reach=replace(cell.reach, added=True),
            )
    return replace(report, cells=(*report.cells, *more.values())) if more else report


def added(report: AuditResult) -> tuple[Cell, ...]:
    """Select the cells that `with_sums` added."""
    return tuple(cell for cell in report.cells if cell.reach.added)


def as_attacked(report: AuditResult) -> AuditResult:
    """Return the report without the cells that `with_sums` added."""
    return replace(report, cells=tuple(cell for cell in report.cells if not cell.reach.added))
