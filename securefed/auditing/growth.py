"""What fails a gate between two audits: a leak that grew, one that is new, one that can no longer be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from securefed.auditing.comparison import ADDED, GREW, LOST, Compared, compare, compare_members, compare_views
from securefed.auditing.statistics import FOUND
from securefed.auditing.words import leak_text, short, short_defense

Kind = Literal["grew", "new", "no longer known"]
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
    or for an adversary, that the earlier audit did not try. A situation is no longer known: the later attacks failed
    where the earlier told. What only the earlier audit tried is no reason: see `unjudged`.
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
    out += [
        Growth(LOST, _where(row), f"{row.verdicts[0]} at {_leak(row, 0)} before, and inconclusive now")
        for row in views
        if row.change == LOST
    ]
    return out + _members(before, after)


def unjudged(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """How many situations the earlier audit tried and the later did not."""
    return sum(row.after is None for row in compare_views(before, after))


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
