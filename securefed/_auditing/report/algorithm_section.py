"""The page's section on one algorithm: what to do, what was recovered and from which messages, and costs.

`audit_page.render` calls `section` for each algorithm of a report, and its template shows the values. A cell of the
report is one attack on one secret in one view (what an attacker sees), over all runs. A cell's owner is whose data the
secret is: `CLIENT` one client's, `FEDERATION` all clients' together. The table of defences is about a server without
help: no client or key holder shares its secrets with it (the views `selections.alone`). A
cell's `epsilon` is a number where differential privacy covers what the attack reads, `NOT_COVERED` where the noise
comes after that, and `None` without noise.
"""

from __future__ import annotations

import math
from typing import Any, Final

from markupsafe import Markup

from securefed import _catalogue as catalogue
from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.defense_names import DDP
from securefed._auditing.engine.kept_utility import floor_sentence
from securefed._auditing.engine.results import CLIENT, FEDERATION, NOT_COVERED, Cell
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.report import charts
from securefed._auditing.report.matrix import anchor
from securefed._auditing.report.palette import tone
from securefed._auditing.report.recovered import recovered, strongest_artifact
from securefed._auditing.report.report_words import chance_text, figure, leak_text
from securefed._auditing.report.selections import PLAIN, worst
from securefed._auditing.sentences.names import protection, short

_FIGURES: Final = (
    "floor",
    "kept above it",
    "bytes per client and round",
    "times plain's",
    "seconds per round",
    "epsilon",
)
"""Columns of the table of costs after utility: its floor, the share that is kept of the utility in the clear above it
with its lower bound at 95 %, and costs; the second of these is the bytes over those of plain messages."""


def section(report: AuditResult, algorithm: str) -> dict[str, Any]:
    """Collect what the template shows of one algorithm, by the names that the template uses.

    Args:
        report: the report of the audit.
        algorithm: its name in the report.
    """
    known = algorithm in catalogue.algorithms.names
    entry = catalogue.algorithms[algorithm] if known else None
    return {
        "anchor": anchor(algorithm),
        "title": short(algorithm),
        "source": f"{entry.summary}; {entry.source}" if entry else "An algorithm of the caller's own.",
        "transmits": entry.details.get("transmits", "") if entry else "",
        "carried": _carried(report, algorithm),
        "recovered": recovered(report, algorithm),
        "notes": [str(item) for item in report.missing if item.algorithm == algorithm],  # did not run, or not in full
        "charts": [Markup(chart) for chart in _charts(report, algorithm) if chart],  # noqa: S704 - charts escape their text
        "costs": (rows := _costs(report, algorithm)),
        "floor": utility_sentence(report, algorithm),
        "noise": noise_sentence(report, algorithm),
        "columns": [  # (name, whether some row has a figure in it)
            (name, any(row["figures"][index] for row in rows))
            for index, name in enumerate((report.settings[algorithm]["utility"], *_FIGURES))
        ],
    }


def _carried(report: AuditResult, algorithm: str) -> list[str]:
    """Say of each attack that found something what it does, which messages it reads, and in which views."""
    found = [cell for cell in report.of(algorithm) if cell.verdict.word in FOUND]
    names = dict.fromkeys(cell.attack for cell in sorted(found, key=lambda cell: -cell.leakage.mean))
    out = []
    for name in names:
        about = ""
        if name in catalogue.attacks.names:
            entry = catalogue.attacks[name]
            reads = f" It reads {entry.details['reads']}." if "reads" in entry.details else ""
            about = f" {entry.summary}.{reads}"
        views = dict.fromkeys(cell.view for cell in found if cell.attack == name)
        out.append(f"{name}:{about} Finds something in the views: {', '.join(views)}.")
    return out


def _charts(report: AuditResult, algorithm: str) -> list[str]:
    """Draw the spectrum of a Gram matrix, errors by rounds, and leakage by epsilon, as far as they are known."""
    out = []
    settings = report.settings[algorithm]
    if settings["secret"] == "gram" and (found := strongest_artifact(report, algorithm, CLIENT)) is not None:
        _, artifact = found  # the true Gram matrix and an attack's estimate, from the cell that tells most
        out.append(charts.spectrum("Spectrum of one client's Gram matrix", artifact.truth, artifact.estimate))
    for curve in report.curves:
        if curve["algorithm"] == algorithm:
            shares = curve.get("scale") == "share"
            draw = charts.share_curve if shares else charts.curve
            out.append(draw(curve["title"], curve["note"], curve["series"]))
    for item in report.tradeoffs:
        if item["algorithm"] == algorithm:
            leaks = [(leak["mean"], leak["low"], leak["high"]) for leak in item["leakage"]]
            title = "Leakage and utility by epsilon"
            out.append(charts.tradeoff(title, settings["utility"], item["epsilons"], leaks, item["utility"]))
    return out


