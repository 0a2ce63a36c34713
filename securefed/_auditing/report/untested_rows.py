"""Say that rows were not tested, where no attack of a training loop read them.

"No leak was found" of counts and categories says nothing of the rows themselves, which are what the loop's clients
hold: the sentences of `client_sentences` and `other_sentences` say it in the same sentence.
"""

from __future__ import annotations

from typing import Final

from securefed._auditing.alerts.alert import COMBINATION, DOMINATED, RARE_CATEGORY, SMALL_CLASS
from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.results import CLIENT
from securefed._auditing.report.sentence import Sentence, sentence
from securefed._auditing.sentences.table import NOTHING
from securefed.attacks.views import SUM_ONLY

_IN_SUMS: Final = frozenset({RARE_CATEGORY, COMBINATION, SMALL_CLASS, DOMINATED})
"""Alerts on people who stand in sums over all clients."""


def rows_untested(report: AuditResult, owner: str) -> list[Sentence]:
    """Say that no attack read rows, and why; empty where one did, or rows are no secret.

    Args:
        report: the report of the audit.
        owner: whose rows: one client's, or all clients' together.
    """
    alone = owner == CLIENT
    secret, view, pooled = ("samples", "server", "") if alone else ("pooled samples", SUM_ONLY, "pooled ")
    if any(report.settings[name]["secret"] != "samples" for name in report.algorithms):
        return []
    if any(cell.secret == secret for cell in report.cells) or not _of_training(report):
        return []
    begins = [f"{view}, {pooled}{attack}: " for attack in ("training/rows", "text/spans")]
    reasons = [line.removeprefix(one) for one in begins for line in report.skipped if line.startswith(one)]
    place = ("not attacked", "none", CLIENT) if alone else ("not attacked", NOTHING, "everyone")
    return [sentence(*place, "rows reason", reason=reasons[0].rstrip(".")) if reasons else sentence(*place, "rows")]


def people_untested(report: AuditResult) -> list[Sentence]:
    """Say that the few people whom alerts name were not looked for in the sums of a training loop; else empty."""
    few = any(alert.kind in _IN_SUMS for alert in report.alerts)
    summed = any(cell.view == SUM_ONLY for cell in report.cells) or any(SUM_ONLY in line for line in report.skipped)
    read = any(cell.secret == "people" for cell in report.cells)
    untested = few and summed and not read and _of_training(report)
    return [sentence("not attacked", NOTHING, "everyone", "people")] if untested else []


def _of_training(report: AuditResult) -> bool:
    """Whether the report is of a training loop, whose secrets stand apart and whose rows may be out of reach."""
    return any("tokens" in report.settings[name].get("also attacked", "") for name in report.algorithms)
