"""Say in plain words which party sees the messages, and group the cells of a report by that party.

The first screen has one row for each party under each protection. Protections under which the party sees the same and
finds the same share a row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securefed._auditing.engine.audit_report import AUDIT, Report
from securefed._auditing.engine.results import CLIENT, FEDERATION, NOT_COVERED, RECORD, Cell
from securefed._auditing.registered.attacker import CHANGING_SURVIVORS
from securefed._auditing.report.conclusions import PLAIN, strongest
from securefed._auditing.report.palette import TONES, Tone, tone
from securefed._auditing.report.report_words import listed, protection, secret_title, short
from securefed.attacks.views import RELEASED

OWNERS: Final = {
    CLIENT: "One client's data",
    FEDERATION: "All clients' data together",
    RECORD: "Whether a record took part",
}
NAMED: Final = 4
"""Most algorithms that a group names; more are counted. Five names and more take a second line on a first screen."""
_PARTIES: Final = {
    "server": "the server, which reads every message",
    "sum only": "the server, which reads only sums",
    CHANGING_SURVIVORS: "the server, where clients come and go",
    "server + key holder": "the server together with the key holder",
    "active server": "a server that lies, and chooses what it sends",
    RELEASED: "everyone else, from what is published",
}
_COLLUSION: Final = re.compile(r"collusion\((\d+)\)")
Situation = dict[str, dict[str, Cell]]
"""Cells of one view under one defence: by owner of the secret, then by name of the algorithm or secret."""


@dataclass(frozen=True)
class Group:
    """Algorithms of one verdict in one situation, or secrets of the only algorithm.

    Attributes:
        tone: how the verdict looks.
        names: of the algorithms or secrets, as they are usually written; a single empty name where no name is needed,
            since the report has only one.
        words: the verdict, with the names where they are few.
    """

    tone: Tone
    names: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Observer:
    """One row of the first table.

    Attributes:
        protections: titles of the protections, joined by "or".
        party: the observer, in plain words.
        cells: for each column of `OWNERS` that the report has, the groups; empty if nothing was attacked there.
    """

    protections: str
    party: str
    cells: tuple[tuple[Group, ...], ...]


def party(view: str, clients: int, *, early: bool = False) -> str:
    """Name the observer of a view in plain words.

    Args:
        view: its name in the report.
        clients: number of clients in the federation.
        early: whether the observer sees sums before noise is added.
    """
    colluding = _COLLUSION.fullmatch(view)
    words = (
        f"the server with the help of {colluding[1]} of {clients} clients" if colluding else _PARTIES.get(view, view)
    )
    return f"{words}, before the noise" if early else words


def owners(report: Report) -> list[str]:
    """List whose data the report's cells are about, in the order of `OWNERS`."""
    found = {cell.owner for cell in report.cells}
    return [owner for owner in OWNERS if owner in found]


def names_secrets(report: Report) -> bool:
    """Whether the report is about one algorithm and tells its secrets apart: rows, counts of labels, and so on."""
    told = any(cell.secret not in (CLIENT, FEDERATION) and cell.owner == CLIENT for cell in report.cells)
    return told and len(report.algorithms) == 1


def observers(report: Report) -> list[Observer]:
    """Make the rows: each party that was simulated under each protection, with what it finds.

    A report that tells the secrets of one algorithm apart groups the secrets by verdict, any other the algorithms.
    """
    columns, clients = owners(report), report.settings[AUDIT]["clients"]
    protections: dict[tuple[str, str], list[str]] = {}
    rows: dict[tuple[str, str], tuple[tuple[Group, ...], ...]] = {}
    for (defense, view), found in _situations(report, columns).items():
        verdicts = repr([_verdicts(found.get(owner, {})) for owner in columns])
        same_row = _party_under(view, found, clients), verdicts
        protections.setdefault(same_row, []).append("None" if defense == PLAIN else protection(defense))
        rows[same_row] = tuple(groups(found.get(owner, {})) for owner in columns)
    return [Observer(listed(names, "or"), row[0], rows[row]) for row, names in protections.items()]


def _situations(report: Report, columns: Sequence[str]) -> dict[tuple[str, str], Situation]:
    """Collect, for each defence and view, the cells of the strongest attacks."""
    apart = names_secrets(report)
    out: dict[tuple[str, str], Situation] = {}
    for cell in strongest((cell for cell in report.cells if cell.owner in columns), by_owner=not apart).values():
        name = secret_title(cell.secret.removeprefix("pooled ")) if apart else short(cell.algorithm)
        needed = cell.owner != RECORD and (apart or len(report.algorithms) > 1)
        out.setdefault((cell.defense, cell.view), {}).setdefault(cell.owner, {})[name if needed else ""] = cell
    return out


def _party_under(view: str, found: Situation, clients: int) -> str:
    """Name the observer of a view, with the noise that its cells state."""
    epsilons = {cell.epsilon for cells in found.values() for cell in cells.values()}
    name = party(view, clients, early=NOT_COVERED in epsilons)
    noised = view == "sum only" and any(isinstance(epsilon, float) for epsilon in epsilons)
    return f"{name} with noise" if noised else name


def groups(cells: Mapping[str, Cell]) -> tuple[Group, ...]:
    """Group algorithms or secrets by verdict, the worst first.

    Args:
        cells: by name, the cell that counts; the only one of its kind has the empty name.
    """
    out = []
    for word, look in TONES.items():
        names = tuple(name for name, cell in cells.items() if cell.verdict.word == word)
        if names:
            out.append(Group(look, names, _words(look, names, len(cells))))
    return tuple(out)


def _words(look: Tone, names: Sequence[str], among: int) -> str:
    if not names[0]:
        return look.words
    if len(names) == among > NAMED:
        return f"{look.words} in any of {among}" if look.name == "quiet" else f"{look.words} in all {among}"
    return f"{look.words}: {', '.join(names)}" if len(names) <= NAMED else f"{look.words}: {len(names)} of {among}"


def _verdicts(cells: Mapping[str, Cell]) -> list[tuple[str, str]]:
    return sorted((algorithm, tone(cell.verdict.word).name) for algorithm, cell in cells.items())
