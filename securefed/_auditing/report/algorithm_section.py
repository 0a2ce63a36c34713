"""The page's section on one algorithm: conclusions, what was recovered and from which messages, and costs."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from securefed import _catalogue as catalogue
from securefed._auditing.engine.audit_report import AUDIT, Report
from securefed._auditing.engine.results import CLIENT, FEDERATION, NOT_COVERED, Artifact, Cell
from securefed._auditing.engine.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.report import charts
from securefed._auditing.report.conclusions import (
    ALL_CLIENTS,
    ONE_CLIENT,
    PLAIN,
    Remedy,
    finding,
    remedy,
    weight,
    worst,
)
from securefed._auditing.report.pictures import pairs
from securefed._auditing.report.report_words import DEFENSE_TITLES, figure, leak_text, secret_title, short


def section(report: Report, algorithm: str) -> dict[str, Any]:
    """Collect what the template shows of one algorithm."""
    known = algorithm in catalogue.algorithms.names
    entry = catalogue.algorithms[algorithm] if known else None
    return {
        "anchor": anchor(algorithm),
        "title": short(algorithm),
        "source": f"{entry.summary}; {entry.source}" if entry else "An algorithm of the caller's own.",
        "finding": finding(report, algorithm),
        "remedies": _remedies(report, algorithm),
        "transmits": entry.details.get("transmits", "") if entry else "",
        "carried": _carried(report, algorithm),
        "recovered": _recovered(report, algorithm),
        "charts": [Markup(chart) for chart in _charts(report, algorithm)],  # noqa: S704 - charts escape their text
        "costs": _costs(report, algorithm),
        "utility": report.settings[algorithm]["utility"],
    }


def anchor(algorithm: str) -> str:
    """Name a section in links."""
    return algorithm.replace("/", "-")


def _remedies(report: Report, algorithm: str) -> list[str]:
    level = report.settings[AUDIT]["acceptable"]
    out: list[str] = []
    both = f"both that and the leakage of {ALL_CLIENTS}"
    for whose, owners in ((f"the leakage of {ONE_CLIENT}", (CLIENT,)), (both, (CLIENT, FEDERATION))):
        found = remedy(report, algorithm, level, owners)
        if found is None:
            missed = f"No audited defence is shown to keep {whose} at {level:g} or less"
            return [*out, f"{missed}, even where the server has no help."]
        out.append(f"To keep {whose} at {level:g} or less, where the server has no help: {_named(found)}.")
    return out


def _named(found: Remedy) -> str:
    if found.defense == PLAIN:
        return "plain messages do, against the attacks here"
    cost = "" if math.isnan(found.bytes) else f", at {found.bytes:.2f} times the bytes of plain messages"
    cost += "" if math.isnan(found.lost) else f" and {max(found.lost, 0.0):.2f} less utility"
    return f"{DEFENSE_TITLES[found.defense]} (leaves at most {leak_text(found.leakage)}{cost})"


def _carried(report: Report, algorithm: str) -> list[str]:
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


def _recovered(report: Report, algorithm: str) -> list[dict[str, Any]]:
    """Show the worst cell for one client, and for all clients' data where these leak."""
    out = []
    for owner, whose in ((CLIENT, "One client"), (FEDERATION, "All clients")):
        found = _worst_artifact(report, algorithm, owner)
        if found is not None and (owner == CLIENT or found[0].verdict.word in FOUND):
            cell, artifact = found
            text = (
                f"{DEFENSE_TITLES[cell.defense]}, view “{cell.view}”, attack {cell.attack}: {cell.verdict.word}, "
                f"leakage {leak_text(cell.leakage.mean)}, median error {cell.error_median:.1e}."
            )
            shown = pairs(artifact, report.settings[algorithm]["secret"])
            out.append({"title": whose, "text": text, "pairs": shown})
    return out


def _worst_artifact(report: Report, algorithm: str, owner: str) -> tuple[Cell, Artifact] | None:
    """Select the cell that tells most and has a picture; of equal leaks that of the plainest view, the first one."""
    known = {(a.defense, a.view, a.attack, a.secret): a for a in report.artifacts if a.algorithm == algorithm}
    cells = [cell for cell in report.of(algorithm) if cell.owner == owner]
    for cell in sorted(cells, key=lambda cell: (weight(cell)[0], round(weight(cell)[1], 2)), reverse=True):
        artifact = known.get((cell.defense, cell.view, cell.attack, cell.secret))
        if artifact is not None:
            return cell, artifact
    return None


def _charts(report: Report, algorithm: str) -> list[str]:
    """Draw the spectrum of a Gram matrix, errors by rounds, and leakage by epsilon, as far as they are known."""
    out = []
    settings = report.settings[algorithm]
    if settings["secret"] == "gram" and (found := _worst_artifact(report, algorithm, CLIENT)) is not None:
        out.append(charts.spectrum("Spectrum of one client's Gram matrix", found[1].truth, found[1].estimate))
    for curve in report.curves:
        if curve["algorithm"] == algorithm:
            out.append(charts.curve(curve["title"], curve["note"], curve["series"]))
    for item in report.tradeoffs:
        if item["algorithm"] == algorithm:
            leaks = [(leak["mean"], leak["low"], leak["high"]) for leak in item["leakage"]]
            title = "Leakage and utility by epsilon"
            out.append(charts.tradeoff(title, settings["utility"], item["epsilons"], leaks, item["utility"]))
    return out


def _costs(report: Report, algorithm: str) -> list[dict[str, str]]:
    """Make a row for each defence: what it leaves open to the server alone, and what it costs."""
    first: dict[str, Cell] = {}
    for cell in report.of(algorithm):
        first.setdefault(cell.defense, cell)
    plain = first.get(PLAIN)
    out = []
    for defense, cell in first.items():
        one, everyone = (worst(report, algorithm, defense, owner) for owner in (CLIENT, FEDERATION))
        epsilons = [c.epsilon for c in report.of(algorithm) if c.defense == defense and c.epsilon is not None]
        released = [epsilon for epsilon in epsilons if isinstance(epsilon, float)]
        if epsilons and not released:  # no attack reads what is published; epsilon covers it nevertheless
            released = [report.settings[AUDIT]["epsilon"]]
        out.append(
            {
                "defense": DEFENSE_TITLES[defense],
                "client": _judged(one),
                "federation": _judged(everyone),
                "utility": figure(cell.utility, ".3f"),
                "bytes": figure(cell.bytes_per_client_round, ",.0f"),
                "ratio": figure(cell.bytes_per_client_round / plain.bytes_per_client_round, ".2f") if plain else "",
                "seconds": figure(cell.seconds_per_round, ".4f"),
                "epsilon": f"{released[0]:g}" if released else "",
            }
        )
    return out


def _judged(cell: Cell | None) -> str:
    if cell is None:
        return "not attacked"
    covered = ", not covered by epsilon" if cell.epsilon == NOT_COVERED else ""
    if cell.verdict.word == INCONCLUSIVE:
        return f"inconclusive, residual {cell.residual:.1g}{covered}"
    return f"{leak_text(cell.leakage.mean)} ({cell.verdict.word}{covered})"


def kind(report: Report, algorithm: str) -> str:
    """Name the kind of the algorithm's secret, for the head of its row."""
    return secret_title(report.settings[algorithm]["secret"])
