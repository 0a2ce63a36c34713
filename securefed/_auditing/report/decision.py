"""Conclude an audit in two sentences: what unprotected messages give away, and whether a protection holds.

They are the first ones of the page and of the terminal's summary. A cell is one attack on one secret in one view (what
an attacker sees), over all runs, with a verdict; the secret's owner is one client or all clients together.
`strongest` selects the cell that tells most for each algorithm, defence, view and secret, or with `by_owner=True` for
each algorithm, defence, view and owner. A server without help has no client or key holder that shares its secrets with
it (the views `alone`). `outcomes` sorts the algorithms by what protects one client's data from it:

    safe       even plain messages leak no more than the audit's acceptable leakage
    held       a protection keeps the leak at or below that
    fixed      the same, while the same clients take part in every round
    open       no protection does
    unknown    under some protection no leak was found, but its attacks failed or their results scatter too much
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult, rows_cut
from securefed._auditing.engine.results import CLIENT, FEDERATION, Cell
from securefed._auditing.engine.statistics import ENOUGH, EXPOSED, FOUND, INCONCLUSIVE, PARTIAL
from securefed._auditing.report.membership_sentence import told_rows
from securefed._auditing.report.message_size import too_few_numbers
from securefed._auditing.report.observers import FEWEST, NAMED, names_secrets
from securefed._auditing.report.outcomes import Outcome, outcomes
from securefed._auditing.report.pooled_sentence import pooled
from securefed._auditing.report.report_words import in_sentence, leak_text, listed, secret_title, short
from securefed._auditing.report.selections import PLAIN, alone, strongest, worst
from securefed._auditing.report.untested_rows import people_untested, with_untested
from securefed.attacks._active.chosen_broadcasts import active_attacks
from securefed.attacks.views import ACTIVE_SERVER

_ONLY: Final = {
    "held": "With a protection tried here no more than the accepted leak is left, as far as these attacks see.",
    "fixed": "With a protection tried here no more than the accepted leak is left, as long as the same clients take "
    "part in every round.",
    "open": "They still leak under every protection tried here.",
    "unknown": "Whether a protection tried here hides them is not known.",
}
"""Conclusion of a report in which one algorithm needs protection, by the kind of its outcome. "They" and "them" are the
data that the sentence before it says leak from unprotected messages."""
_NOTHING_READ: Final = (
    "Nothing was attacked, so that this audit says nothing of what the messages give away: no attack that was chosen "
    "reads them. `securefed.audit_algorithm(algorithm, clients)` attacks any algorithm: it needs only its client step."
)
"""Conclusion of a report without cells."""
_OPEN_ALL_THE_SAME: Final = (
    "But under every protection tried here an attack found a leak; unprotected messages hide no more than these."
)
"""The same, where all protections leak and no attack on unprotected messages found a leak."""


def decision(report: AuditResult) -> str:
    """Conclude in two sentences: what unprotected messages give away, and whether a protection holds.

    Both are about one client's data and a server without help; a report of other secrets only says what was found.
    Further sentences follow where a server that lies was tried, and where few runs were made. Where clients were cut
    to fewer rows than they hold, the first sentence begins with it.
    """
    shared = report.settings[AUDIT]
    said = _concluded(report)
    if cut := rows_cut(shared):
        said = f"With {cut}: {said[0].lower()}{said[1:]}"
    # A sentence on what was found names what was not tested: rows of one client, and of all together.
    said = with_untested(report, said, CLIENT)
    told, parts = told_rows(report), [said, with_untested(report, pooled(report), FEDERATION), people_untested(report)]
    # rows that can be told are the worst finding where no other was made, and begin the conclusion
    first = report.membership and not any(cell.verdict.word in FOUND for cell in report.cells)
    parts.insert(0 if first else len(parts), told)
    return " ".join(part for part in (*parts, _lied(report), _few(shared["seeds"])) if part)


def _lied(report: AuditResult) -> str:
    """Say what a server that chooses its broadcasts reads in spite of protections; empty where none was asked for.

    Where it reads more from unprotected messages than a server that follows the protocol, that comes first, except for
    algorithms in which it reads a client's data in spite of a protection. Where it finds no leak under a protection,
    the sentence names the attacks and the most that they read; where none applies, the reason.
    """
    everywhere = _lying_cells(report)
    if not everywhere:
        return _not_lied(report)
    tried = [cell for cell in everywhere if cell.defense != PLAIN]
    found = [cell for cell in tried if cell.verdict.word in FOUND]
    bare = _lied_in_the_clear(report, {cell.algorithm for cell in found})
    level = report.settings[AUDIT]["acceptable"]
    # an inconclusive attack may miss a leak of any size, one that found none a leak smaller than it would have noticed
    blind = any(cell.verdict.word == INCONCLUSIVE or not cell.verdict.detectable <= level for cell in tried)
    if not found:
        said = f"{bare} {_lies_tried(everywhere)}".strip()
        if blind:
            return f"{said} Whether it reads more under a protection is not known."
        return f"{said} It found no leak under the protections where it was tried." if tried else said
    under = listed(in_sentence(cell.defense) for cell in found)
    return f"{bare} A server that lies computes {_what(report, found)} in spite of {under}.".strip()


def _lies_tried(cells: Sequence[Cell]) -> str:
    """Name the attacks by which a server that lies was tried, and the most that they read of one client's data."""
    most = max(cells, key=lambda cell: cell.leakage.mean)
    names = listed(_in_words(cell.attack) for cell in cells)
    size = leak_text(max(most.leakage.mean, 0.0))
    return f"A server that lies was tried by {names}: it read at most {size} of a client's data."


