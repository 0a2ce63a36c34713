"""Make the tables of the strongest attacks: a row for each algorithm, a column for each protection and view.

`audit_page.render` calls `matrices` and `sizes`. A cell of the report is one attack on one secret in one view (what an
attacker sees), over all runs; its owner is whose data the secret is: a client's, all clients', or one record. A field
of the table shows the strongest cell of its algorithm, protection and view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from securefed._auditing.cases.own_setup import head_text, owner_note
from securefed._auditing.engine.audit_result import AUDIT, AuditResult, rows_cut
from securefed._auditing.engine.remarks import worse_than
from securefed._auditing.engine.results import CLIENT, FEDERATION, RECORD, Cell
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.report.observers import names_secrets, sees_all_of
from securefed._auditing.report.palette import TONES, tone
from securefed._auditing.report.report_words import (
    ATTACKS_FAILED,
    chance_text,
    interval_text,
    leak_text,
    runs_text,
    search_failed,
    why_inconclusive,
)
from securefed._auditing.report.selections import strongest
from securefed._auditing.sentences.names import protection, secret_title, secret_words, short
from securefed._auditing.sentences.table import NOTHING, listed, say

Place = tuple[str, str, str, str]
"""(algorithm, defence, view, owner or secret) of a cell."""


def matrices(report: AuditResult) -> list[dict[str, Any]]:
    """Make one table for each owner of a secret that was attacked: a client, all clients, a record.

    Returns:
        For each table its `title`, its explanation `text`, and the keys of `_matrix`; the page's template reads them.
    """
    secrets = dict.fromkeys(report.settings[name]["secret"] for name in report.algorithms)
    if names_secrets(report):  # one algorithm, attacked for several secrets
        secrets = dict.fromkeys(cell.secret for cell in report.cells if cell.owner == CLIENT)
    tables = (
        (
            CLIENT,
            "One client's secret",
            "How much of one client's data can be computed from the messages: 1 is all of it, 0 no more than could "
            "be guessed without them. A row is an algorithm and, below it, what is looked for: "
            f"{'; '.join(f'“{secret_title(one)}”, {secret_words(one)}' for one in secrets)}. A column is a defence "
            "and, below it, what the attacker sees.",
        ),
        (
            FEDERATION,
            "The federation's pooled secret",
            "What the sums give away of all clients' data together, beyond the final model. A defence that hides "
            "single messages and opens their sum cannot change that.",
        ),
        (
            RECORD,
            "One record",
            "How surely an attacker tells the records of a client from other records like them: 1 is certainty, 0 is "
            "a coin toss.",
        ),
    )
    made = [_matrix(report, owner) | {"title": title, "text": text} for owner, title, text in tables]
    return [matrix for matrix in made if matrix["groups"]]


def sizes(report: AuditResult) -> list[str]:
    """Say at which sizes the algorithms ran, those of one size in one line; empty where the report states none.

    Where clients were cut to fewer rows than they hold, a line says so.
    """
    alike: dict[str, list[str]] = {}
    for name in report.algorithms:
        if known := report.settings[name].get("sizes"):
            alike.setdefault(head_text(known), []).append(short(name))
    lines = [f"{listed(names)}: {text}." for text, names in alike.items()]
    notes = (owner_note(report.settings[name].get("sizes", {})) for name in report.algorithms)
    lines += [note for note in dict.fromkeys(notes) if note]
    if cut := rows_cut(report.settings[AUDIT]):
        lines.append(f"Every figure is of {cut}.")
    return lines


def anchor(algorithm: str) -> str:
    """Name the section of an algorithm in links."""
    return algorithm.replace("/", "-")


def _matrix(report: AuditResult, owner: str) -> dict[str, Any]:
    """Make one table of the strongest attack of each cell.

    A row is an algorithm or, in the report of one algorithm with several secrets, a secret. A column is a defence and
    what the attacker sees.

    Returns:
        `groups`: the defences, each with its `title` and `views`; `rows`: as of `_row`; `columns`: a text for each.
    """
    apart = names_secrets(report)  # one algorithm, attacked for several secrets: each has a row of its own
    # the strongest cell by (algorithm, defence, view, owner); with `apart` the last key is the secret
    best = strongest((cell for cell in report.cells if cell.owner == owner), by_owner=not apart)
    views: dict[str, list[str]] = {}
    for _, defense, view, _ in best:
        if view not in views.setdefault(defense, []):
            views[defense].append(view)
    groups = [{"title": protection(defense), "views": shown} for defense, shown in views.items()]
    columns = [(defense, view) for defense, shown in views.items() for view in shown]
    heads = [(name, owner, secret_title(report.settings[name]["secret"])) for name in report.algorithms]
    if apart:
        (name,) = report.algorithms
        secrets = dict.fromkeys(cell.secret for cell in best.values())  # those of all clients are named "pooled ..."
        heads = [(name, secret, secret_title(secret.removeprefix("pooled "))) for secret in secrets]
    rows = [
        _row(report, name, note, [_worst(best, (name, *column, key)) for column in columns])
        for name, key, note in heads
    ]
    return {"groups": groups, "rows": rows, "columns": [f"{protection(defense)}, {view}" for defense, view in columns]}


def _worst(best: Mapping[Place, Cell], place: Place) -> tuple[Cell, str] | None:
    """Return the cell of worst verdict, of an observer's own and of those whose view it has too, and its note.

    Args:
        best: by (algorithm, defence, view, owner or secret), the strongest cell.
        place: where the observer's own cell stands; `None` is returned where nothing was attacked there.
    """
    if place not in best:
        return None
    (name, defense, view, key), order = place, list(TONES)
    weaker = [
        cell for at, cell in best.items() if (at[0], at[1], at[3]) == (name, defense, key) and sees_all_of(view, at[2])
    ]
    cell = min((best[place], *weaker), key=lambda one: order.index(one.verdict.word))
    return cell, "" if cell is best[place] else say("cell", NOTHING, NOTHING, "weaker", view=cell.view)


def _row(report: AuditResult, name: str, note: str, found: Sequence[tuple[Cell, str] | None]) -> dict[str, Any]:
    """Format a row: title, anchor of the algorithm's section, note, and `cells`, `None` where nothing was attacked."""
    cells = [_heat(report, *cell) if cell else None for cell in found]
    return {"title": short(name), "anchor": anchor(name), "note": note, "cells": cells}


