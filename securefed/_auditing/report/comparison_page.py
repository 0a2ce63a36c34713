"""The page of a comparison of two audits, `comparison.html`, and the same as `comparison.json`.

`securefed compare` calls `save`, `to_json` and `summary` with the JSON values of an earlier and a later audit. A row
(`Compared`) compares one situation (algorithm, defence, view and secret). `comparison` makes the rows and judges each
change: `GREW` and `SHRANK` (the two 95 % intervals do not overlap), `SAME` (they do), `LOST` and `SETTLED` (the attacks
of the later or of the earlier audit could not tell), `UNKNOWN` (neither could), `ADDED` and `GONE` (only the later or
only the earlier audit tried it).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

from markupsafe import Markup

from securefed._auditing.engine.audit_result import AUDIT
from securefed._auditing.engine.column_scores import first_few
from securefed._auditing.engine.results import CLIENT, NOT_COVERED, owner
from securefed._auditing.engine.statistics import ENOUGH, FOUND, INCONCLUSIVE
from securefed._auditing.gate.grown_leaks import growth
from securefed._auditing.report import comparison as compared
from securefed._auditing.report.audit_json import AuditJson, cells_of
from securefed._auditing.report.audit_page import template_page
from securefed._auditing.report.comparison import ADDED, GONE, GREW, LOST, SAME, SETTLED, SHRANK, UNKNOWN, Compared
from securefed._auditing.report.dumbbell import dumbbell
from securefed._auditing.report.report_words import glossary, interval_text, leak_text, style
from securefed._auditing.report.selections import ALL_CLIENTS, ONE_CLIENT, PLAIN
from securefed._auditing.sentences.names import in_sentence, short
from securefed._auditing.sentences.table import NOTHING, counted, say
from securefed._persistence.file_errors import storage_errors

Look = Literal["worse", "better", "same"]
LOOKS: Final[Mapping[str, Look]] = {GREW: "worse", LOST: "worse", SHRANK: "better"}
"""By change, how it is coloured; others are not."""
GROUPS: Final = (
    (GREW, "Got worse"),
    (LOST, "No longer known"),
    (SHRANK, "Got better"),
    (SETTLED, "Known now"),
    (SAME, "Another verdict, the same leak"),
)
"""(change, title) of the headings, in the order of the page."""
# Words of the glossary that the page explains.
WORDS: Final = ("leakage", "exposed", "partial", "not detected", "inconclusive", "interval", "client, federation")
LARGE: Final = 0.1
"""Change of a mean that the page points out although the intervals overlap."""


def save(folder: Path, before: AuditJson, after: AuditJson, allowed: Collection[str] = ()) -> None:
    """Write `comparison.html` and `comparison.json` into `folder`, which is created where there is none.

    `allowed` names what may be missing from the later audit (`grown_leaks.growth`).

    Raises:
        StorageError: it cannot be written.
    """
    with storage_errors(f"write into {folder}", "choose another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comparison.html").write_text(render(before, after), encoding="utf-8")
        text = json.dumps(to_json(before, after, allowed), indent=1, allow_nan=False)
        (folder / "comparison.json").write_text(text + "\n", encoding="utf-8")


def to_json(before: AuditJson, after: AuditJson, allowed: Collection[str] = ()) -> dict[str, Any]:
    """Convert everything on the page to JSON values.

    `views` has the strongest attack of each audit, `cells` every attack, `growth` what `--fail-on-growth` fails for
    where the later audit may lack what `allowed` names.
    """
    return {
        "summary": summary(before, after),
        "commands": [report.get("command") for report in (before, after)],
        "versions": [report.get("version") for report in (before, after)],
        "differences": [str(item) for item in compared.differences(before, after)],
        "views": [asdict(row) for row in compared.compare_views(before, after)],
        "cells": [asdict(row) for row in compared.compare(before, after)],
        "costs": [row.to_json() for row in compared.compare_costs(before, after)],
        "membership": [asdict(row) for row in compared.compare_members(before, after)],
        "growth": [str(reason) for reason in growth(before, after, allowed)],
    }


def render(before: AuditJson, after: AuditJson) -> str:
    """Write the page as HTML."""
    views = compared.compare_views(before, after)
    both = [row for row in views if row.change not in (ADDED, GONE)]
    still = sorted((row for row in both if _group(row) is None), key=lambda row: -abs(row.moved))
    costs = compared.compare_costs(before, after)
    members = compared.compare_members(before, after)
    moved = [row for row in members if row.change != SAME or row.verdicts[0] != row.verdicts[1]]
    groups = _groups(both)
    lead, *more = _sentences(before, after)
    return template_page(
        "comparison.html.j2",
        ["report.css", "comparison.css"],
        lead=lead,
        more=" ".join(more),
        todo=_todo(views, uneven=any(item.where for item in compared.differences(before, after))),
        counts=[{"title": g["title"].lower(), "count": len(g["rows"]), "look": g["look"]} for g in groups]
        + [{"title": "unchanged", "count": len(still), "look": ""}],
        differences=compared.differences(before, after),
        machines=_machines(before, after),
        groups=groups,
        unchanged=[_row(row) for row in still],
        unsure=sum(abs(row.moved) >= LARGE for row in still),
        large=LARGE,
        lonely=_only_one(views),
        costs=[row for row in costs if row.changed],
        steady=[row for row in costs if not row.changed],
        members=sorted(moved, key=lambda row: row.auc[0][0] - row.auc[1][0]),
        looks=LOOKS,
        members_in_all=len(members),
        cells=[_row(row) for row in compared.compare(before, after) if row.change not in (ADDED, GONE)],
        few=_few(before, after),
        glossary=[(word, meaning) for word, meaning in glossary().items() if word in WORDS],
        runs=[(name, _made(report)) for name, report in (("Earlier", before), ("Later", after))],
    )


def summary(before: AuditJson, after: AuditJson) -> str:
    """Say, for a reader who knows no cryptography, what changed, what is new, and whether the audits ran alike."""
    return " ".join(_sentences(before, after))


def _sentences(before: AuditJson, after: AuditJson) -> list[str]:
    views = compared.compare_views(before, after)
    both = [row for row in views if row.change not in (ADDED, GONE)]
    new = _new([row for row in views if row.change == ADDED])
    return [*_changes(both), *new, _fairness(before, after)]


def _said(reason: str, word: str = "compare", /, **places: object) -> str:
    return say(word, NOTHING, NOTHING, reason, **places)


def _todo(views: Sequence[Compared], uneven: bool) -> list[str]:
    """Say what to do about the changes, the most urgent first.

    Args:
        views: the situations, with the strongest attack of each audit.
        uneven: whether settings of the two audits differ.
    """
    grew = sorted((row for row in views if row.change == GREW), key=lambda row: -row.moved)
    reasons = {
        LOST: any(row.change == LOST for row in views),
        "new": any(row.change == ADDED and row.verdicts[1] in FOUND for row in views),
        "uneven": uneven,
    }
    out = [_said(GREW, "todo", place=_place(grew[0]))] if grew else []
    out += [_said(reason, "todo") for reason, there in reasons.items() if there]
    return out or [_said("nothing", "todo")]


def _new(added: Sequence[Compared]) -> list[str]:
    """Say which leaks the later audit found where the earlier did not look."""
    leaks = [row for row in added if row.verdicts[1] in FOUND]
    if not leaks:
        return []
    most = max(leaks, key=lambda row: row.after or 0.0)
    return [_said("new", count=len(added), leaks=len(leaks), place=_place(most), leak=max(most.after or 0.0, 0.0))]


def _changes(both: Sequence[Compared]) -> list[str]:
    """Count the situations that changed, and those that neither audit's attacks could judge."""
    if not both:
        return [_said("nothing")]
    count = {change: sum(row.change == change for row in both) for change in (GREW, SHRANK, LOST, SETTLED, UNKNOWN)}
    tried = {"situations": counted(len(both), "situation")}
    if count[UNKNOWN] == len(both):
        return [_said("unknown", **tried)]
    if not any(count[change] for change in (GREW, SHRANK, LOST, SETTLED)):
        out = [_said("same", **tried)]
    else:
        out = [_said("changed", **tried, more=count[GREW], less=count[SHRANK])]
    if count[GREW]:
        worst = max((row for row in both if row.change == GREW), key=lambda row: row.moved)
        ends = {"before": max(worst.before or 0.0, 0.0), "after": max(worst.after or 0.0, 0.0)}
        out.append(_said("most", place=_place(worst), **ends))
    more = (("lost", LOST), ("settled", SETTLED), ("unjudged", UNKNOWN))
    return out + [_said(reason, count=count[change]) for reason, change in more if count[change]]