def _in_words(attack: str) -> str:
    """Name an active attack, with what it does in brackets where it is registered."""
    if attack not in active_attacks.names:
        return attack
    summary = active_attacks[attack].summary
    return f"{attack} ({summary[0].lower()}{summary[1:]})"


def _not_lied(report: AuditResult) -> str:
    """Say why no attack of a server that lies applied, where the audit asked for one; else empty."""
    if "--active" not in report.command:
        return ""
    reasons = [item.said.rstrip(".") for item in report.missing if item.view == ACTIVE_SERVER]
    said = reasons[0] if reasons else "none of them looks for the secret of this algorithm"
    return f"A server that lies was asked for, but no such attack applies: {said}."


def _lied_in_the_clear(report: AuditResult, without: Set[str]) -> str:
    """Say what a server that lies reads from unprotected messages where an honest one reads less; else empty.

    Args:
        report: the report of the audit.
        without: names of algorithms that are left out.
    """
    found = []
    for cell in _lying_cells(report):
        if cell.algorithm in without:
            continue
        honest = worst(report, cell.algorithm, PLAIN, CLIENT)
        known = honest is not None and honest.verdict.word in (EXPOSED, cell.verdict.word)
        if cell.defense == PLAIN and cell.verdict.word in FOUND and not known:
            found.append(cell)
    return f"A server that lies computes {_what(report, found)} from unprotected messages." if found else ""


def _lying_cells(report: AuditResult) -> list[Cell]:
    """Select the strongest attack on one client of a server that lies, by algorithm and defence."""
    cells = (cell for cell in report.cells if cell.owner == CLIENT and cell.view == ACTIVE_SERVER)
    return list(strongest(cells, by_owner=True).values())


def _what(report: AuditResult, found: Sequence[Cell]) -> str:
    """Say what was found of one client's data, and in which algorithms: all of it, or only a part."""
    open_ = list(dict.fromkeys(short(cell.algorithm) for cell in found if cell.verdict.word == EXPOSED))
    part = [name for name in dict.fromkeys(short(cell.algorithm) for cell in found) if name not in open_]
    return _data_in(open_, part, len(report.algorithms))


def _data_in(open_: list[str], part: list[str], among: int) -> str:
    """Name what leaks of one client's data, for instance "a client's data in SSI and a part of them in FAPS".

    Args:
        open_: algorithms in which all of it leaks.
        part: algorithms in which only a part leaks.
        among: number of algorithms of the report; of a single one the name is left out.
    """
    if among == 1:
        return "a client's data" if open_ else "a part of a client's data"
    parts = [f"a client's data in {_names(open_, among)}"] if open_ else []
    whose = "them" if open_ else "a client's data"
    return listed(parts + ([f"a part of {whose} in {_names(part, among)}"] if part else []))


def _few(seeds: int) -> str:
    """Warn where a conclusion rests on few runs; empty otherwise."""
    if seeds < FEWEST:
        return f"That rests on {seeds} run{'s' * (seeds > 1)}, too few to say that anything is hidden."
    return f"That rests on {seeds} runs; {ENOUGH} are the fewest to rely on." if seeds < ENOUGH else ""


def _concluded(report: AuditResult) -> str:
    """Say what unprotected messages give away, and whether a protection holds.

    A report of one algorithm whose cells name parts of a client's data (rows, counts of labels) names them too
    (`names_secrets`); any other speaks of a client's data.
    """
    if names_secrets(report) and (said := _secrets(report)):
        return f"{said} {_protected(report)}".strip()
    plain = {short(name): worst(report, name, PLAIN, CLIENT) for name in report.algorithms}
    words = {name: cell.verdict.word for name, cell in plain.items() if cell is not None}
    if not report.cells:
        return _NOTHING_READ
    if not words:
        verdicts = {cell.verdict.word for cell in report.cells}
        if verdicts & set(FOUND):
            return "Something leaks in what was attacked here."
        failed = ", but attacks failed or scatter too much" if INCONCLUSIVE in verdicts else ""
        return f"No leak was found in what was attacked here{failed}."
    return f"{_unprotected(report, words)} {_protected(report)}".strip()


