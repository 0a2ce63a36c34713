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
from securefed._auditing.engine.results import RECORD
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.report.report_words import listed, protection, short
from securefed._auditing.report.selections import PLAIN

ADVERSARIES: Final = {"informed": "knows all other rows", "population": "knows only such rows"}
"""By adversary, what it knows of the attacked client's rows."""
_MUST_KNOW: Final = {
    "informed": "knows all other rows, those of the other clients too,",
    "population": "knows the other clients' rows, and of the attacked client's only what such rows are like,",
}
"""The same in a sentence that begins with "Whoever"."""
_VIEWS: Final = {"server": "from a client's own messages", "sum only": "from sums"}
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


def told_rows(report: AuditResult) -> str:
    """Conclude for the decision whether an attacker can tell that a row was there, and what it must know; else empty.

    For the audit of a training loop membership has cells of its own (`RECORD`); for registered algorithms it has rows.
    """
    return _told_by_cells(report) or _told_by_rows(report)


def _told_by_rows(report: AuditResult) -> str:
    found = [row for row in tested(report) if row["verdict"] in FOUND]
    if not found:
        return ""
    most = max(found, key=lambda row: (row["auc"][0], row["adversary"] == "population"))
    bare = most["defense"] == PLAIN
    where = "from unprotected messages" if bare else f"in spite of {protection(most['defense'])}"
    in_ = f" of {short(most['algorithm'])}" if len(report.algorithms) > 1 else ""
    said = (
        f"Whoever {_MUST_KNOW[most['adversary']]} can tell {where}{in_} whether one row (a patient) was in a client's "
        f"data: right in {most['auc'][0]:.0%} of comparisons, a coin in 50%."
    )
    if not bare:
        return said
    noised = {row["defense"] for row in tested(report)} - {PLAIN}
    failed = {row["defense"] for row in tested(report) if row["verdict"] in (*FOUND, INCONCLUSIVE)}
    quiet = "; of the kinds of noise tried, no test showed it" if noised and not noised & failed else ""
    return f"{said} Sums do not stop this attacker, who subtracts what it knows{quiet}."


def _told_by_cells(report: AuditResult) -> str:
    cells = [cell for cell in report.cells if cell.owner == RECORD]
    found = [cell for cell in cells if cell.verdict.word in FOUND]
    said = []
    if found:
        most = max(found, key=lambda cell: cell.leakage.mean)
        where = "the server" if most.defense == PLAIN else f"who sees the sums under {protection(most.defense)}"
        said.append(
            f"With a record in hand and rows like the clients', {where} can tell whether it was among a client's rows: "
            f"right in {0.5 + most.leakage.mean / 2:.0%} of comparisons, a coin in 50%."
        )
    blind = dict.fromkeys(cell.view for cell in cells if cell.reach.without and cell.verdict.word not in FOUND)
    open_ = [view for view in blind if not any(cell.view == view for cell in found)]
    if open_:
        views = listed([_VIEWS.get(view, view) for view in open_])
        name = next(cell.reach.without for cell in cells if cell.reach.without)
        said.append(f"Whether a record can be told {views} was not tested: {name}, the strongest attack, did not run.")
    return " ".join(said)


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
