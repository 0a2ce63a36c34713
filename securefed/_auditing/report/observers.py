"""Rank what observers see, and say whether a report tells the secrets of its only algorithm apart."""

from __future__ import annotations

import re
from typing import Final

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.results import CLIENT
from securefed.attacks.views import CHANGING_SURVIVORS, RELEASED, SMALLEST_SUM

_COLLUSION: Final = re.compile(r"collusion\((\d+)\)")
"""Name of the view of a server that so many clients help."""
_HONEST: Final = (RELEASED, "server", "sum only")
"""Views of a server that follows the protocol without help, and of what it publishes."""


def names_secrets(report: AuditResult) -> bool:
    """Whether the report is about one algorithm and tells its secrets apart: rows, counts of labels, and so on.

    An audit of registered algorithms does not: it calls them `client` and `federation`, after whose data they are.
    """
    secrets = {cell.secret for cell in report.cells if cell.owner == CLIENT}
    return bool(secrets) and CLIENT not in secrets and len(report.algorithms) == 1


def strength(view: str) -> int:
    """Rank a view by how much its observer can do: published results, the server alone, with help, by lying.

    Views that are not named here, such as `active server`, come last.
    """
    if colluding := _COLLUSION.fullmatch(view):
        return 3 + int(colluding[1])
    ranks = {RELEASED: 0, "server": 1, "sum only": 1, SMALLEST_SUM: 2, CHANGING_SURVIVORS: 2, "server + key holder": 3}
    return ranks.get(view, 1000)


def sees_all_of(view: str, other: str) -> bool:
    """Return whether the observer of a view sees all that the observer of another view of the same run sees.

    A server sees what it publishes, and with the help of others what it sees alone; with the help of more clients it
    sees what it sees with fewer. A server in a run where clients come and go, or where few answer, sees other sums, so
    that it is compared with no other view.
    """
    if {CHANGING_SURVIVORS, SMALLEST_SUM} & {view, other} or strength(other) >= strength(view):
        return False
    both = _COLLUSION.fullmatch(view), _COLLUSION.fullmatch(other)
    return other in _HONEST or all(both)
