"""Sum up the membership part of an audit for the page and the terminal: a sentence, and which rows of it to show.

That part (`membership_audit.MembershipRow`) measures whether an attacker can tell which records took part, by the AUC
of its scores: the share of pairs of a member and another record that it orders rightly. It has a row for each audited
algorithm, noise and adversary; and rows of canaries, the worst case of each noise, some of them under algorithms that
were not audited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.report.report_words import protection, short
from securefed._auditing.report.selections import PLAIN

ADVERSARIES: Final = {"informed": "knows all other rows", "population": "knows only such rows"}
"""By adversary, what it knows of the attacked client's rows."""
_ANY: Final = "any"
"""Algorithm of canaries that are whole contributions."""


def membership(report: AuditResult) -> str:
    """Say whether an attacker can tell which rows were in the data; empty where that was not asked."""
    if not report.membership:
        return ""
    rows = tested(report)
    if not rows:
        return "Which rows were in the data was not tested; what did not run says why."
    found = [row for row in rows if row["verdict"] in FOUND]
    unknown = sum(row["verdict"] == INCONCLUSIVE for row in rows)
    open_ = f" In {unknown} of {len(rows)} tests the rows were too few to tell." if unknown else ""
    if not found:
        return f"Which rows were in the data: no test showed that an attacker can tell.{open_}"
    most = max(found, key=lambda row: row["auc"][0])
    where = "without noise" if most["defense"] == PLAIN else f"under {protection(most['defense'])}"
    return (
        f"Which rows were in the data: in {len(found)} of {len(rows)} tests an attacker can tell, most surely in "
        f"{short(most['algorithm'])} {where} if it {ADVERSARIES[most['adversary']]} ({most['auc'][0]:.0%} of "
        f"comparisons right; a coin gets 50%).{open_}"
    )


def tested(report: AuditResult) -> list[Mapping[str, Any]]:
    """Select the rows of the audited algorithms themselves."""
    return [row for row in report.membership if row["adversary"] in ADVERSARIES]


def canaries(report: AuditResult) -> list[Mapping[str, Any]]:
    """Select the canaries that say something of the audited algorithms: those of any algorithm, and their own."""
    audited = {_ANY, *(name.partition(" (")[0] for name in report.algorithms)}  # "ssi (2 rows)" is audited as "ssi"
    rows = [row for row in report.membership if row["adversary"] not in ADVERSARIES]
    return [row for row in rows if row["algorithm"] in audited]


def by_noise(report: AuditResult) -> list[dict[str, Any]]:
    """Put the adversaries side by side: a row for each algorithm and noise.

    Returns:
        `algorithm`, `noise` and `epsilon` in words, and `found`: by adversary of `ADVERSARIES` its row, or `None`.
    """
    made: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in tested(report):
        made.setdefault((row["algorithm"], row["defense"]), {})[row["adversary"]] = row
    return [
        {
            "algorithm": short(name),
            "noise": "none" if noise == PLAIN else protection(noise),
            "epsilon": next(iter(found.values()))["epsilon"],
            "found": [found.get(adversary) for adversary in ADVERSARIES],
        }
        for (name, noise), found in made.items()
    ]
