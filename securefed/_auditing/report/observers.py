"""Say in plain words which party sees the messages, and group the cells of a report by that party.

The first screen has one row for each party under each protection, the weaker party first; protections under which a
party finds the same share a row. A party that sees all that another one sees never has a milder verdict: where its own
attacks found less, it can run those of the other.

A cell of the report is one attack on one secret in one view, over all runs. A view is named after its observer: the
server, the server with the help of others, or everyone else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from securefed._auditing.engine.audit_result import AUDIT, AuditResult
from securefed._auditing.engine.results import CLIENT, FEDERATION, NOT_COVERED, RECORD, Cell
from securefed._auditing.engine.statistics import ENOUGH, INCONCLUSIVE
from securefed._auditing.report.palette import TONES, Tone, tone
from securefed._auditing.report.report_words import listed, protection, runs_text, secret_title, short
from securefed._auditing.report.selections import PLAIN, strongest
from securefed.attacks.views import ACTIVE_SERVER, CHANGING_SURVIVORS, RELEASED, SMALLEST_SUM

OWNERS: Final = {
    CLIENT: "One client's data",
    FEDERATION: "All clients' data together",
    RECORD: "Whether a given row was in the data",
}
"""By whose data a secret is, the head of its column."""
_DATA: Final = (CLIENT, FEDERATION)
"""Columns in which algorithms that were not attacked are named."""
_KNOWS_THE_OTHERS: Final = "if the attacker knows all other rows"
"""Name of the confirmation of a record in the column of membership."""
NAMED: Final = 4
"""Most algorithms that a group names; more are counted. Five names and more take a second line on a first screen."""
_PARTIES: Final = {
    "server": "the server, which reads every message",
    "sum only": "the server, which reads only sums",
    SMALLEST_SUM: "the server, where as few clients answer as it may add up",
    CHANGING_SURVIVORS: "the server, where clients come and go",
    "server + key holder": "the server together with the key holder",
    ACTIVE_SERVER: "a server that lies, and chooses what it sends",
    RELEASED: "everyone else, from what is published",
}
_COLLUSION: Final = re.compile(r"collusion\((\d+)\)")
"""Name of the view of a server that so many clients help."""
_HONEST: Final = (RELEASED, "server", "sum only")
"""Views of a server that follows the protocol without help, and of what it publishes."""
FEWEST: Final = 3
"""Runs below which silence is too little to say; Student's interval of 2 runs is 12 times as wide as
that of 10 with the same scatter, that of 3 is 3.5 times."""


@dataclass(frozen=True)
class Group:
    """Algorithms of one verdict in one situation, or secrets of the only algorithm.

    Attributes:
        tone: how the verdict looks.
        names: the names of the algorithms or secrets, as they are usually written; one empty name where there is but
            one.
        words: the verdict, with the names where they are few.
    """

    tone: Tone
    names: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Observer:
    """One row of the first table.

    Attributes:
        protections: titles of the protections, in one sentence part.
        party: the observer, in plain words.
        cells: for each column of `OWNERS` that the report has, the groups; empty if nothing was attacked there.
    """

    protections: str
    party: str
    cells: tuple[tuple[Group, ...], ...]


def owners(report: AuditResult) -> list[str]:
    """List whose data the report's cells are about, in the order of `OWNERS`."""
    found = {_column(cell) for cell in report.cells}
    return [owner for owner in OWNERS if owner in found]


def _column(cell: Cell) -> str:
    """Return the owner in whose column a cell stands: the confirmation of a record stands beside its membership."""
    return RECORD if cell.secret == "confirmation" else cell.owner


def names_secrets(report: AuditResult) -> bool:
    """Whether the report is about one algorithm and tells its secrets apart: rows, counts of labels, and so on.

    An audit of registered algorithms does not: it calls them `client` and `federation`, after whose data they are.
    """
    secrets = {cell.secret for cell in report.cells if cell.owner == CLIENT}
    return bool(secrets) and CLIENT not in secrets and len(report.algorithms) == 1


