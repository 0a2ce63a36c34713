"""Say of one algorithm what leaks of one client's data, and what protects them from a server without undeclared help.

A cell is one attack on one secret in one view (what an attacker sees), over all runs, with a verdict. `outcomes` sorts
an algorithm by what protects it; of protections that hold, `Ruling.limits` says what that does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT, Cell
from securefed._auditing.engine.statistics import EXPOSED, FEWEST, FOUND, INCONCLUSIVE, NOT_DETECTED, upper
from securefed._auditing.report.message_size import too_few_numbers
from securefed._auditing.report.observers import names_secrets
from securefed._auditing.report.outcomes import Outcome
from securefed._auditing.report.report_words import search_failed
from securefed._auditing.report.selections import PLAIN, alone, strongest, worst
from securefed._auditing.report.sentence import Sentence, sentence
from securefed._auditing.report.untested_rows import rows_untested
from securefed._auditing.sentences.names import in_sentence, secret_title
from securefed._auditing.sentences.table import NOTHING, counted, listed
from securefed.attacks.views import ACTIVE_SERVER

CAUSES: Final = ("failed", "scatter", "single", "missed")
"""Why a cell in which no leak above the accepted one was found does not exclude one, the gravest first."""
_WORDS: Final = {"safe": "yes", "held": "yes", "fixed": "only if", "open": "no", "unknown": "not known"}
"""By kind of outcome, the answer to whether one client's data are kept from the server."""
_NOISES: Final = ("dp", "ddp")
"""Defences whose settings a search may better."""


def answer(report: AuditResult, algorithm: str, found: Outcome | None) -> Sentence:
    """Answer whether a protection keeps one client's data from the server; the word is the first part of the key."""
    if found is None:
        if not report.of(algorithm):
            return sentence("not known", NOTHING, CLIENT, "answer")
        leaks = (bare := worst(report, algorithm, PLAIN, CLIENT)) is not None and bare.verdict.word in FOUND
        return sentence("no" if leaks else "not known", "none", CLIENT, "answer")
    word, protection = _WORDS[found.kind], "none" if found.kind == "safe" else "some"
    if word in ("yes", "only if"):
        runs = report.settings[AUDIT]["seeds"]
        if runs < FEWEST:
            return sentence("not known", "some", CLIENT, "few answer", runs=counted(runs, "run"))
        if rows_untested(report, CLIENT):
            return sentence("not known", "some", CLIENT, "rows answer")
        if _lied(report, algorithm, found):
            return sentence("only if", protection, CLIENT, "honest answer", protections=protections(found))
    return sentence(word, protection, CLIENT, "answer", protections=protections(found))


def _lied(report: AuditResult, algorithm: str, found: Outcome) -> bool:
    """Whether a server that chooses its broadcasts reads a client's data in spite of what holds.

    Where unprotected messages hold, that is in any setting: what it reads under a protection, it reads without one.
    """
    held = {one.defense for one in found.remedies}
    lied_to = (cell for cell in report.of(algorithm) if cell.owner == CLIENT and cell.view == ACTIVE_SERVER)
    return any(cell.verdict.word in FOUND for cell in lied_to if found.kind == "safe" or cell.defense in held)


def protections(found: Outcome) -> str:
    """Name the protections that hold, in a sentence."""
    return listed((in_sentence(one.defense) for one in found.remedies), "or")


def of_client(report: AuditResult, algorithm: str, found: Outcome | None) -> list[Sentence]:
    """Say what unprotected messages give away of one client's data, and what the protections do."""
    if not report.of(algorithm):
        return [sentence("not attacked", NOTHING, CLIENT)]
    untested = rows_untested(report, CLIENT)
    return [*_bare(report, algorithm, found), *untested, *_protected(report, algorithm, found)]


