"""The page of an audit, `audit.html`: one self-contained file that opens offline.

`render` fills the template `report.html.j2` from a `Report`: a headline, a table with the strongest attack of each
situation, charts of leakage against utility, a section for each algorithm, and every cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from securefed._auditing.engine.audit_report import AUDIT, Report
from securefed._auditing.engine.results import CLIENT, FEDERATION, NOT_COVERED, RECORD, Cell
from securefed._auditing.engine.statistics import EXPOSED, FOUND, INCONCLUSIVE, PARTIAL, SIGHTED
from securefed._auditing.registered.attacker import CHANGING_SURVIVORS
from securefed._auditing.report import charts
from securefed._auditing.report.algorithm_section import anchor, kind, section
from securefed._auditing.report.conclusions import ALL_CLIENTS, ALONE, ONE_CLIENT, strongest, why, worst
from securefed._auditing.report.report_words import (
    DEFENSE_TITLES,
    arrow,
    figure,
    glossary,
    leak_text,
    protection,
    ranged,
    secret_title,
    secret_words,
    short,
    style,
    times,
)
from securefed.attacks.views import RELEASED


def template_page(template: str, styles: Sequence[str], **values: Any) -> str:
    """Fill a template of this folder; `styles` are its style sheets, which become part of the page."""
    folder = files("securefed._auditing.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    formats = (short, protection, figure, ranged, arrow, times, style, secret_title)
    environment.filters |= {function.__name__: function for function in formats}
    environment.filters |= {"leak": leak_text, "detectable": _detectable, "auc_shown": _auc_shown}
    css = "".join((folder / name).read_text(encoding="utf-8") for name in styles)
    css = environment.from_string(css).render(ramp=", ".join(charts.RAMP))
    text = (folder / template).read_text(encoding="utf-8")
    return environment.from_string(text).render(css=Markup(css), **values)  # noqa: S704 - the package's own files


def render(report: Report) -> str:
    """Write the page as HTML."""
    shared, algorithms = report.settings[AUDIT], report.algorithms
    return template_page(
        "report.html.j2",
        ["report.css"],
        title=f"{shared['data']}, {shared['clients']} clients",
        headline=headline(report),
        setup=_setup(report),
        matrices=_matrices(report, algorithms),
        sections=[section(report, name) for name in algorithms],
        panels=[Markup(panel) for name in algorithms if (panel := _panel(report, name))],  # noqa: S704 - escaped
        panel_legend=[
            {"title": DEFENSE_TITLES[name], "colour": charts.COLOURS[name]}
            for name in dict.fromkeys(cell.defense for cell in report.cells)
        ],
        cores=report.environment["cores"],
        cells=report.cells,
        membership=report.membership,
        notes=_notes(report),
        skipped=[*map(str, report.missing), *report.skipped],
        glossary=glossary().items(),
        command=report.command,
        version=report.version,
        environment=", ".join(f"{name} {value}" for name, value in report.environment.items()),
        settings=[(name, report.settings[name]) for name in algorithms],
    )


def _setup(report: Report) -> str:
    shared = report.settings[AUDIT]
    text = (
        f"{_algorithms(len(report.algorithms))} on {shared['data']} with {shared['clients']} clients, each run "
        f"{shared['seeds']} times from other seeds; "
    )
    if "epsilon" in shared:
        text += (
            "the attacks aim at client 0. Differential privacy (DP): "
            f"epsilon {shared['epsilon']:g}, delta {shared['delta']:g} for all rounds together. "
        )
    else:
        text += f"the target is another client in each run. Assumed: {'; '.join(report.assumptions)}. "
    return f"{text}Took {report.seconds:.0f} s."


def headline(report: Report) -> list[str]:
    """Conclude in three sentences, for a reader who stops there: messages in the clear, sums, and sums with noise."""
    bare = strongest((c for c in report.cells if c.view == "server" and c.owner == CLIENT), by_owner=True)
    open_, part, failed = (_names(bare.values(), word) for word in (EXPOSED, PARTIAL, INCONCLUSIVE))
    everywhere = _in(open_, len(bare))
    if not everywhere.startswith("all"):
        everywhere = f"{len(open_)} of {_algorithms(len(bare))}" + (f" ({everywhere})" if open_ else "")
    first = f"In the clear, the server can compute a client's data in {everywhere}"
    first += f", and a part of it in {len(part)} more ({', '.join(part)})" if part else ""
    first += f". Of {', '.join(failed)} nothing is known: the attacks {_failure(bare.values())}." if failed else "."
    sentences = [first if bare else "Messages in the clear were not attacked."]
    defended = [c for c in report.cells if c.defense == "secure_aggregation" and c.view in ALONE]
    if defended:
        sentences.append(f"Under secure aggregation the server sees only sums, {_sums(defended)}")
    noised = _noised([c for c in report.cells if c.defense == "dp"])
    return [*sentences, noised] if noised else sentences


def _noised(cells: Sequence[Cell]) -> str:
    """Say what differential privacy leaves open: the server sees sums before the noise, all others after it."""
    server, others = ([cell for cell in cells if cell.view in views] for views in (ALONE, (RELEASED,)))
    sentences = []
    if server:
        sentences.append(
            "Differential privacy adds noise to what the server hands on: the server itself sees sums without it, "
            f"{_sums(server)}"
        )
    if others:
        open_ = [name for name in _names(server) if name not in _names(others)]
        unseen = f" {', '.join(open_)} {'was' if len(open_) == 1 else 'were'} not attacked there." if open_ else ""
        sentences.append(f"All others see sums with the noise, {_sums(others)}{unseen}")
    return " ".join(sentences)


def _sums(cells: Iterable[Cell]) -> str:
    """Say what sums tell an observer who sees nothing else, by the strongest attack of each situation."""
    best = [cell for cell in strongest(cells, by_owner=True).values() if cell.owner in (CLIENT, FEDERATION)]
    found = [cell for cell in best if cell.verdict.word in FOUND]
    groups = (
        (ONE_CLIENT, [c for c in found if c.owner == CLIENT and c.view != CHANGING_SURVIVORS]),
        (ALL_CLIENTS, [c for c in found if c.owner == FEDERATION]),
        (f"where clients come and go, {ONE_CLIENT}", [c for c in found if c.view == CHANGING_SURVIVORS]),
    )
    parts = [f"{what} in {_in(_names(group), len(_names(best)))}" for what, group in groups if group]
    known = _names(cell for cell in found if cell.owner == CLIENT)
    unfound = [cell for cell in best if cell.owner == CLIENT and short(cell.algorithm) not in known]
    failed = _names(unfound, INCONCLUSIVE)
    hidden = f" Whether {ONE_CLIENT} are hidden in {', '.join(failed)} is open: attacks {_failure(unfound)}."
    clause = f"which still give away all or part of {'; '.join(parts)}"
    if not parts:
        all_failed = all(cell.verdict.word == INCONCLUSIVE for cell in best)
        clause = f"and the attacks on them {_failure(best)}" if all_failed else "in which no leak was detected"
    return f"{clause}.{hidden if failed else ''}"


def _failure(cells: Iterable[Cell]) -> str:
    """Say why the inconclusive ones among some cells are that."""
    failed = all(cell.explained < SIGHTED for cell in cells if cell.verdict.word == INCONCLUSIVE)
    return "failed" if failed else "failed or scatter too much to tell"


def _in(names: Sequence[str], of: int) -> str:
    """List algorithms by name, or as all of several."""
    return f"all {of} algorithms" if len(names) == of > 2 else ", ".join(names)


def _names(cells: Iterable[Cell], word: str = "") -> list[str]:
    """List the algorithms of cells, or of the cells with one verdict."""
    return list(dict.fromkeys(short(cell.algorithm) for cell in cells if word in ("", cell.verdict.word)))


def _matrices(report: Report, algorithms: Sequence[str]) -> list[dict[str, Any]]:
    """Make the tables of the strongest attacks: a row for each algorithm, a column for each defence and view."""
    secrets = dict.fromkeys(report.settings[name]["secret"] for name in algorithms)
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
    matrices = [_matrix(report, algorithms, owner) | {"title": title, "text": text} for owner, title, text in tables]
    return [matrix for matrix in matrices if matrix["groups"]]


def _matrix(report: Report, algorithms: Sequence[str], owner: str) -> dict[str, Any]:
    best = strongest((cell for cell in report.cells if cell.owner == owner), by_owner=True)
    views: dict[str, list[str]] = {}
    for _, defense, view, _ in best:
        if view not in views.setdefault(defense, []):
            views[defense].append(view)
    groups = [{"title": DEFENSE_TITLES[defense], "views": shown} for defense, shown in views.items()]
    columns = [(defense, view) for defense, shown in views.items() for view in shown]
    rows = []
    for name in algorithms:
        found = [best.get((name, defense, view, owner)) for defense, view in columns]
        cells = [_heat(cell) if cell else None for cell in found]
        head = {"title": short(name), "anchor": anchor(name), "note": kind(report, name)}
        rows.append(head | {"cells": cells, "empty": "not attacked"})
    return {"groups": groups, "rows": rows}


def _heat(cell: Cell) -> dict[str, str]:
    """Format a cell of the first tables, coloured by its leakage."""
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
    """Draw leakage against utility; empty where no utility is known."""
    dots = []
    for defense in dict.fromkeys(cell.defense for cell in report.of(name)):
        cell = worst(report, name, defense, CLIENT)
        if cell is not None and not math.isnan(cell.utility):
            leak, known = cell.leakage, cell.verdict.word != INCONCLUSIVE
            dots.append(charts.Dot(defense, cell.utility, leak.mean, leak.low, leak.high, known))
    return charts.panel(short(name), report.settings[name]["utility"], dots) if dots else ""


def _detectable(cell: Cell) -> str:
    """Format the smallest leakage that would have been seen; empty if the search failed or there is one seed."""
    failed = cell.verdict.word == INCONCLUSIVE and cell.explained < SIGHTED
    return "" if failed else figure(cell.verdict.detectable, ".2f")


def _auc_shown(leak: float | None) -> str:
    """Format the smallest AUC that would have been called partial, from the leakage 2 AUC - 1."""
    return "none" if leak is not None and leak >= 1 else figure(None if leak is None else (1 + leak) / 2, ".2f")


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