def _fairness(before: AuditJson, after: AuditJson) -> str:
    """Say whether the two audits ran alike."""
    found = compared.differences(before, after)
    settings = list(dict.fromkeys(item.what for item in found if item.where))  # `where` is empty for versions
    if settings:
        return _said("uneven", settings=first_few(settings))
    if found:
        return _said("versions", before=before.get("version"), after=after.get("version"))
    return _said("even")


def _place(row: Compared) -> str:
    how = "with plain messages" if row.defense == PLAIN else f"under {in_sentence(row.defense)}"
    return f"{_whose(row)} in {short(row.algorithm)} {how}"


def _whose(row: Compared) -> str:
    names = {CLIENT: ONE_CLIENT, "federation": ALL_CLIENTS}
    return names.get(owner(row.secret), row.secret)


def _group(row: Compared) -> str | None:
    """Return the heading under which a row stands; `None` for unchanged ones."""
    if row.change == SAME:
        return SAME if row.verdicts[0] != row.verdicts[1] else None
    return row.change if row.change in (GREW, LOST, SHRANK, SETTLED) else None


def _groups(both: Sequence[Compared]) -> list[dict[str, Any]]:
    """Collect the rows that changed under their headings, those that moved most first."""
    out = []
    for change, title in GROUPS:
        rows = sorted((row for row in both if _group(row) == change), key=lambda row: -abs(row.moved))
        if rows:
            shown = [_row(row) for row in rows]
            text = _said(change, "group")
            out.append({"title": title, "text": text, "rows": shown, "look": LOOKS.get(change, "")})
    return out


