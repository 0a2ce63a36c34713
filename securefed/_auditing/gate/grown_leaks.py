"""Compare two audits for a gate: leaks that grew, are new, can no longer be measured, or were not looked for again.

`securefed compare` reads the JSON of an earlier and a later audit of the same project, and fails where `growth` lists a
reason. A situation is an algorithm under a defence, a view (what an attacker sees) and a secret; several attacks may
try it, and the strongest one counts. Leakages are means over seeds with 95 % intervals: 1 is exact, 0 a guess. Pairs in
a row that compares the audits (`Compared`), such as its verdicts, are of the earlier and of the later audit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from securefed._auditing.engine.incomplete_results import Missing
from securefed._auditing.engine.statistics import FOUND
from securefed._auditing.gate.leakage_limits import NO_CELL, Reason
from securefed._auditing.gate.lost_coverage import no_longer_tried, without_allowed
from securefed._auditing.report.audit_json import cells_of
from securefed._auditing.report.comparison import (
    ADDED,
    GREW,
    LOST,
    Compared,
    beyond,
    compare,
    compare_members,
    compare_views,
    members_of,
)
from securefed._auditing.report.report_words import leak_text
from securefed._auditing.report.selections import strongest
from securefed._auditing.sentences.names import short, short_defense

NEW: Final = "new"
DID_NOT_RUN: Final = "did not run"


def growth(before: Mapping[str, Any], after: Mapping[str, Any], allowed: Collection[str] = ()) -> list[Reason]:
    """List every reason to hold the later audit back; empty if it gives away no more than the earlier.

    - A leak grew: one attack finds more than before, or the strongest attack of a situation (algorithm, defence, view,
      secret) that both audits tried, so that a new and stronger attack counts; or a membership adversary does.
    - A leak is new: exposed or partial, in a situation or for an adversary that the earlier audit did not try.
    - A leak is no longer known: the later attacks failed and reach less, beyond both intervals. That is no improvement.
    - Something did not run: an algorithm or a defence that the later audit was asked for, or fewer seeds of it than the
      earlier audit ran.
    - Something was no longer tried: the later audit was not asked for it, or attacked it by fewer seeds.

    What the gate cannot judge is listed by `unjudged`.

    Args:
        before: JSON of the earlier audit.
        after: JSON of the later audit.
        allowed: names of what may be missing from the later audit, as the reasons write them; the beginning of a name
            up to a comma allows all that begins so.
    """
    views = compare_views(before, after)
    attacks = [row for row in compare(before, after) if row.change == GREW]
    alone = {row.situation for row in attacks}
    grown = attacks + [row for row in views if row.change == GREW and row.situation not in alone]
    out = [Reason(GREW, _where(row), f"from {_leak(row, 0)} to {_leak(row, 1)}") for row in grown]
    out += [
        Reason(NEW, _where(row), f"{row.verdicts[1]} at {_leak(row, 1)}, and nothing before to compare with")
        for row in views
        if row.change == ADDED and row.verdicts[1] in FOUND
    ]
    old, new = (strongest(cells_of(report)) for report in (before, after))
    out += [
        Reason(LOST, _where(row), f"{row.verdicts[0]} at {_leak(row, 0)} before, and inconclusive now")
        for row in views
        if row.change == LOST and row.verdicts[0] in FOUND and beyond(new[row.situation], old[row.situation])
    ]
    absent = without_allowed(_missing(before, after), allowed)
    untried = without_allowed(no_longer_tried(before, after), [*allowed, *(reason.where for reason in absent)])
    if not after["cells"] and not absent:
        absent.append(Reason(DID_NOT_RUN, "the later audit", NO_CELL))
    return out + _members(before, after) + absent + untried


def unjudged(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List what the gate cannot judge and does not fail for, in sentences.

    These are situations in which the later attacks cannot tell whether there is still no leak or still the same, as
    happens by chance under noise.
    """
    failing = {reason.where for reason in growth(before, after)}
    views = compare_views(before, after)
    unknown = [row for row in views if row.change == LOST and _where(row) not in failing]
    return [f"{_where(row)}: {row.verdicts[0]} before, and inconclusive now" for row in unknown]


def _missing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Reason]:
    """List what the later audit was asked for and did not run.

    A gap that the earlier audit had too, with no more seeds run, is left out: such as a view that no attack looks at.
    """

    def key(item: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(item[name] for name in ("algorithm", "defense", "view", "attack"))

    known = {key(item): item["ran"] for item in before.get("missing", ())}
    out = []
    for item in after.get("missing", ()):
        whole = not item["view"] and not item["ran"]  # nothing ran of an algorithm or of a defence
        # an earlier audit without this gap is taken to have run as many seeds as the later was asked for
        if whole or item["ran"] < known.get(key(item), item["asked"]):
            gap = Missing(**item)
            out.append(Reason(DID_NOT_RUN, gap.where, gap.said))
    return out


def _members(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Reason]:
    """List the membership adversaries that find more, or that are new and find something.

    Such an adversary tells whose rows took part; it is measured by the AUC of its scores, .5 for a coin.
    """

    def where(algorithm: str, defense: str, adversary: str) -> str:
        return f"{short(algorithm)}, {short_defense(defense)}, membership, {adversary}"

    grown = [
        Reason(
            GREW,
            where(row.algorithm, row.defense, row.adversary),
            f"AUC from {row.auc[0][0]:.2f} to {row.auc[1][0]:.2f}",
        )
        for row in compare_members(before, after)
        if row.change == GREW
    ]
    known = members_of(before)
    return grown + [
        Reason(NEW, where(*key), f"{row['verdict']} at AUC {row['auc'][0]:.2f}, and nothing before")
        for key, row in members_of(after).items()
        if key not in known and row["verdict"] in FOUND
    ]


def _where(row: Compared) -> str:
    return f"{short(row.algorithm)}, {short_defense(row.defense)}, {row.view}, {row.attack}, {row.secret}"


def _leak(row: Compared, index: int) -> str:
    """Write a mean leakage and its interval; index 0 is the earlier audit, 1 the later."""
    mean, ends = (row.before, row.after)[index], row.intervals[index]
    assert mean is not None and ends is not None
    return f"{leak_text(mean)} ({leak_text(ends[0])} to {leak_text(ends[1])})"
