"""`audit.html`: one self-contained file that opens offline."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from securefed._auditing import svg_charts as charts
from securefed._auditing.attacking import CHANGING_SURVIVORS
from securefed._auditing.audit_cells import AUDIT, CLIENT, FEDERATION, NOT_COVERED, Cell, Report
from securefed._auditing.curves import Curve
from securefed._auditing.finding import ALONE, strongest, why, worst
from securefed._auditing.pages import anchor, kind, section
from securefed._auditing.report_text import DEFENSE_TITLES, GLOSSARY, leak_text, secret_title, secret_words, short
from securefed._auditing.statistics import EXPOSED, FOUND, INCONCLUSIVE, PARTIAL, SIGHTED
from securefed._auditing.task_results import Artifact
from securefed.attacks.views import RELEASED
from securefed.errors import StorageError


def save(path: Path, report: Report, artifacts: Sequence[Artifact], curves: Sequence[Curve]) -> None:
    """Write the page.

    Raises:
        StorageError: `path` cannot be written.
    """
    try:
        path.write_text(render(report, artifacts, curves), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def render(report: Report, artifacts: Sequence[Artifact], curves: Sequence[Curve]) -> str:
    """The page as text."""
    folder = files("securefed._auditing")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    css = environment.from_string((folder / "report.css").read_text()).render(ramp=", ".join(charts.RAMP))
    template = environment.from_string((folder / "report.html.j2").read_text())
    shared = report.settings[AUDIT]
    algorithms = report.algorithms
    return template.render(
        css=Markup(css),  # noqa: S704 - our own file
        title=f"{shared['data']}, {shared['clients']} clients",
        headline=headline(report),
        setup=(
            f"{_algorithms(len(algorithms))} on {shared['data']} with {shared['clients']} clients, each run "
            f"{shared['seeds']} times from other seeds; the attacks aim at client 0. Differential privacy (DP): "
            f"epsilon {shared['epsilon']:g}, delta {shared['delta']:g} for all rounds together. "
            f"Took {report.seconds:.0f} s."
        ),
        matrices=_matrices(report, algorithms),
        sections=[section(report, name, artifacts, curves) for name in algorithms],
        panels=[Markup(_panel(report, name)) for name in algorithms],  # noqa: S704 - charts escape their text
        panel_legend=[
            {"title": DEFENSE_TITLES[name], "colour": charts.COLOURS[name]}
            for name in dict.fromkeys(cell.defense for cell in report.cells)
        ],
        cores=report.environment["cores"],
        cells=[_row(cell) for cell in report.cells],
        membership=[_member(row) for row in report.membership],
        notes=_notes(report),
        skipped=[*map(str, report.missing), *report.skipped],
        glossary=GLOSSARY,
        command=report.command,
        version=report.version,
        environment=", ".join(f"{name} {value}" for name, value in report.environment.items()),
        settings=[_setting(name, report.settings[name]) for name in algorithms],
    )


def headline(report: Report) -> list[str]:
    """The finding for a reader who reads no further: of messages in the clear, of sums, of sums with noise."""
    bare = strongest(c for c in report.cells if c.view == "server" and c.secret == CLIENT)
    open_, part, failed = (_said(bare.values(), word) for word in (EXPOSED, PARTIAL, INCONCLUSIVE))
    everywhere = _in(open_, len(bare))
    if not everywhere.startswith("all"):
        everywhere = f"{len(open_)} of {_algorithms(len(bare))}" + (f" ({everywhere})" if open_ else "")
    first = f"In the clear, the server can compute a client's data in {everywhere}"
    first += f", and a part of it in {len(part)} more ({', '.join(part)})" if part else ""
    first += f". Of {', '.join(failed)} nothing is known: the attacks {_blind(bare.values())}." if failed else "."
    said = [first if bare else "Messages in the clear were not attacked."]
    defended = [c for c in report.cells if c.defense == "secure_aggregation" and c.view in ALONE]
    if defended:
        said.append(f"Under secure aggregation the server sees only sums, {_sums(strongest(defended).values())}")
    noised = _noised([c for c in report.cells if c.defense == "dp"])
    return [*said, noised] if noised else said


def _noised(cells: Sequence[Cell]) -> str:
    """What differential privacy leaves open: the server sees the sums before the noise, whoever else after it."""
    server, others = ([cell for cell in cells if cell.view in seen] for seen in (ALONE, (RELEASED,)))
    said = []
    if server:
        said.append(
            "Differential privacy adds noise to what the server hands on: the server itself sees sums without it, "
            f"{_sums(strongest(server).values())}"
        )
    if others:
        open_ = [name for name in _said(server) if name not in _said(others)]
        unseen = f" {', '.join(open_)} {'was' if len(open_) == 1 else 'were'} not attacked there." if open_ else ""
        said.append(f"All others see sums with the noise, {_sums(strongest(others).values())}{unseen}")
    return " ".join(said)


def _sums(cells: Collection[Cell]) -> str:
    """What sums leave open to who sees nothing else."""
    found = [cell for cell in cells if cell.verdict.word in FOUND]
    groups = (
        ("one client's data", [c for c in found if c.secret == CLIENT and c.view != CHANGING_SURVIVORS]),
        ("everybody's pooled data", [c for c in found if c.secret == FEDERATION]),
        ("where clients come and go, one client's data", [c for c in found if c.view == CHANGING_SURVIVORS]),
    )
    parts = [f"{what} in {_in(_said(held), len(_said(cells)))}" for what, held in groups if held]
    known = _said([cell for cell in found if cell.secret == CLIENT])
    alone = [cell for cell in cells if cell.secret == CLIENT and short(cell.algorithm) not in known]
    failed = _said(alone, INCONCLUSIVE)
    hidden = f" Whether one client's data are hidden in {', '.join(failed)} is open: attacks {_blind(alone)}."
    seen = f"which still give away all or part of {'; '.join(parts)}"
    if not parts:
        blind = all(cell.verdict.word == INCONCLUSIVE for cell in cells)
        seen = f"and the attacks on them {_blind(cells)}" if blind else "in which no leak was detected"
    return f"{seen}.{hidden if failed else ''}"


def _blind(cells: Iterable[Cell]) -> str:
    """What became of attacks that say nothing, as `why` has it of one cell."""
    tight = all(cell.explained < SIGHTED for cell in cells if cell.verdict.word == INCONCLUSIVE)
    return "failed" if tight else "failed or scatter too much to tell"


def _in(names: Sequence[str], of: int) -> str:
    """Algorithms by name, or all of several."""
    return f"all {of} algorithms" if len(names) == of > 2 else ", ".join(names)


def _said(cells: Iterable[Cell], word: str = "") -> list[str]:
    """The algorithms of cells, or of those with one verdict."""
    return list(dict.fromkeys(short(cell.algorithm) for cell in cells if word in ("", cell.verdict.word)))


def _matrices(report: Report, algorithms: Sequence[str]) -> list[dict[str, Any]]:
    secrets = dict.fromkeys(report.settings[name]["secret"] for name in algorithms)
    client = _matrix(report, algorithms, CLIENT)
    client |= {
        "title": "One client's secret",
        "text": "How much of one client's data can be computed from the messages: 1 is all of it, 0 no more than could "
        "be guessed without them. A row is an algorithm and, below it, what is looked for: "
        f"{'; '.join(f'“{secret_title(one)}”, {secret_words(one)}' for one in secrets)}. A column is a defence and, "
        "below it, who looks on.",
    }
    federation = _matrix(report, algorithms, FEDERATION)
    federation |= {
        "title": "The federation's pooled secret",
        "text": "What the sums give away of all clients' data together, beyond the final model. A defence that hides "
        "single messages and opens their sum cannot change that.",
    }
    return [matrix for matrix in (client, federation) if matrix["groups"]]


def _matrix(report: Report, algorithms: Sequence[str], secret: str) -> dict[str, Any]:
    best = strongest(cell for cell in report.cells if cell.secret == secret)
    views: dict[str, list[str]] = {}
    for _, defense, view, _ in best:
        if view not in views.setdefault(defense, []):
            views[defense].append(view)
    groups = [{"title": DEFENSE_TITLES[defense], "views": seen} for defense, seen in views.items()]
    columns = [(defense, view) for defense, seen in views.items() for view in seen]
    rows = []
    for name in algorithms:
        found = [best.get((name, defense, view, secret)) for defense, view in columns]
        cells = [_heat(cell) if cell else None for cell in found]
        rows.append(
            {
                "title": short(name),
                "anchor": anchor(name),
                "note": kind(report, name),
                "cells": cells,
                "empty": "not attacked",
            }
        )
    return {"groups": groups, "rows": rows}


def _heat(cell: Cell) -> dict[str, str]:
    background, ink = charts.colour(cell.leakage.mean)
    unsure = cell.verdict.word == INCONCLUSIVE
    extra = ""
    if cell.epsilon is not None:
        extra = f"ε {cell.epsilon}" if cell.epsilon == NOT_COVERED else f"ε = {cell.epsilon:g}"
    return {
        "mean": leak_text(cell.leakage.mean),
        "interval": f"{leak_text(cell.leakage.low)} to {leak_text(cell.leakage.high)}",
        "verdict": cell.verdict.word,
        "extra": extra,
        "css": "unsure" if unsure else "",
        "colour": background,
        "ink": ink,
        "title": f"{cell.attack}; error {cell.error_median:.2g} (median) against {cell.baseline_error:.2g}; "
        f"null {cell.null_leakage.mean:.2f}; {cell.exposed_seeds} of {cell.leakage.seeds} seeds leak .9 or more."
        f"{f' Inconclusive: {why(cell)}.' if unsure else ''}",
    }


def _panel(report: Report, name: str) -> str:
    dots = []
    for defense in dict.fromkeys(cell.defense for cell in report.of(name)):
        seen = worst(report, name, defense, CLIENT)
        if seen is not None:
            leak, known = seen.leakage, seen.verdict.word != INCONCLUSIVE
            dots.append(charts.Dot(defense, seen.utility, leak.mean, leak.low, leak.high, known))
    return charts.panel(short(name), report.settings[name]["utility"], dots)


def _row(cell: Cell) -> dict[str, str]:
    css = {EXPOSED: "exposed", PARTIAL: "partial"}.get(cell.verdict.word, "safe")
    failed = cell.verdict.word == INCONCLUSIVE and cell.explained < SIGHTED
    epsilon = "" if cell.epsilon is None else cell.epsilon if isinstance(cell.epsilon, str) else f"{cell.epsilon:g}"
    return {
        "algorithm": short(cell.algorithm),
        "defense": DEFENSE_TITLES[cell.defense],
        "view": cell.view,
        "attack": cell.attack,
        "secret": cell.secret,
        "leakage": leak_text(cell.leakage.mean),
        "highest": "" if math.isnan(cell.highest) else leak_text(cell.highest),
        "interval": f"{leak_text(cell.leakage.low)} to {leak_text(cell.leakage.high)}",
        "null": leak_text(cell.null_leakage.mean),
        "error": f"{cell.error_median:.1e}",
        "baseline": f"{cell.baseline_error:.2f}",
        "verdict": cell.verdict.word,
        "detectable": "" if failed or math.isnan(cell.verdict.detectable) else f"{cell.verdict.detectable:.2f}",
        "rank": f"{cell.rank:.0f} / {cell.unknowns}",
        "condition": _number(cell.condition),
        "residual": _number(cell.residual),
        "explained": "" if math.isnan(cell.explained) else f"{cell.explained:.0%}",
        "epsilon": str(epsilon),
        "seeds": f"{cell.exposed_seeds} / {cell.leakage.seeds}",
        "css": css,
    }


def _member(row: Mapping[str, Any]) -> dict[str, str]:
    def ranged(name: str) -> str:
        value, low, high = row[name]
        return f"{value:.2f} ({low:.2f} to {high:.2f})"

    return {
        "algorithm": short(row["algorithm"]),
        "defense": DEFENSE_TITLES.get(row["defense"], row["defense"].replace("_", " ")),
        "adversary": row["adversary"],
        "auc": ranged("auc"),
        "tpr": ranged("tpr"),
        "null": "{:.2f} to {:.2f}".format(*row["null"]),
        "scores": f"{row['members']} / {row['others']}",
        "detectable": _detectable(row.get("detectable")),
        "epsilon": "" if row["epsilon"] is None else f"{row['epsilon']:.3g}",
        "verdict": row["verdict"],
        "css": {EXPOSED: "exposed", PARTIAL: "partial"}.get(row["verdict"], "safe"),
    }


def _detectable(leak: float | None) -> str:
    """The smallest AUC that would have been called partial, from the leakage 2 AUC - 1."""
    if leak is None or math.isnan(leak):
        return ""
    return "none" if leak >= 1 else f"{(1 + leak) / 2:.2f}"


def _notes(report: Report) -> list[str]:
    noted: dict[tuple[str, str], dict[str, None]] = {}
    for cell in report.cells:
        if cell.note:
            noted.setdefault((cell.defense, cell.note), {})[cell.view] = None
    notes = [f"{DEFENSE_TITLES[name]} ({', '.join(views)}): {note}." for (name, note), views in noted.items()]
    checked = [fact for fact in report.facts if fact.identical is not None]
    if checked:
        same = sum(bool(fact.identical) for fact in checked)
        notes.append(
            f"Exact defences against the quantised run: {same} of {len(checked)} real runs identical bit for bit."
        )
    failed = [c for c in report.cells if c.failed]
    notes += [f"{short(c.algorithm)}, {c.view}, {c.attack}: {c.failed} runs returned nothing finite." for c in failed]
    return list(dict.fromkeys(notes))


def _algorithms(count: int) -> str:
    return f"{count} algorithm{'s' * (count != 1)}"


def _setting(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    parameters = ", ".join(f"{key} = {value}" for key, value in values["hyper-parameters"].items())
    return {
        "name": name,
        "parameters": parameters,
        "data": values["data"],
        "secret": secret_title(values["secret"]),
        "also": values.get("also attacked", ""),
        "rounds": values["rounds"],
        "clip": values["clip"],
    }


def _key(cell: Cell) -> tuple[str, str, str, str, str]:
    return cell.algorithm, cell.defense, cell.view, cell.attack, cell.secret


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1e}"
