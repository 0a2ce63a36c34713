"""The first screen of an audit, for a reader who has a minute: what leaks, to whom, how sure that is, what to do.

`audit_page.render` calls `first_screen`, and its template shows the values. Each part has a module of its own: the
conclusion (`decision`), the table of who finds out what (`observers`), and so on.
"""

from __future__ import annotations

from typing import Any, Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult, rows_cut
from securefed._auditing.engine.statistics import ENOUGH
from securefed._auditing.report.actions import actions
from securefed._auditing.report.decision import decision
from securefed._auditing.report.membership_sentence import membership
from securefed._auditing.report.next_runs import enough_seeds
from securefed._auditing.report.observers import OWNERS, observers, owners
from securefed._auditing.report.recovered import examples
from securefed._auditing.report.report_words import short
from securefed._auditing.report.sureness import gaps, sureness

_MEANINGS: Final = {
    "secure_aggregation": "Secure aggregation: masks that cancel in the sum.",
    "paillier": "Paillier: encrypted messages, of which a key holder opens the sum.",
    "paillier_threshold": "Paillier, t of N: the same, where t parties together hold the key.",
    "ckks": "CKKS: encrypted messages, whose sum has small errors.",
    "dp": "DP: noise on the sums.",
    "ddp": "Distributed DP: every client adds its share of the noise.",
}
"""By defence, what it is, in the fewest words."""


def first_screen(report: AuditResult) -> dict[str, Any]:
    """Collect what the template shows on the first screen, by the names that the template uses."""
    return {
        "decision": decision(report),  # the conclusion, in a few sentences
        "setup": setup(report),
        # the table: a row for each party under each protection, a column for whose data leak
        "columns": [OWNERS[owner] for owner in owners(report)],
        "observers": observers(report),
        "membership": membership(report),
        "meanings": [meaning for name, meaning in _MEANINGS.items() if any(c.defense == name for c in report.cells)],
        "sure": sureness(report),  # sentences on how far the figures can be relied on
        "actions": (todo := actions(report)),
        # those with something to run or paste, by their number in the list, under which the list links to them
        "steps": [(number, action) for number, action in enumerate(todo, 1) if action.steps],
        # the command of the same audit with enough seeds
        "more_runs": enough_seeds(report) if report.settings[AUDIT]["seeds"] < ENOUGH else "",
        "gaps": gaps(report),  # how much did not run
        "examples": examples(report),  # rows beside what was recovered of them
    }


def setup(report: AuditResult) -> str:
    """Say in a line what ran, and what the attackers were given."""
    shared = report.settings[AUDIT]
    count = len(report.algorithms)
    what = short(report.algorithms[0]) if count == 1 else f"{count} algorithms"
    cut = rows_cut(shared)  # words, where clients were cut to fewer rows than they hold; else empty
    size = (cut and f", {shared['clients']} {cut}") or f" with {shared['clients']} clients"
    text = f"{what} on {shared['data']}{size}, each run {shared['seeds']} times. "
    if "epsilon" in shared:
        text += f"Differential privacy (DP): epsilon {shared['epsilon']:g}, delta {shared['delta']:g} for all rounds. "
    if report.assumptions:
        text += f"Assumed: {'; '.join(report.assumptions)}. "
    return f"{text}Took {report.seconds:.0f} s."
