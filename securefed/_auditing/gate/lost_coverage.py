"""List what an earlier audit tried and a later one did not: a gate between the two must not pass because of it.

A leak that the later audit did not look for is not a leak that is gone. `grown_leaks.growth` asks for these reasons;
each has a name, by which a user who left something out on purpose says so (`--allow-missing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from securefed._auditing.engine.audit_result import AUDIT
from securefed._auditing.engine.statistics import FOUND
from securefed._auditing.gate.leakage_limits import Reason
from securefed._auditing.report.audit_json import cells_of
from securefed._auditing.report.comparison import members_of
from securefed._auditing.sentences.names import short, short_defense

NOT_TRIED: Final = "no longer tried"
SEEDS: Final = "seeds"
"""Name of the reason that the later audit ran fewer seeds."""
_Path = tuple[str, ...]
"""Algorithm, defence, view, attack and secret, or the first of these, as a gate prints them."""


def no_longer_tried(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Reason]:
    """List what only the earlier audit tried, by the widest name of which nothing is left.

    That is an algorithm, a defence of it, a view, an attack or a secret; a membership adversary; or seeds.

    Args:
        before: JSON of the earlier audit.
        after: JSON of the later audit.
    """
    tried, left = dict(_paths(before)), dict(_paths(after))
    still = {path[:length] for path in left for length in range(len(path) + 1)}
    groups: dict[_Path, list[bool]] = {}
    for path, leaked in tried.items():
        if path not in left:
            widest = next(path[:length] for length in range(1, len(path) + 1) if path[:length] not in still)
            groups.setdefault(widest, []).append(leaked)
    out = [Reason(NOT_TRIED, ", ".join(path), _said(found, ", ".join(path))) for path, found in groups.items()]
    seeds = [report.get("settings", {}).get(AUDIT, {}).get("seeds", 0) for report in (before, after)]
    if seeds[1] < seeds[0]:
        out.append(Reason(NOT_TRIED, SEEDS, f"{seeds[0]} before and {seeds[1]} now, which show less; {_accept(SEEDS)}"))
    return out


def without_allowed(reasons: Iterable[Reason], allowed: Collection[str]) -> list[Reason]:
    """Leave out reasons whose name, or the beginning of it up to a comma, is among the allowed names."""
    return [
        reason
        for reason in reasons
        if not any(reason.where == name or reason.where.startswith(f"{name}, ") for name in allowed)
    ]


def _paths(report: Mapping[str, Any]) -> Iterator[tuple[_Path, bool]]:
    """Yield the path of each cell and membership row, and whether it found a leak."""
    for cell in cells_of(report):
        names = short(cell.algorithm), short_defense(cell.defense), cell.view, cell.attack, cell.secret
        yield names, cell.verdict.word in FOUND
    for (algorithm, defense, adversary), row in members_of(report).items():
        yield (short(algorithm), short_defense(defense), "membership", adversary), row["verdict"] in FOUND


def _said(found: list[bool], name: str) -> str:
    leaks = f", {sum(found)} of them a leak" if len(found) > 1 and any(found) else ", a leak" if any(found) else ""
    return f"the earlier audit has {len(found)} result{'s' * (len(found) > 1)} here{leaks}; {_accept(name)}"


def _accept(name: str) -> str:
    return f'--allow-missing "{name}" accepts that'
