"""Sum up the membership part of an audit in a sentence, for the page and the terminal.

That part (`membership_audit.MembershipRow`) measures whether an attacker can tell which records took part, by the AUC
of its scores: the share of pairs of a member and another record that it orders rightly.
"""

from __future__ import annotations

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.report.conclusions import PLAIN
from securefed._auditing.report.report_words import protection, short


def membership(report: Report) -> str:
    """Say whether an attacker can tell which records took part; empty where that was not asked."""
    rows = report.membership
    if not rows:
        return ""
    found = [row for row in rows if row["verdict"] in FOUND]
    if not found:
        unknown = sum(row["verdict"] == INCONCLUSIVE for row in rows)
        open_ = f" In {unknown} of {len(rows)} tests the rows were too few to tell." if unknown else ""
        return f"Who took part: no test showed that an attacker can tell.{open_}"
    most = max(found, key=lambda row: row["auc"][0])
    where = f"{short(most['algorithm'])} under {_noise(most['defense'])}"
    return (
        f"Who took part: in {len(found)} of {len(rows)} tests an attacker can tell (most: {where}, "
        f"{most['auc'][0]:.0%} of comparisons right; a coin gets 50%)."
    )


def _noise(defense: str) -> str:
    return "no noise" if defense == PLAIN else protection(defense)