def _secrets(report: AuditResult) -> str:
    """Name the secrets of one client that unprotected messages of the only algorithm give away; empty for none."""
    cells = [
        cell for cell in report.cells if cell.defense == PLAIN and cell.owner == CLIENT and cell.view in alone(report)
    ]
    best = strongest(cells).values()  # several where the secret was attacked in several views: the worst of them counts
    leaks = {word: dict.fromkeys(secret_title(c.secret) for c in best if c.verdict.word == word) for word in FOUND}
    open_ = list(leaks[EXPOSED])
    part = [secret for secret in leaks[PARTIAL] if secret not in open_]
    if not open_ and not part:
        return ""
    parts = [f"a client's {listed(open_)}"] if open_ else []
    whose = "its" if open_ else "a client's"
    parts += [f"a part of {whose} {listed(part)}"] if part else []
    return f"Without protection, the server can compute {listed(parts)}."


def _unprotected(report: AuditResult, words: dict[str, str]) -> str:
    """Say what unprotected messages give away of one client's data.

    Args:
        report: the report of the audit.
        words: by algorithm, the verdict on its unprotected messages.
    """
    several = len(words) > 1
    named = {word: [name for name, one in words.items() if one == word] for word in words.values()}
    open_, part = named.get(EXPOSED, []), named.get(PARTIAL, [])
    if len(open_) == len(words):
        count = "both" if len(words) == 2 else f"all {len(words)}"
        where = f" in {count} algorithms" if several else ""
        return f"Without protection, the server can compute a client's data{where}."
    if open_ or part:
        return f"Without protection, the server can compute {_data_in(open_, part, len(words))}."
    if INCONCLUSIVE in named:
        start = "Whether unprotected messages give a client's data away is not known: the attacks failed"
        if all(too_few_numbers(report, name) for name in report.algorithms):
            return f"{start}, since the messages hold fewer numbers than the attacked client's rows."
        return f"{start} or scatter too much."
    return "No attack here learnt a client's data even from unprotected messages."


def _protected(report: AuditResult) -> str:
    """Say in which algorithms a protection keeps one client's leak to a server without help at the accepted level."""
    # Algorithms that are safe without protection need none; `outcomes` leaves out those where none was attacked.
    every = outcomes(report)
    found = [item for item in every if item.kind != "safe"]
    little = [item.name for item in every if item.kind == "safe" and item.name in _leaking(report)]
    where = "" if len(report.algorithms) == 1 else f" in {_names(little, len(every))}"
    accepted = f"The leak{where} is no more than the accepted one." if little else ""
    return f"{accepted} {_needed(report, found)}".strip()


def _leaking(report: AuditResult) -> set[str]:
    """Name the algorithms of which unprotected messages give one client's data away, in part at least."""
    found = ((name, worst(report, name, PLAIN, CLIENT)) for name in report.algorithms)
    return {short(name) for name, cell in found if cell is not None and cell.verdict.word in FOUND}


def _needed(report: AuditResult, found: Sequence[Outcome]) -> str:
    """Say what the protections do for the algorithms that need one; empty where none does."""
    left = {kind: [item.name for item in found if item.kind == kind] for kind in ("held", "fixed", "open", "unknown")}
    if not found:
        return ""
    leaks = _leaking(report)
    if len(found) == 1:
        (one,) = found
        silent = one.kind == "open" and one.name not in leaks
        return f"{_OPEN_ALL_THE_SAME if silent else _ONLY[one.kind]} {_helped(found)}".strip()
    total = len(found)
    parts = [f"no more than the accepted leak is left in {_names(left['held'], total)}"] if left["held"] else []
    if left["fixed"]:
        start = "in" if parts else "no more than the accepted leak is left in"
        parts.append(f"{start} {_names(left['fixed'], total)} as long as the same clients take part in every round")
    parts = [listed(parts)] if parts else []
    if left["open"]:
        they = "they still leak" if leaks else "one client's data leak"
        parts.append(f"{they} in {_names(left['open'], total)}")
    if left["unknown"]:
        parts.append(f"it is not known for {_names(left['unknown'], total)}")
    return f"With protection {'; '.join(parts)}. {_helped(found)}".strip()


def _helped(found: Sequence[Outcome]) -> str:
    """Say with whose help the server may open the sums of protections that hold; empty where none holds."""
    held = (item for item in found if item.kind in ("held", "fixed"))
    clauses = (clause for item in held for one in item.remedies for clause in item.rulings[one.defense].collusion)
    text = "; ".join(dict.fromkeys(clauses))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _names(names: list[str], among: int) -> str:
    """Name algorithms, or count them where they are many."""
    return listed(names) if len(names) <= NAMED else f"{len(names)} of {among}"