def _heat(report: AuditResult, cell: Cell, seen: str) -> dict[str, Any]:
    """Format a cell: mean, interval, verdict, and words beside it (runs, chance, epsilon).

    `css`, `mark` and `share` say how it looks: style class, character, and length of its bar in hundredths.
    """
    look, unsure, failed = tone(cell.verdict.word), cell.verdict.word == INCONCLUSIVE, search_failed(cell)
    extra = chance_text(cell)
    if cell.verdict.word in FOUND and cell.leakage.mean < 0:
        extra = f"one run: {leak_text(cell.runs.highest)}"  # the mean hides why it is a leak
    elif (epsilon := report.cost(cell).promised(cell.view)) is not None and not extra:
        extra = f"ε = {epsilon:g}" if isinstance(epsilon, float) else f"ε {epsilon}"
    origin = "found in sums" if cell.reach.added else ""
    beside = (runs_text(cell), origin, seen, extra, worse_than(cell), cell.reach.bound)
    return {
        "mean": ATTACKS_FAILED if failed else leak_text(cell.leakage.mean),
        "interval": "" if failed else interval_text(cell.leakage.low, cell.leakage.high),
        "verdict": cell.said,
        "mark": look.mark,
        "extra": [text for text in beside if text],
        "css": look.name,
        "share": 0 if failed else round(100 * min(max(cell.leakage.mean, 0.0), 1.0)),
        "title": f"{cell.attack}; error {cell.figure('error_median'):.2g} (median) against "
        f"{cell.figure('baseline_error'):.2g}; "
        f"null {leak_text(cell.null_leakage.mean)}; {cell.runs.exposed} of {cell.leakage.seeds} seeds leak .9 or more."
        f"{f' Inconclusive: {why_inconclusive(cell)}' if unsure else ''}",
    }