def _row(row: Compared) -> dict[str, Any]:
    """Format a situation: where it is, what both audits found, and the chart of the two."""
    sides = [_side(row, index) for index in (0, 1)]
    leaks = [
        (mean or 0.0, *(ends or (0.0, 0.0))) for mean, ends in zip((row.before, row.after), row.intervals, strict=True)
    ]
    words = "; ".join(
        f"{when} {', '.join(filter(None, (side['mean'], side['interval'], side['verdict'])))}"
        for when, side in zip(("before", "after"), sides, strict=True)
    )
    known = [word != INCONCLUSIVE for word in row.verdicts]
    chart = dumbbell(f"Leakage {words}", leaks, known, LOOKS.get(row.change, "same"))
    return {"at": row, "whose": _whose(row), "sides": sides, "chart": Markup(chart)}  # noqa: S704 - escapes its text


def _side(row: Compared, index: int) -> dict[str, str]:
    """Format what the earlier (0) or later (1) audit found."""
    mean, ends, epsilon = (row.before, row.after)[index], row.intervals[index], row.epsilons[index]
    word = row.verdicts[index] or ""
    covered = "" if epsilon is None else f"ε {epsilon}" if epsilon == NOT_COVERED else f"ε = {epsilon:g}"
    return {
        "mean": leak_text(mean),
        "interval": "" if ends is None else interval_text(*ends),
        "verdict": word,
        "epsilon": covered,
        "css": style(word),
    }


def _only_one(views: Sequence[Compared]) -> list[dict[str, Any]]:
    """List what only one audit tried, with what it found there."""
    out = []
    for change, which, index in ((ADDED, "later", 1), (GONE, "earlier", 0)):
        # one of the two means is missing
        rows = sorted((row for row in views if row.change == change), key=lambda row: -(row.before or row.after or 0.0))
        if rows:
            leaking = sum(row.verdicts[index] in FOUND for row in rows)
            text = _said("only one", "group", leaking=leaking, count=len(rows))
            shown = [{"at": row, "whose": _whose(row)} | _side(row, index) for row in rows]
            out.append({"which": which, "text": text, "rows": shown})
    return out


def _few(before: AuditJson, after: AuditJson) -> str:
    """Warn where either audit has few seeds; empty otherwise."""
    least = min((cell.leakage.seeds for report in (before, after) for cell in cells_of(report)), default=ENOUGH)
    if least >= ENOUGH:
        return ""
    if least < 2:
        return _said("one seed")
    return _said("few", enough=ENOUGH, least=least)


def _machines(before: AuditJson, after: AuditJson) -> list[str]:
    """List libraries and machines that differ, on which seconds and last digits depend."""
    old, new = (report.get("environment", {}) for report in (before, after))
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return [f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}" for name in names]


def _made(report: AuditJson) -> dict[str, str]:
    shared = report.get("settings", {}).get(AUDIT, {})
    seeds, version = shared.get("seeds", "?"), report.get("version", "?")
    facts = f"{len(report['cells'])} cells, {seeds} seeds each, securefed {version}"
    return {"command": str(report.get("command", "")), "facts": facts}
