"""Say what else an audit found of an algorithm: of all clients together, of records, by a server that lies or has help.

A protection that hides single clients may leave the server the sums, and these are about people too: the row of one
person who has a rare category stands in the second moments of all. So each card says what was found there, or that
nothing was attacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.column_scores import first_few
from securefed._auditing.engine.results import CLIENT, FEDERATION, RECORD, Cell
from securefed._auditing.engine.statistics import EXPOSED, FEWEST, FOUND, INCONCLUSIVE, NOT_DETECTED, PARTIAL
from securefed._auditing.report.membership_rows import tested
from securefed._auditing.report.outcomes import Outcome
from securefed._auditing.report.selections import PLAIN, alone, strongest, worst
from securefed._auditing.report.sentence import Sentence, sentence
from securefed._auditing.report.untested_rows import people_untested, rows_untested
from securefed._auditing.sentences.names import in_sentence, protection
from securefed._auditing.sentences.table import NOTHING, counted, listed
from securefed.attacks._active.chosen_broadcasts import active_attacks
from securefed.attacks.views import ACTIVE_SERVER, SERVER_VIEW, SUM_ONLY

EVERYONE: Final = "everyone"
UNTRIED: Final = "not attacked"
_SOMEBODY: Final = "the row or the label of one person, or the mean of a few"
_HELPED: Final = {"collusion": "clients", "server + key holder": "key holder"}
"""By beginning of the name of a view in which others help the server, who they are."""
_OWN_VIEWS: Final = {SERVER_VIEW: "server", SUM_ONLY: "sums"}
"""By view, the reason of the sentence that membership was not tested in it."""


def of_everyone(report: AuditResult, algorithm: str, found: Outcome | None) -> Iterator[Sentence]:
    """Say what sums tell of all clients together, and of people, under the protections that hold, or under any."""
    held = {one.defense for one in found.remedies} - {PLAIN} if found is not None else set()
    seen = [cell for cell in report.of(algorithm) if cell.owner == FEDERATION and cell.view in alone(report)]
    cells = [cell for cell in seen if not held or cell.defense in held]
    words = {cell.verdict.word for cell in strongest(cells, by_owner=True).values()}  # of several views the worst
    word = next((one for one in (EXPOSED, PARTIAL, INCONCLUSIVE, NOT_DETECTED) if one in words), UNTRIED)
    untested = rows_untested(report, FEDERATION)
    runs = report.settings[AUDIT]["seeds"]
    if word == NOT_DETECTED and (untested or runs < FEWEST):
        reason, places = ("rows", {}) if untested else ("few", {"runs": counted(runs, "run")})
        yield sentence(word, NOTHING, EVERYONE, reason, **places)
    else:
        yield sentence(word, NOTHING, EVERYONE)
    yield from untested
    if people := read_people(cells):
        yield sentence(EXPOSED, NOTHING, EVERYONE, "people", who=listed(map(who, people)))
    yield from people_untested(report)


def read_people(cells: Iterable[Cell]) -> list[Cell]:
    """Select the cells in which people were read in sums, the strongest of each situation."""
    return [cell for cell in strongest(c for c in cells if c.secret == "people").values() if cell.verdict.word in FOUND]


def who(cell: Cell) -> str:
    """Name the people whom a cell reads, with the columns that were read of them where these are few."""
    part = cell.read.part.removesuffix(" of all clients' rows") or _SOMEBODY
    return f"{part}: {first_few(cell.read.columns)}" if cell.read.columns and not cell.read.part else part


def of_records(report: AuditResult, algorithm: str) -> Iterator[Sentence]:
    """Say whether an attacker can tell that a row was there, and what it must know.

    In the audit of a training loop membership has cells of its own (`RECORD`); for registered algorithms it has rows.
    """
    cells = [cell for cell in report.of(algorithm) if cell.owner in (RECORD, "confirmation")]
    rows = [row for row in tested(report) if row["algorithm"] in (algorithm, algorithm.partition(" (")[0])]
    if cells or rows:
        yield from _by_cells(cells)
        yield from _by_rows(rows)
    elif report.membership:
        yield sentence(UNTRIED, NOTHING, RECORD)
    elif report.command:
        yield sentence(UNTRIED, NOTHING, RECORD, "never")


def _by_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sentence]:
    found = [row for row in rows if row["verdict"] in FOUND]
    if found:
        most = max(found, key=lambda row: (row["auc"][0], row["adversary"] == "population"))
        named = {"protections": protection(most["defense"])} if most["defense"] != PLAIN else {}
        yield sentence(EXPOSED, "some" if named else "none", RECORD, most["adversary"], right=most["auc"][0], **named)
        if not named:
            yield sentence(EXPOSED, "none", RECORD, "sums")
            noised = {row["defense"] for row in rows} - {PLAIN}
            failed = {row["defense"] for row in rows if row["verdict"] in (*FOUND, INCONCLUSIVE)}
            if noised and not noised & failed:
                yield sentence(NOT_DETECTED, "some", RECORD, "noise")
    elif any(row["verdict"] == NOT_DETECTED for row in rows):
        yield sentence(NOT_DETECTED, NOTHING, RECORD)
    if unknown := sum(row["verdict"] == INCONCLUSIVE for row in rows):
        yield sentence(INCONCLUSIVE, NOTHING, RECORD, count=unknown, tests=len(rows))


def _by_cells(cells: list[Cell]) -> Iterator[Sentence]:
    members = [cell for cell in cells if cell.owner == RECORD]
    found = [cell for cell in members if cell.verdict.word in FOUND]
    blind = {cell.view: cell.reach.without for cell in members if cell.reach.without and cell not in found}
    unknown = [cell for cell in members if cell.verdict.word == INCONCLUSIVE and not cell.reach.without]
    if found:
        most = max(found, key=lambda cell: cell.leakage.mean)
        named = {"protections": protection(most.defense)} if most.defense != PLAIN else {}
        right = 0.5 + most.leakage.mean / 2
        yield sentence(EXPOSED, "some" if named else "none", RECORD, "cells", right=right, **named)
    for view, attack in blind.items():
        if not any(cell.view == view for cell in found):
            yield sentence(UNTRIED, "none", RECORD, _OWN_VIEWS.get(view, "sums"), attack=attack)
    if unknown:
        yield sentence(INCONCLUSIVE, NOTHING, RECORD, count=len(unknown), tests=len(members))
    if members and not found and not blind and not unknown:
        yield sentence(NOT_DETECTED, NOTHING, RECORD)
    if any(cell.owner == "confirmation" and cell.verdict.word in FOUND for cell in cells):
        yield sentence(EXPOSED, "none", RECORD, "confirmation")


def of_liars(report: AuditResult, algorithm: str) -> Iterator[Sentence]:
    """Say what a server that chooses its broadcasts reads, or why none was tried."""
    own = [cell for cell in report.of(algorithm) if cell.owner == CLIENT and cell.view == ACTIVE_SERVER]
    cells = list(strongest(own, by_owner=True).values())
    if not cells:
        yield from _not_lied(report, algorithm)
        return
    found = [cell for cell in cells if cell.defense != PLAIN and cell.verdict.word in FOUND]
    honest = worst(report, algorithm, PLAIN, CLIENT)
    for cell in cells:
        known = honest is not None and honest.verdict.word in (EXPOSED, cell.verdict.word)
        if cell.defense == PLAIN and cell.verdict.word in FOUND and not known and not found:
            yield sentence(cell.verdict.word, "none", "liar")
    for word in FOUND:
        same = [cell for cell in found if cell.verdict.word == word]
        if same:
            leak = max(cell.leakage.mean for cell in same)
            yield sentence(word, "some", "liar", protections=_under(same), leak=leak)
    if not found:
        most = max(*(cell.leakage.mean for cell in cells), 0.0)
        yield sentence("tried", NOTHING, "liar", attacks=listed(_in_words(cell.attack) for cell in cells), bound=most)
    left = [cell for cell in cells if cell.verdict.word not in FOUND]
    blind = [cell for cell in left if _blind(report, cell)]
    for protected, word in ((True, "some"), (False, "none")):
        if same := [cell for cell in blind if (cell.defense != PLAIN) == protected]:
            yield sentence(INCONCLUSIVE, word, "liar", **({"protections": _under(same)} if protected else {}))
    if same := [cell for cell in left if cell not in blind and cell.defense != PLAIN]:
        yield sentence(NOT_DETECTED, "some", "liar", protections=_under(same))


def _blind(report: AuditResult, cell: Cell) -> bool:
    """Whether an attack that found nothing may have missed a leak above the accepted one."""
    return cell.verdict.word == INCONCLUSIVE or not cell.verdict.detectable <= report.settings[AUDIT]["acceptable"]


def _not_lied(report: AuditResult, algorithm: str) -> Iterator[Sentence]:
    """Say why no attack of a server that lies ran; an audit without a command has no option that asks for one."""
    if "--active" in report.command:
        own = [item for item in report.missing if item.view == ACTIVE_SERVER and item.algorithm == algorithm]
        reason = own[0].said.rstrip(".") if own else "none of them looks for the secret of this algorithm"
        yield sentence(UNTRIED, NOTHING, "liar", "asked", reason=reason)
    elif report.command:
        yield sentence(UNTRIED, NOTHING, "liar")


def _in_words(attack: str) -> str:
    """Name an active attack, with what it does in brackets where it is registered."""
    if attack not in active_attacks.names:
        return attack
    summary = active_attacks[attack].summary
    return f"{attack} ({summary[0].lower()}{summary[1:]})"


def of_helpers(report: AuditResult, algorithm: str) -> Iterator[Sentence]:
    """Warn of parties with whose help the server reads single clients in spite of a protection."""
    best = strongest((cell for cell in report.of(algorithm) if cell.owner == CLIENT), by_owner=True).values()
    leaking = [cell for cell in best if cell.verdict.word in FOUND and cell.defense != PLAIN]
    for start, helper in _HELPED.items():
        if helped := [cell for cell in leaking if cell.view.startswith(start)]:
            yield sentence(EXPOSED, "some", "helper", helper, protections=_under(helped))


def _under(cells: Iterable[Cell]) -> str:
    return listed(in_sentence(cell.defense) for cell in cells)