def noise_sentence(report: AuditResult, algorithm: str) -> str:
    """Say how large the distributed noise of the audit is, and what utility it leaves; empty where none was audited."""
    noise = report.settings[algorithm].get("noise")
    by_defense = {cell.defense: report.cost(cell).utility for cell in reversed(report.of(algorithm))}
    if noise is None or DDP not in by_defense:
        return ""
    clear = f", {by_defense[PLAIN]:.3f} in the clear" if PLAIN in by_defense else ""
    return (
        f"{protection(DDP)} of {short(algorithm)} is {noise}: its utility is {by_defense[DDP]:.3f}{clear}. "
        "`securefed advise` clips and adds noise in the same way."
    )


def utility_sentence(report: AuditResult, algorithm: str) -> str:
    """Say what the model of an algorithm adds to its floor; empty where no floor was measured."""
    found = report.utilities.get(algorithm)
    if found is None or not found.kept:
        return ""
    return floor_sentence(report.settings[algorithm]["utility"], found.clear, next(iter(found.kept.values())))


def _above_floor(report: AuditResult, algorithm: str, defense: str) -> tuple[str, str]:
    """Format the floor of the utility, and the share above it that a defence keeps with its lower bound."""
    found = report.utilities.get(algorithm)
    kept = found.kept.get(defense) if found is not None else None
    if kept is None or math.isnan(kept.floor):
        return "", ""
    if not kept.model:
        return f"{kept.floor:.3f}", "no model"
    low = "" if not math.isfinite(kept.low) else f", at least {max(kept.low, 0.0):.0%}"
    return f"{kept.floor:.3f}", f"{kept.share:.0%}{low}" if math.isfinite(kept.share) else ""


def _costs(report: AuditResult, algorithm: str) -> list[dict[str, Any]]:
    """Make a row for each defence: what it leaves open to the server alone, and what it costs."""
    first: dict[str, Cell] = {}
    for cell in report.of(algorithm):
        first.setdefault(cell.defense, cell)
    bare = report.cost(first[PLAIN]) if PLAIN in first else None
    out = []
    for defense, cell in first.items():
        run = report.cost(cell)
        one, everyone = (worst(report, algorithm, defense, owner) for owner in (CLIENT, FEDERATION))
        promised = (report.cost(c).promised(c.view) for c in report.of(algorithm) if c.defense == defense)
        epsilons = [epsilon for epsilon in promised if epsilon is not None]
        # The views that are covered share the epsilon of the defence's run, so the first number is as good as any.
        released = [epsilon for epsilon in epsilons if isinstance(epsilon, float)]
        # All cells are `NOT_COVERED`: no attack here reads what is published. That has the epsilon of the settings.
        if epsilons and not released:
            released = [report.settings[AUDIT]["epsilon"]]
        out.append(
            {
                "defense": protection(defense),
                "client": _judged(report, one),
                "federation": _judged(report, everyone),
                "figures": (
                    figure(run.utility, ".3f"),
                    *_above_floor(report, algorithm, defense),
                    figure(run.bytes_per_client_round, ",.0f"),
                    figure(run.bytes_per_client_round / bare.bytes_per_client_round, ".2f") if bare else "",
                    figure(run.seconds_per_round, ".4f"),
                    f"{released[0]:g}" if released else "",
                ),
            }
        )
    return out


def _judged(report: AuditResult, cell: Cell | None) -> dict[str, Any]:
    """Format what the server alone gets: words, their tone, and the length of the bar in hundredths."""
    if cell is None:
        return {"text": "not attacked", "css": "", "share": None}
    covered = ", not covered by epsilon" if report.cost(cell).promised(cell.view) == NOT_COVERED else ""
    look = tone(cell.verdict.word)
    if cell.verdict.word == INCONCLUSIVE:
        return {
            "text": f"inconclusive, residual {cell.figure('residual'):.1g}{covered}",
            "css": look.name,
            "share": None,
        }
    chance = f": {text}" if (text := chance_text(cell)) else ""
    text = f"{leak_text(cell.leakage.mean)} ({cell.said}{chance}{covered})"
    return {"text": text, "css": look.name, "share": round(100 * min(max(cell.leakage.mean, 0.0), 1.0))}
