"""The report's section on one algorithm: the finding, what was recovered, what carried it, what each defence costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from securefed import _catalogue as catalogue
from securefed._auditing import plots
from securefed._auditing import svg_charts as charts
from securefed._auditing.audit_cells import AUDIT, CLIENT, FEDERATION, NOT_COVERED, Cell, Report
from securefed._auditing.curves import Curve
from securefed._auditing.finding import PLAIN, Remedy, finding, remedy, weight, worst
from securefed._auditing.pictures import pairs
from securefed._auditing.report_text import DEFENSE_TITLES, leak_text, secret_title, short
from securefed._auditing.statistics import FOUND, INCONCLUSIVE
from securefed._auditing.task_results import Artifact


def section(report: Report, algorithm: str, artifacts: Sequence[Artifact], curves: Sequence[Curve]) -> dict[str, Any]:
    """What the template shows of one algorithm."""
    own = [artifact for artifact in artifacts if artifact.algorithm == algorithm]
    entry = catalogue.algorithms[algorithm]
    return {
        "anchor": anchor(algorithm),
        "title": short(algorithm),
        "source": f"{entry.summary}; {entry.source}",
        "finding": finding(report, algorithm),
        "remedies": _remedies(report, algorithm),
        "transmits": entry.details.get("transmits", ""),
        "carried": _carried(report, algorithm),
        "recovered": _recovered(report, algorithm, own),
        "charts": [*_spectra(report, algorithm, own), *_over_rounds(algorithm, curves), *_tradeoff(report, algorithm)],
        "costs": _costs(report, algorithm),
        "utility": report.settings[algorithm]["utility"],
    }


def anchor(algorithm: str) -> str:
    """The section's name in links."""
    return algorithm.replace("/", "-")


def _remedies(report: Report, algorithm: str) -> list[str]:
    level = report.settings[AUDIT]["acceptable"]
    out: list[str] = []
    both = "both that and the leakage of everybody's pooled data"
    for whose, secrets in (("the leakage of one client's data", (CLIENT,)), (both, (CLIENT, FEDERATION))):
        found = remedy(report, algorithm, level, secrets)
        if found is None:
            missed = f"No audited defence is shown to keep {whose} at {level:g} or less"
            return [*out, f"{missed}, even where the server has no help."]
        out.append(f"To keep {whose} at {level:g} or less, where the server has no help: {_named(found)}.")
    return out


def _named(found: Remedy) -> str:
    if found.defense == PLAIN:
        return "plain messages do, against the attacks here"
    return (
        f"{DEFENSE_TITLES[found.defense]} (leaves at most {leak_text(found.leakage)}, at {found.bytes:.2f} times the "
        f"bytes of plain messages and {max(found.lost, 0.0):.2f} less utility)"
    )


def _carried(report: Report, algorithm: str) -> list[str]:
    """Which messages each attack that found something has read."""
    found = [cell for cell in report.of(algorithm) if cell.verdict.word in FOUND]
    names = dict.fromkeys(cell.attack for cell in sorted(found, key=lambda cell: -cell.leakage.mean))
    out = []
    for name in names:
        entry = catalogue.attacks[name]
        views = dict.fromkeys(cell.view for cell in found if cell.attack == name)
        reads = f" It reads {entry.details['reads']}." if "reads" in entry.details else ""
        out.append(f"{name}: {entry.summary}.{reads} Finds something in the views: {', '.join(views)}.")
    return out


def _recovered(report: Report, algorithm: str, artifacts: Sequence[Artifact]) -> list[dict[str, Any]]:
    """The worst cell for one client, and for everybody's data where it leaks."""
    out = []
    for secret, whose in ((CLIENT, "One client"), (FEDERATION, "Everybody")):
        found = _worst_artifact(report, algorithm, secret, artifacts)
        if found is not None and (secret == CLIENT or found[0].verdict.word in FOUND):
            cell, artifact = found
            text = (
                f"{DEFENSE_TITLES[cell.defense]}, view “{cell.view}”, attack {cell.attack}: {cell.verdict.word}, "
                f"leakage {leak_text(cell.leakage.mean)}, median error {cell.error_median:.1e}."
            )
            shown = pairs(artifact, report.settings[algorithm]["secret"])
            out.append({"title": whose, "text": text, "pairs": shown})
    return out


