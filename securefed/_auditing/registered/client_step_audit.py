"""Audit an algorithm whose messages no registered attack reads, by attacks that only run its client step.

`registered_audit.audit` calls it for a single algorithm, such as a user's own, where its attacks gave no result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.audit_result import AUDIT
from securefed._auditing.engine.defense_names import PLAIN, QUANTISE
from securefed._auditing.engine.incomplete_results import Missing
from securefed._auditing.own.own_audit import audit_algorithm
from securefed._auditing.registered.audited_defenses import DEFENSES, NOISES
from securefed._auditing.registered.registered_subject import RegisteredSubject
from securefed.attacks import views

_SECONDS: Final = 120.0
"""Most seconds of attacks: somebody waits for the command. `audit_algorithm` takes up to 900 by default."""


def audit_client_step(
    subject: RegisteredSubject, report: Report, progress: Callable[[int, int, str], None] | None, *, active: bool
) -> Report:
    """Attack an algorithm whose messages no registered attack reads, as a user's own often is.

    The attacks of `audit_algorithm` need nothing but its client step. They see unprotected messages and exact sums; a
    defence with noise is listed among what did not run.

    Args:
        subject: the algorithm.
        report: the audit by registered attacks, which has no cells.
        progress: as in `audit`.
        active: as in `audit`.

    Returns:
        The report of these attacks; `report` itself where only defences with noise were asked for.
    """
    under, shared = subject.settings.defenses, report.settings[AUDIT]
    opened = {views.SERVER_VIEW: (PLAIN, QUANTISE), views.SUM_ONLY: set(DEFENSES) - {PLAIN, QUANTISE, *NOISES}}
    chosen = [view for view, defenses in opened.items() if set(under) & set(defenses)]
    if not chosen:
        return report
    found = audit_algorithm(
        subject.case.build(), lambda seed: subject.prepare(seed).clients, rounds=subject.case.rounds,
        seeds=shared["seeds"], view=chosen, seconds=_SECONDS, active=active, progress=progress,
    )  # fmt: skip
    reason = "attacks that only run the client step see no noise; `audit_noise` measures what noise hides"
    absent = [
        Missing(found.algorithms[0], name, "", "", 0, shared["seeds"], reason) for name in under if name in NOISES
    ]
    settings = {**found.settings, AUDIT: {**found.settings[AUDIT], "acceptable": shared["acceptable"]}}
    found = replace(found, command=report.command, alerts=report.alerts, data=report.data)
    return replace(found, settings=settings, missing=(*found.missing, *absent))