def observers(report: AuditResult) -> list[Observer]:
    """Make the rows: each party that was simulated under each protection, with what it finds.

    A party has one row for all protections under which it finds the same. The page (`first_screen`) draws them.
    """
    columns, seeds = owners(report), report.settings[AUDIT]["seeds"]
    situations = _situations(report, columns)
    # The key of a row is the party and its verdicts as text; by key, its protections and what its columns show.
    merged: dict[tuple[str, str], list[str]] = {}
    shown: dict[tuple[str, str], tuple[tuple[Group, ...], ...]] = {}
    order = list(dict.fromkeys(defense for defense, _ in situations))
    for defense, view in sorted(situations, key=lambda key: (order.index(key[0]), strength(key[1]))):
        found = situations[defense, view]
        # under the same protection, what the parties found whose view this one has too
        weaker = [other for (same, one), other in situations.items() if same == defense and sees_all_of(view, one)]
        worst = {owner: _worst(found.get(owner, {}), [one.get(owner, {}) for one in weaker]) for owner in columns}
        words = {
            owner: {name: (cell.verdict.word, runs_text(cell)) for name, cell in cells.items()}
            for owner, cells in worst.items()
        }
        promised = {report.cost(cell).promised(view) for cells in found.values() for cell in cells.values()}
        shared = report.settings[AUDIT]
        seen = _party_and_noise(view, shared["clients"], promised, by_clients=defense == "ddp")
        if view in (SMALLEST_SUM, CHANGING_SURVIVORS) and shared.get("colluders"):
            seen += f", with the help of {shared['colluders']} of {shared['clients']} clients"
        left = {owner: _not_attacked(report, view, words[owner]) if owner in _DATA else () for owner in columns}
        key = seen, repr([(sorted(words[owner].items()), left[owner]) for owner in columns])
        merged.setdefault(key, []).append("None" if defense == PLAIN else protection(defense))
        shown[key] = tuple((*groups(words[owner], seeds), *left[owner]) for owner in columns)
    return [Observer(listed(names, "or"), key[0], shown[key]) for key, names in merged.items()]


def _not_attacked(report: AuditResult, view: str, attacked: Collection[str]) -> tuple[Group, ...]:
    """Group the algorithms that no attack read in a view where others were attacked; of a single round none changes."""
    if not attacked or "" in attacked or names_secrets(report):
        return ()
    single = [name for name in report.algorithms if report.settings[name].get("rounds") == 1]
    due = [short(name) for name in report.algorithms if view != CHANGING_SURVIVORS or name not in single]
    names = tuple(name for name in due if name not in attacked)
    if not names:
        return ()
    said = ", ".join(names) if len(names) <= NAMED else f"{len(names)} of {len(report.algorithms)}"
    return (Group(tone(INCONCLUSIVE), names, f"not attacked: {said}"),)


def _party_and_noise(view: str, clients: int, promised: Collection[float | str | None], *, by_clients: bool) -> str:
    """Name the observer of a view in plain words, and say whether noise is in what it sees.

    Args:
        view: its name in the report.
        clients: number of clients in the federation.
        promised: epsilon of the view's cells: a number where noise is in the sums, `NOT_COVERED` where it is added to
            them after this observer has seen them, `None` without noise.
        by_clients: whether clients add the noise, so that it is in all that any server sees. `NOT_COVERED` then says
            that a server that lies may ask for more rounds than epsilon was computed for.
    """
    colluding = _COLLUSION.fullmatch(view)
    helped = f"the server with the help of {colluding[1]} of {clients} clients" if colluding else ""
    words = helped or _PARTIES.get(view, view)
    if NOT_COVERED in promised and not by_clients:
        words += ", before the noise"
    noised = by_clients or (view == "sum only" and any(isinstance(epsilon, float) for epsilon in promised))
    if not noised:
        return words
    return f"{words}, and sees sums with noise" if view == ACTIVE_SERVER else f"{words} with noise"


