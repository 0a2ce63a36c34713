"""The page of an audit, `audit.html`: one self-contained file that opens offline.

`render` fills the template `report.html.j2` from a `Report`: alerts on the data, a card for each algorithm, how sure
the audit is and what to run next; then tables of the strongest attack of each situation, a section for each algorithm,
membership, and every cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from securefed._auditing.alerts import about_people, sheet_lines
from securefed._auditing.engine.audit_result import AUDIT, AuditResult, rows_cut
from securefed._auditing.engine.column_scores import first_few
from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.statistics import ENOUGH, EXPOSED_FROM
from securefed._auditing.report.algorithm_section import section
from securefed._auditing.report.cards import cards, common, next_steps, without
from securefed._auditing.report.matrix import matrices, sizes
from securefed._auditing.report.membership_rows import ADVERSARIES, by_noise, canaries, tested
from securefed._auditing.report.next_runs import enough_seeds
from securefed._auditing.report.palette import TONES, style_sheet
from securefed._auditing.report.plain_sums import with_sums
from securefed._auditing.report.recovered import examples
from securefed._auditing.report.report_words import (
    COUNTS,
    arrow,
    figure,
    glossary,
    interval_text,
    leak_text,
    ranged,
    search_failed,
    style,
    times,
)
from securefed._auditing.report.smallest_client import with_smallest
from securefed._auditing.report.sureness import gaps, sureness
from securefed._auditing.sentences.names import protection, secret_title, short
from securefed._auditing.sentences.table import NOTHING, counted, say
from securefed._extras import needed_for

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = files("securefed._auditing.report")
_MEANINGS: Final = {
    "secure_aggregation": "Secure aggregation: masks that cancel in the sum.",
    "paillier": "Paillier: encrypted messages, of which a key holder opens the sum.",
    "paillier_threshold": "Paillier, t of N: the same, where t parties together hold the key.",
    "ckks": "CKKS: encrypted messages, whose sum has small errors.",
    "dp": "DP: noise on the sums.",
    "ddp": "Distributed DP: every client adds its share of the noise.",
}
"""By defence, what it is, in the fewest words."""
_MOST_ALERTS: Final = 5
"""Alerts on the data that stand open at the top; the others are folded, so that the conclusion is not far below."""


def template_page(template: str, styles: Sequence[str], **values: object) -> str:
    """Fill a template of this folder.

    Args:
        template: its file name.
        styles: file names of its style sheets, which become part of the page.
        **values: by the names that the template uses.

    Returns:
        The page as HTML.
    """
    css = style_sheet() + "".join((_FOLDER / name).read_text(encoding="utf-8") for name in styles)
    return _environment().get_template(template).render(css=Markup(css), **values)  # noqa: S704 - the package's own files


@cache
def _environment() -> Environment:
    """Read the templates of this folder, with the formats that they use."""
    with needed_for("the audit's page"):
        from jinja2 import DictLoader, Environment, StrictUndefined  # noqa: PLC0415 - an extra

    texts = {item.name: item.read_text(encoding="utf-8") for item in _FOLDER.iterdir() if item.name.endswith(".j2")}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=DictLoader(texts)
    )
    formats = (short, protection, figure, ranged, arrow, times, style, secret_title)
    environment.filters |= {function.__name__: function for function in formats}
    environment.filters |= {"leak": leak_text, "interval": interval_text}
    environment.filters |= {
        "of_family": Cell.figure,
        "promised": lambda cell, report: report.cost(cell).promised(cell.view),
    }
    environment.filters |= {"detectable": _detectable, "auc_shown": _auc_shown}
    return environment


def render(report: AuditResult) -> str:
    """Write the page as HTML."""
    made, report = report, with_sums(report)
    shared, algorithms = report.settings[AUDIT], report.algorithms
    return template_page(
        "report.html.j2",
        ["report.css"],
        title=f"{shared['data']}, {shared['clients']} clients",
        date=f"{datetime.fromisoformat(report.date):%d %B %Y}" if report.date else "",
        sheet=sheet_lines(report.data),
        first=first_screen(report),
        matrices=matrices(report),
        counts=COUNTS,
        sizes=sizes(report),
        alerts=report.alerts,
        about_people=about_people(report.alerts),
        most_alerts=_MOST_ALERTS,
        sections=[section(report, name) for name in algorithms],
        tones=list(TONES.items()),
        cores=report.environment["cores"],
        report=made,
        cells=made.cells,  # those that attacks were made for
        membership=report.membership,
        by_noise=by_noise(report),
        adversaries=list(ADVERSARIES.values()),
        members=[*tested(report), *canaries(report)],
        notes=_notes(report),
        skipped=[*map(str, report.missing), *report.skipped],
        glossary=glossary().items(),
        command=report.command,
        version=report.version,
        environment=", ".join(f"{name} {value}" for name, value in report.environment.items()),
        settings=[(name, report.settings[name]) for name in algorithms],
    )


def first_screen(report: AuditResult) -> dict[str, Any]:
    """Collect what the template shows on the first screen, by the names that the template uses."""
    made, told = cards(report), with_smallest(report)
    shared = common(made)
    return {
        "setup": setup(report),
        "cards": [replace(card, parts=without(card.parts, shared)) for card in made],
        "shared": shared,  # sentences that are true of every algorithm
        "meanings": [meaning for name, meaning in _MEANINGS.items() if any(c.defense == name for c in report.cells)],
        "sure": sureness(told),
        "steps": next_steps(told),  # (algorithms, sentence, command)
        # the command of the same audit with enough seeds
        "more_runs": enough_seeds(report) if report.settings[AUDIT]["seeds"] < ENOUGH else "",
        "gaps": list(gaps(report)),  # how much did not run
        "examples": examples(report),  # rows beside what was recovered of them
    }


def setup(report: AuditResult) -> str:
    """Say in a line what ran, and what the attackers were given."""
    shared = report.settings[AUDIT]
    count = len(report.algorithms)
    places = {
        "what": short(report.algorithms[0]) if count == 1 else f"{count} algorithms",
        "data": shared["data"],
        "clients": f"{shared['clients']} {rows_cut(shared) or 'clients'}",
        "runs": counted(shared["seeds"], "run"),
    }
    said = [say("setup", **places)]
    if "epsilon" in shared:
        said.append(say("setup", "some", epsilon=shared["epsilon"], delta=shared["delta"]))
    said += [say("setup", NOTHING, NOTHING, "assumed", what=one) for one in report.assumptions]
    return " ".join([*said, say("setup", NOTHING, NOTHING, "seconds", seconds=report.seconds)])


def _detectable(cell: Cell) -> str:
    """Format the smallest leakage that would have been seen; empty if the search failed or there is one seed."""
    return "" if search_failed(cell) or cell.reach.bound else figure(cell.verdict.detectable, ".2f")


def _auc_shown(leak: float | None) -> str:
    """Format the smallest AUC that would have been called partial, from the leakage 2 AUC - 1."""
    return "none" if leak is not None and leak >= 1 else figure(None if leak is None else (1 + leak) / 2, ".2f")


def _notes(report: AuditResult) -> list[str]:
    """List how the runs were made where not all of them are the defence itself, and which attacks returned nothing."""
    noted: dict[tuple[str, str], dict[str, None]] = {}
    for cell in report.cells:
        for note in (report.cost(cell).note, *_read(cell)):
            if note:
                noted.setdefault((cell.defense, note), {})[cell.view] = None
    notes = [f"{protection(name)} ({', '.join(views)}): {note}." for (name, note), views in noted.items()]
    checked = [fact for fact in report.facts if fact.identical is not None]
    if checked:
        same = sum(bool(fact.identical) for fact in checked)
        notes.append(
            f"Exact defences against the quantised run: {same} of {len(checked)} real runs identical bit for bit."
        )
    # runs in which an attack's estimate held no finite number
    failed = [c for c in report.cells if c.runs.failed]
    notes += [
        f"{short(c.algorithm)}, {c.view}, {c.attack}: {c.runs.failed} runs returned nothing finite." for c in failed
    ]
    return list(dict.fromkeys(notes))


def _read(cell: Cell) -> list[str]:
    """Say which columns and people an attack read where the mean does not say it, and what it did not test."""
    named = first_few(cell.read.columns) if cell.leakage.mean < EXPOSED_FROM else ""
    people = cell.read.part if cell.secret == "people" else ""
    said = {
        f"{cell.attack} leaves open {cell.reach.open}": cell.reach.open,
        f"{cell.attack} read these columns: {named}": named,
        f"{cell.attack} read {people}": people,
        f"{cell.reach.without}, the strongest attack on membership, did not run": cell.reach.without,
        say("remark", NOTHING, NOTHING, "added"): cell.reach.added,
    }
    return [note for note, there in said.items() if there]
