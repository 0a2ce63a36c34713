"""Say what sums tell of all clients together, and of people, beside a sentence of safety about single clients.

A protection that hides single clients may leave the server the sums, and these are about people too: the row of one
person who has a rare category stands in the second moments of all. So where an algorithm is called safe or a
protection is said to hold, `pooled` says what was found of all clients' data under it, or that nothing was attacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.column_scores import first_few
from securefed._auditing.engine.results import CLIENT, FEDERATION, Cell
from securefed._auditing.engine.statistics import EXPOSED, FOUND, INCONCLUSIVE, NOT_DETECTED, PARTIAL
from securefed._auditing.report.outcomes import Outcome, outcomes
from securefed._auditing.report.report_words import listed, short
from securefed._auditing.report.selections import PLAIN, alone, strongest, worst

_UNTRIED: Final = "untried"
_PARTIAL_TOO: Final = "partial too"
_TITLES: Final = {
    EXPOSED: "That is about single clients: the sums give all clients' data together away{where}.",
    _PARTIAL_TOO: "The sums give a part of all clients' data together away{where}.",
    PARTIAL: "That is about single clients: the sums give a part of all clients' data together away{where}.",
    NOT_DETECTED: "Of all clients' data together no leak was found{where}.",
    INCONCLUSIVE: "Whether the sums give all clients' data together away is not known{where}.",
    _UNTRIED: "What the sums tell of all clients' data together was not attacked{where}.",
}
"""By verdict on all clients' data under the protection that holds, the sentence."""
_PEOPLE: Final = "People stand in the sums: the server reads {who}."
_SOMEBODY: Final = "the row or the label of one person, or the mean of a few"


def pooled(report: AuditResult) -> str:
    """Say what sums tell of all clients together, where single clients are called safe; empty where none are."""
    found = {item.name: item for item in outcomes(report)}
    held = {name: item for name, item in found.items() if item.kind in ("safe", "held", "fixed")}
    left = {name for name, item in found.items() if item.kind == "open"}  # a leak is stated of these
    names = [
        name for name in report.algorithms if short(name) in held or (short(name) not in left and _silent(report, name))
    ]
    if not names:
        return ""
    by_word: dict[str, list[str]] = {word: [] for word in _TITLES}
    people: dict[str, list[str]] = {}
    for name in names:
        cells = _pooled_cells(report, name, held.get(short(name)))
        words = {cell.verdict.word for cell in strongest(cells, by_owner=True).values()}  # of several views the worst
        order = (EXPOSED, PARTIAL, INCONCLUSIVE, NOT_DETECTED, _UNTRIED)
        by_word[next(word for word in order if word in {*words, _UNTRIED})].append(short(name))
        for cell in read_people(cells):
            people.setdefault(who(cell), []).append(short(name))
    if by_word[EXPOSED]:  # the sentence before says already what is meant
        by_word[_PARTIAL_TOO], by_word[PARTIAL] = by_word[PARTIAL], []
    several = len(report.algorithms) > 1
    said = [_TITLES[word].format(where=_in(group, several)) for word, group in by_word.items() if group]
    if people:
        said.append(_PEOPLE.format(who=listed([f"{words}{_in(group, several)}" for words, group in people.items()])))
    return " ".join(said)


def read_people(cells: Iterable[Cell]) -> list[Cell]:
    """Select the cells in which people were read in sums, the strongest of each situation."""
    return [cell for cell in strongest(c for c in cells if c.secret == "people").values() if cell.verdict.word in FOUND]


def who(cell: Cell) -> str:
    """Name the people whom a cell reads, with the columns that were read of them where these are few."""
    part = cell.read.part.removesuffix(" of all clients' rows") or _SOMEBODY
    return f"{part}: {first_few(cell.read.columns)}" if cell.read.columns and not cell.read.part else part


def _pooled_cells(report: AuditResult, name: str, outcome: Outcome | None) -> list[Cell]:
    """Select the cells on all clients' data under the protection that is advised; under any for plain messages."""
    defenses = {item.defense for item in outcome.remedies} - {PLAIN} if outcome is not None else set()
    cells = [cell for cell in report.of(name) if cell.owner == FEDERATION and cell.view in alone(report)]
    return [cell for cell in cells if not defenses or cell.defense in defenses]


def _silent(report: AuditResult, name: str) -> bool:
    """Whether no attack found a leak of one client's data in unprotected messages."""
    cell = worst(report, name, PLAIN, CLIENT)
    return cell is not None and cell.verdict.word == NOT_DETECTED


def _in(names: list[str], several: bool) -> str:
    return f" in {listed(names)}" if several else ""