def _bare(report: AuditResult, algorithm: str, found: Outcome | None) -> Iterator[Sentence]:
    """Say what unprotected messages give away."""
    cell = worst(report, algorithm, PLAIN, CLIENT)
    if cell is None:
        yield sentence("not attacked", "none", CLIENT)
    elif cell.verdict.word in FOUND:
        if names_secrets(report):
            yield from _named(report)
        else:
            yield sentence(cell.verdict.word, "none", CLIENT)
    elif cell.verdict.word == NOT_DETECTED:
        if rows_untested(report, CLIENT):
            yield sentence(NOT_DETECTED, "none", CLIENT, "rows", secrets=tested(report))
        elif (runs := report.settings[AUDIT]["seeds"]) < FEWEST:
            yield sentence(NOT_DETECTED, "none", CLIENT, "few", runs=counted(runs, "run"))
        else:
            yield sentence(NOT_DETECTED, "none", CLIENT)
    elif (few := too_few_numbers(report, algorithm)) is not None:
        yield sentence(INCONCLUSIVE, "none", CLIENT, "numbers", **few.places())
    else:
        yield sentence(INCONCLUSIVE, "none", CLIENT)
    if found is None and not any(c.defense != PLAIN for c in report.of(algorithm)):
        yield sentence("no", "none", CLIENT)


def _named(report: AuditResult) -> Iterator[Sentence]:
    """Name the secrets of one client that unprotected messages of the only algorithm give away."""
    cells = [c for c in report.cells if c.defense == PLAIN and c.owner == CLIENT and c.view in alone(report)]
    best = strongest(cells).values()  # several where the secret was attacked in several views: the worst of them counts
    leaks = {word: [secret_title(c.secret) for c in best if c.verdict.word == word] for word in FOUND}
    for word in FOUND:
        names = [name for name in leaks[word] if word == EXPOSED or name not in leaks[EXPOSED]]
        if names:
            yield sentence(word, "none", CLIENT, "secrets", secrets=listed(names))


def tested(report: AuditResult) -> str:
    """Name the secrets of a client that were attacked; its data where none has a name."""
    return listed(secret_title(cell.secret) for cell in report.cells if cell.owner == CLIENT) or "data"


def _protected(report: AuditResult, algorithm: str, found: Outcome | None) -> Iterator[Sentence]:
    """Say what the protections do for one client's data."""
    level = report.settings[AUDIT]["acceptable"]
    if found is None:
        return
    rows = {"secrets": tested(report)} if rows_untested(report, CLIENT) else {}
    reason = "rows" if rows else NOTHING
    if found.kind == "safe":
        yield sentence("yes", "none", CLIENT, reason, level=level, **rows)
    elif found.kind in ("held", "fixed"):
        leak = max(0.0, *(one.leakage for one in found.remedies))
        named = {"protections": protections(found), "bound": leak, "level": level}
        yield sentence(_WORDS[found.kind], "some", CLIENT, reason, **named, **rows)
    elif found.kind == "open":
        bare = worst(report, algorithm, PLAIN, CLIENT)
        leaks = bare is not None and bare.verdict.word in FOUND
        yield sentence("no", "some", CLIENT, NOTHING if leaks else "silent")
    else:
        yield from _doubts(report, algorithm, level)
    if found.kind in ("held", "fixed", "unknown"):
        yield from _leaks(report, algorithm, found, level)


def _leaks(report: AuditResult, algorithm: str, found: Outcome, level: float) -> Iterator[Sentence]:
    """Say under which other protections a client's data leak, with the same clients or only where some stay away."""
    held = {one.defense for one in found.remedies} | {PLAIN}
    cells = [c for c in report.of(algorithm) if c.owner == CLIENT and c.view in alone(report) and c.defense not in held]
    best = [c for c in strongest(cells, by_owner=True).values() if c.verdict.word in FOUND and upper(c.leakage) > level]
    said: set[str] = set()
    for reason in (NOTHING, "absent"):
        for word in FOUND:
            names = [
                cell.defense
                for cell in best
                if cell.verdict.word == word
                and cell.defense not in said
                and (reason != NOTHING or _with_the_same(found, cell))
            ]
            said |= set(names)
            if names:
                yield sentence(word, "some", CLIENT, reason, protections=listed(map(in_sentence, names), "or"))


