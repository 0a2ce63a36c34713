"""Attack the client with fewest rows in every run of an audit, whichever client that run attacks.

Its figures stand on a line of their own: a mean over clients of different sizes hides what leaks of the smallest. Where
the run's target is another client, the run is repeated with the smallest one in the target's place; clients keep their
rows, and only their numbers change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final

from securefed._auditing.cases import Case, Preparation, Prepared
from securefed._auditing.cases.audit_settings import Settings
from securefed._auditing.engine.results import CLIENT
from securefed._auditing.engine.seed_result import SeedResult, SmallestAttempt
from securefed._auditing.registered.attacked_views import TARGET
from securefed._auditing.registered.seed_run import SeedRun
from securefed.datasets._loaded_dataset import LoadedDataset

SMALLER: Final = 0.8
"""Share of the largest client's rows below which the smallest client is small; shares that differ by a row are even."""


def smallest_client(rows: Sequence[int]) -> int | None:
    """Return the number of the client with fewest rows; `None` where all have about as many."""
    least = min(rows)
    return None if least >= SMALLER * max(rows) else list(rows).index(least)


def attack_smallest(
    name: str, case: Case, settings: Settings, prepared: Prepared, seed: int, found: SeedResult
) -> list[SmallestAttempt]:
    """Attack the smallest client of one run; nothing where owners are no clients, or all have about as many rows.

    Args:
        name: the algorithm's name in the report.
        case: its audit case.
        settings: the settings of the audit.
        prepared: the data of the run.
        seed: the seed of the run.
        found: what the run found, which is the answer where it attacked the smallest client.
    """
    small = smallest_client(prepared.public.rows)
    if small is None or not settings.own.owner:
        return []
    if small != TARGET:
        moved = replace(case, prepare=_first(case.prepare), absences=case.absences and _first(case.absences), traced=0)
        only = replace(settings, epsilons=(), active=False)
        found = SeedRun(name, moved, only, _moved(prepared, small), seed, first=False).run()
    rows = int(prepared.public.rows[small])
    return [SmallestAttempt(**asdict(one), rows=rows) for one in found.attempts if one.owner == CLIENT]


def _first(prepare: Preparation) -> Preparation:
    """Return the same split with the smallest client in the target's place."""

    def moved(source: LoadedDataset, clients: int, seed: int) -> Prepared:
        made = prepare(source, clients, seed)
        return _moved(made, smallest_client(made.public.rows) or TARGET)

    return moved


def _moved(prepared: Prepared, client: int) -> Prepared:
    """Exchange the numbers of a client and of the target."""
    order = list(range(len(prepared.clients)))
    order[TARGET], order[client] = client, TARGET
    rows = tuple(prepared.public.rows[number] for number in order)
    clients = tuple(prepared.clients[number] for number in order)
    return replace(prepared, clients=clients, public=replace(prepared.public, rows=rows))