def _worst_artifact(
    report: Report, algorithm: str, secret: str, artifacts: Sequence[Artifact]
) -> tuple[Cell, Artifact] | None:
    kept = {(a.defense, a.view, a.attack, a.secret): a for a in artifacts}
    cells = sorted((cell for cell in report.of(algorithm) if cell.secret == secret), key=_shown, reverse=True)
    for cell in cells:
        artifact = kept.get((cell.defense, cell.view, cell.attack, cell.secret))
        if artifact is not None:
            return cell, artifact
    return None


def _shown(cell: Cell) -> tuple[int, float]:
    """Of leaks that look the same the plainest view comes first, which is the first in the report."""
    said, leak = weight(cell)
    return said, round(leak, 2)


def _spectra(report: Report, algorithm: str, artifacts: Sequence[Artifact]) -> list[Markup]:
    if report.settings[algorithm]["secret"] != "gram":
        return []
    found = _worst_artifact(report, algorithm, CLIENT, artifacts)
    if found is None:
        return []
    chart = plots.spectrum("Spectrum of one client's Gram matrix", found[1].truth, found[1].estimate)
    return [Markup(chart)]  # noqa: S704 - charts escape their text


def _over_rounds(algorithm: str, curves: Sequence[Curve]) -> list[Markup]:
    own = [curve for curve in curves if curve.algorithm == algorithm]
    return [Markup(charts.curve(c.title, c.note, c.series, c.names)) for c in own]  # noqa: S704


def _tradeoff(report: Report, algorithm: str) -> list[Markup]:
    utility = report.settings[algorithm]["utility"]
    out = []
    for item in report.tradeoffs:
        if item["algorithm"] == algorithm:
            leaks = [(leak["mean"], leak["low"], leak["high"]) for leak in item["leakage"]]
            title = "Leakage and utility by epsilon"
            out.append(plots.tradeoff(title, utility, item["epsilons"], leaks, item["utility"]))
    return [Markup(chart) for chart in out]  # noqa: S704


def _costs(report: Report, algorithm: str) -> list[dict[str, str]]:
    """One row a defence: what it leaves open to the server alone, and what it costs."""
    first: dict[str, Cell] = {}
    for cell in report.of(algorithm):
        first.setdefault(cell.defense, cell)
    plain = first.get(PLAIN)
    out = []
    for defense, cell in first.items():
        one, everyone = (worst(report, algorithm, defense, secret) for secret in (CLIENT, FEDERATION))
        epsilons = [c.epsilon for c in report.of(algorithm) if c.defense == defense and c.epsilon is not None]
        released = [epsilon for epsilon in epsilons if isinstance(epsilon, float)]
        if epsilons and not released:  # no attack reads what is released; epsilon covers it all the same
            released = [report.settings[AUDIT]["epsilon"]]
        out.append(
            {
                "defense": DEFENSE_TITLES[defense],
                "client": _judged(one),
                "federation": _judged(everyone),
                "utility": f"{cell.utility:.3f}",
                "bytes": f"{cell.bytes_per_client_round:,.0f}",
                "ratio": f"{cell.bytes_per_client_round / plain.bytes_per_client_round:.2f}" if plain else "",
                "seconds": f"{cell.seconds_per_round:.4f}",
                "epsilon": f"{released[0]:g}" if released else "",
            }
        )
    return out


def _judged(cell: Cell | None) -> str:
    if cell is None:
        return "not attacked"
    covered = ", not covered by epsilon" if cell.epsilon == NOT_COVERED else ""
    if cell.verdict.word == INCONCLUSIVE:
        return f"inconclusive, misfit {cell.residual:.1g}{covered}"
    return f"{leak_text(cell.leakage.mean)} ({cell.verdict.word}{covered})"


def kind(report: Report, algorithm: str) -> str:
    """The algorithm's secret, for the head of its row."""
    return secret_title(report.settings[algorithm]["secret"])
