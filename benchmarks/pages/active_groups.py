"""Which rows of a sum share a client: cells of `benchmarks.pages.active` for `group_by_client`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.rows import RESULTS
from securefed import Federation, chain
from securefed._auditing.cases.data_splits import rows_each
from securefed.algorithms import FedAvg
from securefed.attacks import Target, group_by_client, views
from securefed.datasets import load
from securefed.defenses import clip, local_gaussian, quantise
from securefed.problems import problems

FILE = RESULTS / "active_groups.json"
RATE, STEPS = 0.05, 5


@dataclass(frozen=True)
class GroupCell:
    """One row of the table.

    Attributes:
        problem: name of the problem.
        clients: number of clients.
        rows: of each client.
        noise: of each client, in multiples of the clipping norm 1; `None` without clip and noise.
    """

    problem: str
    clients: int
    rows: int
    noise: float | None = None

    @property
    def name(self) -> str:
        """Key of the cell in the file."""
        return f"group_by_client | {self.problem} | {self.clients} | {self.rows} | {self.noise}"


def cells() -> list[GroupCell]:
    """List all cells, in the order of the page."""
    noised = [GroupCell("softmax", 4, 4, noise) for noise in (1e-3, 1e-2)]
    return [GroupCell("softmax", 4, 4), GroupCell("mlp", 4, 4), GroupCell("softmax", 8, 4), *noised]


def measure(cell: GroupCell, seed: int) -> dict[str, Any]:
    """Group the rows of one honest round, whose order is random."""
    prepared = rows_each(cell.rows)(load("digits"), cell.clients, seed)
    method = FedAvg(problem=problems.make(cell.problem), learning_rate=RATE, local_steps=STEPS)
    defence = chain(quantise()) if cell.noise is None else chain(clip(1.0), local_gaussian(cell.noise))
    run = Federation(method, prepared.clients, defence, seed=seed, public=prepared.public).run(1)
    order = np.random.default_rng(seed).permutation(cell.clients * cell.rows)
    rows = np.concatenate([own.x for own in prepared.clients])[order]
    labels = np.concatenate([own.labels() for own in prepared.clients])[order]
    owner = np.repeat(np.arange(cell.clients), cell.rows)[order]
    started = time.process_time()
    view = views.sum_only(run.transcript, None)
    restarts = 10 if cell.noise is None else 1
    found = group_by_client(rows, labels, view, Target(method, prepared.public), restarts=restarts, seed=seed)
    return {
        "agreement": adjusted_rand_score(found.groups, owner),
        "residual": found.residual,
        "solved": found.solved,
        "simulations": found.simulations,
        "seconds": time.process_time() - started,
    }
