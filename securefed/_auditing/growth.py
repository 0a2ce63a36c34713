"""What fails a gate between two audits: a leak that grew, one that is new, one that went out of sight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from securefed._auditing.audit_cells import Missing
from securefed._auditing.comparison import (
    ADDED,
    GREW,
    LOST,
    Compared,
    cells_of,
    compare,
    compare_members,
    compare_views,
    fell,
)
from securefed._auditing.finding import strongest
from securefed._auditing.report_text import leak_text, short, short_defense
from securefed._auditing.statistics import FOUND

Kind = Literal["grew", "new", "no longer known", "did not run"]
NEW: Final = "new"


@dataclass(frozen=True)
class Growth:
    """One reason to fail.

    Attributes:
        kind: of growth.      where: algorithm, defence, view or adversary, attack and secret.      said: figures.
    """

    kind: Kind
    where: str
    said: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.said}"


def growth(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Growth]:
    """Every reason to hold the later audit back; empty where it gives away no more than the earlier.

    A leak grew: of one attack beside itself, of the strongest attack of a situation that both audits tried (so that a
    new attack which finds more counts), or of a membership adversary. A leak is new: exposed or partial in a situation,
    or for an adversary, that the earlier audit did not try. A leak is no longer known: the later attacks failed and
    reach less, beyond both intervals, which is no improvement. Something did not run: an algorithm or a defence that
    the later audit was asked for, or fewer seeds of it than the earlier audit ran. Of what is told in `unjudged`
    nothing is said here.
    """
    views = compare_views(before, after)
    attacks = [row for row in compare(before, after) if row.change == GREW]
    alone = {_situation(row) for row in attacks}
    grown = attacks + [row for row in views if row.change == GREW and _situation(row) not in alone]
    out = [Growth("grew", _where(row), f"from {_leak(row, 0)} to {_leak(row, 1)}") for row in grown]
    out += [
        Growth("new", _where(row), f"{row.verdicts[1]} at {_leak(row, 1)}, and nothing before to compare with")
        for row in views
        if row.change == ADDED and row.verdicts[1] in FOUND
    ]
    old, new = (strongest(cells_of(report)) for report in (before, after))
    out += [
        Growth(LOST, _where(row), f"{row.verdicts[0]} at {_leak(row, 0)} before, and inconclusive now")
        for row in views
        if row.change == LOST and row.verdicts[0] in FOUND and fell(old[_situation(row)], new[_situation(row)])
    ]
    return out + _members(before, after) + _missing(before, after)


def _missing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Growth]:
    """What the later audit was asked for and did not run. A view that no attack looks at in either audit, or an attack
    that ran for as few seeds before, is known from the earlier one."""
    known = {_gap(item): item["ran"] for item in before.get("missing", ())}
    out = []
    for item in after.get("missing", ()):
        whole = not item["view"] and not item["ran"]
        if whole or item["ran"] < known.get(_gap(item), item["asked"]):
            where, _, said = str(Missing(**item)).partition(": ")
            out.append(Growth("did not run", where, said))
    if not after["cells"] and not out:
        out.append(Growth("did not run", "the later audit", "it holds no cell"))
    return out


def _gap(item: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(item[name] for name in ("algorithm", "defense", "view", "attack"))


def unjudged(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What the gate cannot judge and does not fail for, in sentences: situations that the later audit did not try, and
    those in which its attacks fail to tell that there is still no leak, or still the same, as noise does by chance."""
    failing = {reason.where for reason in growth(before, after)}
    views = compare_views(before, after)
    untried = sum(row.after is None for row in views)
    blind = [row for row in views if row.change == LOST and _where(row) not in failing]
    said = [f"{untried} situation{'s' * (untried > 1)} that only the earlier audit tried"] if untried else []
    return said + [f"{_where(row)}: {row.verdicts[0]} before, and inconclusive now" for row in blind]


def _members(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Growth]:
    def where(algorithm: str, defense: str, adversary: str) -> str:
        return f"{short(algorithm)}, {short_defense(defense)}, membership, {adversary}"

    out: list[Growth] = []
    for row in compare_members(before, after):
        if row.change == GREW:
            (was, *_), (found, *_) = row.auc
            place = where(row.algorithm, row.defense, row.adversary)
            out.append(Growth("grew", place, f"AUC from {was:.2f} to {found:.2f}"))
    known = {_adversary(row) for row in before.get("membership", ())}
    return out + [
        Growth("new", where(*_adversary(row)), f"{row['verdict']} at AUC {row['auc'][0]:.2f}, and nothing before")
        for row in after.get("membership", ())
        if _adversary(row) not in known and row["verdict"] in FOUND
    ]


def _adversary(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["algorithm"], row["defense"], row["adversary"]


def _situation(row: Compared) -> tuple[str, str, str, str]:
    return row.algorithm, row.defense, row.view, row.secret


def _where(row: Compared) -> str:
    return f"{short(row.algorithm)}, {short_defense(row.defense)}, {row.view}, {row.attack}, {row.secret}"


def _leak(row: Compared, index: int) -> str:
    mean, ends = (row.before, row.after)[index], row.intervals[index]
    assert mean is not None and ends is not None
    return f"{leak_text(mean)} ({leak_text(ends[0])} to {leak_text(ends[1])})"
