"""Say in the same sentence as a conclusion that rows were not tested, where no attack of a training loop read them.

"No leak was found" of counts and categories says nothing of the rows themselves, which are what the loop's clients
hold. `decision` adds the clause to its sentences on one client, and on all clients together.
"""

from __future__ import annotations

from typing import Final

from securefed._auditing.alerts.alert import COMBINATION, DOMINATED, RARE_CATEGORY, SMALL_CLASS
from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.results import CLIENT
from securefed._auditing.report.report_words import listed, secret_title
from securefed._auditing.report.selections import PLAIN
from securefed.attacks.views import SUM_ONLY

_CLAUSES: Final = {True: "a client's rows were not tested", False: "rows of all clients together were not tested"}
"""By whether the sentence is about one client."""
_SECRETS: Final = {True: ("samples", "server"), False: ("pooled samples", "sum only")}
"""By the same, the secret that rows are, and the view in which the reason is looked for."""
_IN_SUMS: Final = frozenset({RARE_CATEGORY, COMBINATION, SMALL_CLASS, DOMINATED})
"""Alerts on people who stand in sums over all clients."""
_PEOPLE: Final = (
    "The few people whom the alerts name were not looked for in the sums: a summed update may show their label, their "
    "row or the mean of them."
)
_LEFT: Final = "no more than the accepted leak is left"
_LEFT_OF: Final = "no more than the accepted leak of a client's {secrets} is left"


def with_untested(report: AuditResult, said: str, owner: str) -> str:
    """Add to the first sentence of a conclusion that rows were not tested, and to further ones on protection too.

    Args:
        report: the report of the audit.
        said: sentences, each with a full stop; may be empty.
        owner: whose rows the sentences are about: one client's, or all clients' together.
    """
    reason = untested(report, owner)
    if not said or reason is None:
        return said
    first, *others = said.removesuffix(".").replace(_LEFT, _LEFT_OF.format(secrets=_tested(report))).split(". ")
    clause = _CLAUSES[owner == CLIENT]
    others = [f"{one}; {clause}" if one.startswith(("With a protection", "The leak")) else one for one in others]
    return f"{'. '.join([f'{first}; {clause}{reason}', *others])}."


def untested(report: AuditResult, owner: str) -> str | None:
    """Return why no attack read rows, as ": reason" where it is known; `None` where one did, or rows are no secret."""
    secret, view = _SECRETS[owner == CLIENT]
    if any(report.settings[name]["secret"] != "samples" for name in report.algorithms):
        return None
    if any(cell.secret == secret for cell in report.cells) or not _of_training(report):
        return None
    pooled = "" if owner == CLIENT else "pooled "
    begins = [f"{view}, {pooled}{attack}: " for attack in ("training/rows", "text/spans")]
    reasons = [line.removeprefix(one) for one in begins for line in report.skipped if line.startswith(one)]
    return f": {reasons[0]}" if reasons else ""


def people_untested(report: AuditResult) -> str:
    """Say that the few people whom alerts name were not looked for in the sums of a training loop; else empty."""
    few = any(alert.kind in _IN_SUMS for alert in report.alerts)
    summed = any(cell.view == SUM_ONLY for cell in report.cells) or any(SUM_ONLY in line for line in report.skipped)
    read = any(cell.secret == "people" for cell in report.cells)
    return _PEOPLE if few and summed and not read and _of_training(report) else ""


def _tested(report: AuditResult) -> str:
    """Name the secrets of a client that were attacked under a protection; its data where none has a name."""
    cells = [cell for cell in report.cells if cell.owner == CLIENT and cell.defense != PLAIN]
    return listed(secret_title(cell.secret) for cell in cells) or "data"


def _of_training(report: AuditResult) -> bool:
    """Whether the report is of a training loop, whose secrets stand apart and whose rows may be out of reach."""
    return any("tokens" in report.settings[name].get("also attacked", "") for name in report.algorithms)