def _situations(report: AuditResult, columns: Sequence[str]) -> dict[tuple[str, str], dict[str, dict[str, Cell]]]:
    """Sort the strongest cells: by (defence, view), then by whose data (`columns`), then by the name in the table.

    The name is the secret's in a report that tells the secrets of one algorithm apart, else the algorithm's. It is
    empty where there is but one to name: for records, and for the only algorithm of a report.
    """
    apart, several = names_secrets(report), len(report.algorithms) > 1
    best = strongest((cell for cell in report.cells if _column(cell) in columns), by_owner=not apart)
    situations: dict[tuple[str, str], dict[str, dict[str, Cell]]] = {}
    for cell in best.values():
        if _column(cell) == RECORD:
            name = _KNOWS_THE_OTHERS if cell.owner != RECORD else short(cell.algorithm) if several else ""
        elif apart:
            name = secret_title(cell.secret.removeprefix("pooled "))  # its column says whether it is all clients'
        else:
            name = short(cell.algorithm) if several else ""
        situations.setdefault((cell.defense, cell.view), {}).setdefault(_column(cell), {})[name] = cell
    return situations


def strength(view: str) -> int:
    """Rank a view by how much its observer can do: published results, the server alone, with help, by lying.

    Views that are not named here, such as `active server`, come last.
    """
    if colluding := _COLLUSION.fullmatch(view):
        return 3 + int(colluding[1])
    ranks = {RELEASED: 0, "server": 1, "sum only": 1, SMALLEST_SUM: 2, CHANGING_SURVIVORS: 2, "server + key holder": 3}
    return ranks.get(view, 1000)


def sees_all_of(view: str, other: str) -> bool:
    """Return whether the observer of a view sees all that the observer of another view of the same run sees.

    A server sees what it publishes, and with the help of others what it sees alone; with the help of more clients it
    sees what it sees with fewer. A server in a run where clients come and go, or where few answer, sees other sums, so
    that it is compared with no other view.
    """
    if {CHANGING_SURVIVORS, SMALLEST_SUM} & {view, other} or strength(other) >= strength(view):
        return False
    both = _COLLUSION.fullmatch(view), _COLLUSION.fullmatch(other)
    return other in _HONEST or all(both)


def _worst(cells: Mapping[str, Cell], weaker: Sequence[Mapping[str, Cell]]) -> dict[str, Cell]:
    """Return by name the cell of worst verdict, of the observer's own and of those whose view it has too."""
    order = list(TONES)
    return {
        name: min(
            (cell, *(other[name] for other in weaker if name in other)), key=lambda one: order.index(one.verdict.word)
        )
        for name, cell in cells.items()
    }


def groups(verdicts: Mapping[str, tuple[str, str]], seeds: int) -> tuple[Group, ...]:
    """Group algorithms or secrets by verdict, the worst first.

    Args:
        verdicts: by name, the verdict and on how many runs it rests where they are fewer than `seeds`; the only one of
            its kind has the empty name.
        seeds: number of runs; few are named beside the verdict.
    """
    out = []
    for word, look in TONES.items():
        runs = {name: few for name, (one, few) in verdicts.items() if one == word}
        if runs:
            out.append(Group(look, tuple(runs), _words(look, runs, len(verdicts), seeds)))
    return tuple(out)


def _words(look: Tone, runs: Mapping[str, str], among: int, seeds: int) -> str:
    """Say which algorithms or secrets have one verdict.

    Args:
        look: the verdict's words.
        runs: by name, on how many runs the verdict rests where they are fewer than the audit's, else empty.
        among: number of names with any verdict.
        seeds: number of runs of the audit.
    """
    said = _said(look, seeds)
    names = [f"{name} ({few})".strip() if few else name for name, few in runs.items()]
    if "" in runs:
        return f"{said} {names[0]}".strip()
    if len(names) == among > NAMED:
        return f"{said} in any of {among}" if look.name == "quiet" and seeds >= FEWEST else f"{said} in all {among}"
    return f"{said}: {', '.join(names)}" if len(names) <= NAMED else f"{said}: {len(names)} of {among}"


def _said(look: Tone, seeds: int) -> str:
    """Say a verdict; of few runs with their number, and of fewer still that their silence says nothing."""
    if seeds >= ENOUGH or look.name == "unsure":
        return look.words
    if look.name == "quiet" and seeds < FEWEST:
        return "too few runs to say"
    return f"{look.words} ({seeds} run{'s' * (seeds > 1)})"
