"""Say what to do, from the cells of an audit alone: which protection holds for which algorithm, and on what conditions.

The page's first screen and the terminal show the `actions`. A cell is one attack on one secret in one view (what an
attacker sees), over all runs, with a verdict.

A protection holds if no attack on one client's data leaks more than the audit's acceptable level, and the attacks would
have noticed such a leak. `strongest(cells, by_owner=True)` keeps one cell for each algorithm, defence, view and owner
of the data (a client, or the federation): that of the attack that found most. `outcomes` makes an `Outcome` of each
algorithm: its name; its `remedies`, the defences that hold against a server without help, the cheapest first; and its
`kind`:

    safe       even plain messages hold
    held       a protection holds
    fixed      one holds while the same clients take part in every round
    unknown    no leak was found, but the attacks failed or scatter too much
    open       none holds
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT, FEDERATION
from securefed._auditing.engine.statistics import FOUND, NOT_DETECTED
from securefed._auditing.report.doubts import doubts
from securefed._auditing.report.held_settings import to_paste
from securefed._auditing.report.next_runs import advised_first, open_runs
from securefed._auditing.report.outcomes import Outcome, limits, outcomes
from securefed._auditing.report.plain_sums import as_attacked
from securefed._auditing.report.pooled_sentence import read_people, who
from securefed._auditing.report.report_words import in_sentence, leak_text, listed, short
from securefed._auditing.report.selections import PLAIN, alone, strongest
from securefed.attacks.views import ACTIVE_SERVER

_MOST: Final = 8
"""Most algorithms that a sentence names: as many as a default audit has."""
_NOISES: Final = ("dp", "ddp")
"""Defences whose settings a search may better."""
_HELPED: Final = ("collusion", "server + key holder")
"""Beginnings of the names of views in which others help the server."""


@dataclass(frozen=True)
class Action:
    """One thing to do.

    Attributes:
        what: what to do, in a few words, as an instruction.
        why: a sentence or two, with the figures.
        steps: (sentence, text to paste) pairs: what to run, or the settings; the text may be empty.
        link: words that lead to the steps.
    """

    what: str
    why: str
    steps: tuple[tuple[str, str], ...] = ()
    link: str = "What to run next"


def actions(report: AuditResult) -> list[Action]:
    """List what to do, the most important first."""
    steps = tuple(open_runs(as_attacked(report)))
    out = _protect(report, outcomes(report), steps)
    return [*out, *_active_server(report), *_pooled(report), *_separation(report), *_advice(report)]


def algorithm_actions(report: AuditResult, algorithm: str) -> list[str]:
    """Say how to protect one client's data in one algorithm, in the words of `actions`.

    Returns:
        Sentences; none where no protection was attacked.
    """
    found = [item for item in outcomes(report) if item.name == short(algorithm)]
    return [f"{one.what} {one.why}" for one in _protect(report, found)]


def _protect(report: AuditResult, found: Sequence[Outcome], steps: tuple[tuple[str, str], ...] = ()) -> list[Action]:
    """List what to do to protect one client's data, by the kind of outcome.

    Args:
        report: the report of the audit.
        found: the algorithms to speak of.
        steps: (sentence, command) pairs that would settle what is not known.
    """
    level, clients = report.settings[AUDIT]["acceptable"], report.settings[AUDIT]["clients"]
    out = [_use(report, same, level) for kind in ("held", "fixed") for same in _alike(found, kind)]
    open_, unknown, safe = ([item.name for item in found if item.kind == kind] for kind in ("open", "unknown", "safe"))
    if open_:
        why = f"With {clients} clients no protection tried here keeps the leak of one client's data within {level:g}."
        out.append(Action(f"Treat the messages of {_named(open_, report)} like the data themselves.", why))
    if unknown:
        why = f"{doubts(report, unknown)} That is no sign of safety."
        out.append(Action(f"Do not rely on a protection of {_named(unknown, report)} yet.", why, steps))
    elif steps:
        out.append(Action("Settle what is not known.", "It is no sign of safety.", steps))
    if safe:
        why = f"Plain messages gave at most {level:g} of one client's data away. Other attacks may find more."
        out.append(Action(f"{listed(safe)}: no protection was needed against these attacks.", why))
    return out


def _advice(report: AuditResult) -> list[Action]:
    """Say how to search settings for the same data; nothing where `securefed advise` takes none of the algorithms."""
    name, command = advised_first(report)
    if not command:
        return []
    said = "For another algorithm put its name in place of this one." if len(report.algorithms) > 1 else ""
    why = (
        "The search tries noise, thresholds, rows and rounds on the same data. It says where a setting has other rows "
        "or rounds than yours."
    )
    what = f"Ask which settings keep the leak of {short(name)} within {report.settings[AUDIT]['acceptable']:g}."
    return [Action(what, why, ((said, command),), "Command to paste")]


def _named(names: Sequence[str], report: AuditResult) -> str:
    """Name algorithms, or count them where their names would fill the screen; their sections name them."""
    return listed(names) if len(names) <= _MOST else f"{len(names)} of the {len(report.algorithms)} algorithms"


def _alike(found: Sequence[Outcome], kind: str) -> list[list[Outcome]]:
    """Group the algorithms of one kind so that all of a group share a defence that holds.

    Each algorithm joins the first group that still shares one with it; else it begins a group.
    """
    groups: list[list[Outcome]] = []
    for item in found:
        if item.kind == kind:
            home = next((group for group in groups if _shared([*group, item])), None)
            if home is None:
                groups.append([item])
            else:
                home.append(item)
    return groups


def _shared(same: Sequence[Outcome]) -> list[str]:
    """List the defences that hold for each of several algorithms, in the order of cost of the first."""
    sets = [{one.defense for one in item.remedies} for item in same]
    return [one.defense for one in same[0].remedies if all(one.defense in names for names in sets)]


def _use(report: AuditResult, same: Sequence[Outcome], level: float) -> Action:
    """Name the defences that hold, with the leak that the weakest leaves, and what the cheapest costs at most."""
    defenses = _shared(same)
    used = [one for item in same for one in item.remedies if one.defense in defenses]
    cheapest = [one for one in used if one.defense == defenses[0]]
    end = " and keep the same clients in every round" if same[0].kind == "fixed" else ""
    what = (
        f"Use {listed([in_sentence(name) for name in defenses], 'or')} for {listed([item.name for item in same])}{end}."
    )
    why = f"No leak above {leak_text(max(0.0, *(one.leakage for one in used)))} of one client's data is left that "
    why += "these attacks see"
    why += f" (accepted: {level:g})"
    costs = [one.bytes for one in cheapest if math.isfinite(one.bytes)]
    lost = max((one.lost for one in cheapest if math.isfinite(one.lost)), default=0.0)
    if costs:
        by = f" with {in_sentence(defenses[0])}" if len(defenses) > 1 else ""
        why += f", at {max(costs):.1f} times the bytes{by}"
    if round(lost, 2) > 0:
        why += f" and up to {lost:.2f} less utility of the model"
    if any(name in _NOISES for name in defenses):
        why += ". Clip and epsilon are the audit's own; a search of settings may find some that cost less"
    steps = tuple(_settings(report, same, defenses[0]))
    return Action(what, f"{why}. {limits(same, defenses)}".strip(), steps, "Settings to paste")


def _settings(report: AuditResult, same: Sequence[Outcome], defense: str) -> Iterator[tuple[str, str]]:
    """Yield (sentence, settings to paste) of a defence that held, once for all algorithms with the same settings."""
    alike: dict[str, list[str]] = {}  # by settings, the algorithms
    for item in same:
        name = next(one for one in report.algorithms if short(one) == item.name)
        text = to_paste(report, name, defense, fixed=item.kind == "fixed") if report.command else ""
        alike.setdefault(text, []).append(item.name)
    for text, names in alike.items():
        if text:
            whose = f" for {listed(names)}" if len(alike) > 1 else ""
            yield f"Options of securefed run{whose}, and the same in Python:", text


def _active_server(report: AuditResult) -> list[Action]:
    """Warn where a server that chooses its broadcasts finds what a protection hides from an honest one."""
    best = strongest((c for c in report.cells if c.owner == CLIENT and c.view == ACTIVE_SERVER), by_owner=True).values()
    found = [cell for cell in best if cell.verdict.word in FOUND and cell.defense != PLAIN]
    if not found:
        return []
    names = listed(short(cell.algorithm) for cell in found)
    most = max(cell.leakage.mean for cell in found)
    under = listed(in_sentence(cell.defense) for cell in found)
    why = f"By choosing what it sends it gets a leak of up to {leak_text(most)} in spite of {under}."
    quiet = [cell.defense for cell in best if cell.verdict.word == NOT_DETECTED]
    stopping = [in_sentence(name) for name in quiet if name not in {PLAIN, *(cell.defense for cell in found)}]
    if stopping:
        why += f" Under {listed(stopping)} it found nothing."
    return [Action(f"Make sure that the server of {names} cannot send what it likes.", why)]


def _pooled(report: AuditResult) -> list[Action]:
    """Say where sums give all clients' data together away, which no protection of single clients changes."""
    best = strongest(
        (c for c in report.cells if c.owner == FEDERATION and c.view in alone(report)), by_owner=True
    ).values()
    leaking: dict[str, dict[str, None]] = {}  # by defence, the algorithms, also where several views leak
    for cell in best:
        if cell.verdict.word in FOUND:
            leaking.setdefault(in_sentence(cell.defense), {})[short(cell.algorithm)] = None
    alike: dict[str, list[str]] = {}  # by words for its algorithms, the defences
    for defense, names in leaking.items():
        alike.setdefault(_where(list(names), report), []).append(defense)
    if not alike:
        return []
    parts = [f"under {listed(defenses)} {where}" for where, defenses in alike.items()]
    people = dict.fromkeys(who(cell) for cell in read_people(c for c in report.cells if c.view in alone(report)))
    read = f" They name people: the server reads {listed(people)}." if people else ""
    why = f"Sums give them away {'; '.join(parts)}. Hiding single clients does not change that.{read}"
    return [Action("Decide whether the server may know all clients' data together.", why)]


def _where(names: Sequence[str], report: AuditResult) -> str:
    """Say in which algorithms something holds; all are not named."""
    if len(names) == len(report.algorithms):
        return "here" if len(names) == 1 else "in every algorithm"
    return f"in {_named(names, report)}"


def _separation(report: AuditResult) -> list[Action]:
    """Warn of helpers: parties with whose help the server reads single clients in spite of a protection."""
    best = strongest((c for c in report.cells if c.owner == CLIENT), by_owner=True).values()
    leaking = [cell for cell in best if cell.verdict.word in FOUND and cell.defense != PLAIN]
    helped = [cell.view for cell in leaking if cell.view.startswith(_HELPED)]
    clients, holder = (any(view.startswith(start) for view in helped) for start in _HELPED)
    names = [name for name, there in (("the key holder", holder), ("most of the clients", clients)) if there]
    if not names:
        return []
    why = "With their help it reads single clients in spite of the protection."
    return [Action(f"Keep {listed(names)} independent of the server.", why)]
