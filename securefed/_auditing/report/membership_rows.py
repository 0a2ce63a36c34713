"""Select the rows of the membership part of an audit that the page and the terminal show.

That part (`membership_audit.MembershipRow`) measures whether an attacker can tell which records took part, by the AUC
of its scores: the share of pairs of a member and another record that it orders rightly. It has a row for each audited
algorithm, noise and adversary; and rows of canaries, the worst case of each noise, some of them under algorithms that
were not audited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.report.selections import PLAIN
from securefed._auditing.sentences.names import protection, short

ADVERSARIES: Final = {"informed": "knows all other rows", "population": "knows only such rows"}
"""By adversary, what it knows of the attacked client's rows."""
_ANY: Final = "any"
"""Algorithm of canaries that are whole contributions."""


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