def _with_the_same(found: Outcome, cell: Cell) -> bool:
    """Whether a view shows sums over the same clients in every round."""
    ruling = found.rulings.get(cell.defense)
    return ruling is None or cell.view in ruling.setting.same_clients


def of_limits(found: Outcome | None) -> list[Sentence]:
    """Say what the word of the protections that hold does not cover; nothing where none holds."""
    return list(_limits(found)) if found is not None and found.kind in ("held", "fixed") else []


def _limits(found: Outcome) -> Iterator[Sentence]:
    """Say each limit once, with the protections that it is true of where these are not all."""
    shared: dict[str, tuple[str, dict[str, str], list[str]]] = {}
    for one in found.remedies:
        for reason, places in found.rulings[one.defense].reservations:
            shared.setdefault(repr((reason, places)), (reason, places, []))[2].append(in_sentence(one.defense))
    for reason, places, names in shared.values():
        if reason == "same clients":  # the sentence that says that they hold says it
            continue
        if len(names) == len(found.remedies):
            yield sentence("limit", "all", CLIENT, reason, **places)
        else:
            yield sentence("limit", "some", CLIENT, reason, protections=listed(names), **places)


def of_costs(found: Outcome | None) -> list[Sentence]:
    """Say what the cheapest of the protections that hold costs; nothing where none holds."""
    return list(_costs(found)) if found is not None and found.kind in ("held", "fixed") else []


def _costs(found: Outcome) -> Iterator[Sentence]:
    cheapest = found.remedies[0]
    name = in_sentence(cheapest.defense)
    name = name[0].upper() + name[1:]
    if math.isfinite(cheapest.bytes):
        yield sentence("cost", "some", CLIENT, "bytes", protection=name, times=cheapest.bytes)
    if math.isfinite(cheapest.lost) and round(cheapest.lost, 2) > 0:
        yield sentence("cost", "some", CLIENT, "utility", protection=name, lost=cheapest.lost)
    if any(one.defense in _NOISES for one in found.remedies):
        yield sentence("cost", "some", CLIENT, "noise")


def _doubts(report: AuditResult, algorithm: str, level: float) -> Iterator[Sentence]:
    """Say under which protections nothing was found, and why this is no sign of safety.

    Protections under which a leak above the accepted level was found are left out. Of several views under one
    protection the gravest cause counts.
    """
    cells = [c for c in report.of(algorithm) if c.owner == CLIENT and c.view in alone(report) and c.defense != PLAIN]
    best = strongest(cells, by_owner=True).values()
    settled = {cell.defense for cell in best if cell.verdict.word in FOUND and upper(cell.leakage) > level}
    any_cause = False
    for cause in CAUSES:
        quiet = [cell for cell in best if cell.defense not in settled and _cause(cell, level) == cause]
        if quiet:
            any_cause = True
            settled |= {cell.defense for cell in quiet}
            names = listed((in_sentence(cell.defense) for cell in quiet), "or")
            size = {"size": max(map(_missed, quiet))} if cause == "missed" else {}
            yield sentence("not known", "some", CLIENT, cause, protections=names, **size)
    if not any_cause:  # a secret that plain messages give away was not attacked under the protection
        yield sentence("not known", "some", CLIENT, "unlooked")


def _cause(cell: Cell, level: float) -> str:
    """Say why a cell in which no leak above the level was found does not exclude one; empty if it does."""
    if cell.verdict.word == INCONCLUSIVE:
        return "failed" if search_failed(cell) else "scatter"
    if math.isnan(cell.verdict.detectable):
        return "single"
    return "missed" if _missed(cell) > level else ""


def _missed(cell: Cell) -> float:
    """Return the largest leak that the attack of a cell does not exclude."""
    return min(max(cell.verdict.detectable, upper(cell.leakage)), 1.0)
