"""Measure what a server that chooses the consensus of PPGL reads from sums, beside an honest run of equal length.

`python -m benchmarks.pages.active --part distances` measures the cells, for docs/attacks-active.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from benchmarks.pages.active import SUMS
from benchmarks.rows import RESULTS
from securefed import DeviatingServer, Federation
from securefed._auditing.cases.data_splits import standardised
from securefed._tensors import Array
from securefed.algorithms import PPGL
from securefed.algorithms._graph.method import edges_of
from securefed.attacks import ChosenConsensus, DistanceFit, Target
from securefed.attacks.views import sum_only
from securefed.datasets import load

HONEST = 3
"""Seeds whose honest run is attacked too: behind sums the fit to it does not end, and takes minutes."""
FILE = RESULTS / "active_distances.json"


@dataclass(frozen=True)
class DistanceCell:
    """One row of the table: clients with equal shares of the digits, five local steps.

    Attributes:
        clients: number of clients.
        features: number of columns.
        rows: stands for the size of a cell in `fill`.
    """

    clients: int
    features: int = 8
    rows: int = 1

    @property
    def name(self) -> str:
        """Key of the cell in the file."""
        return f"{self.clients} clients, {self.features} columns"


def cells() -> list[DistanceCell]:
    """List all cells, in the order of the page."""
    return [DistanceCell(clients) for clients in (2, 5, 8)]


def leakage(estimate: Array, truth: Array) -> float:
    """Return 1 - error / error of the mean of all clients, the median over clients, which may come in any order.

    Args:
        estimate: distances (clients, edges).
        truth: distances (clients, edges).
    """
    errors = np.linalg.norm(truth[:, None] - estimate[None], axis=2)
    mine, found = linear_sum_assignment(errors)
    return float(np.median(1 - errors[mine, found] / np.linalg.norm(truth - truth.mean(axis=0), axis=1)))


def measure(cell: DistanceCell, seed: int) -> dict[str, Any]:
    """Run one seed of a cell."""
    prepared, method = standardised(cell.features)(load("digits"), cell.clients, seed), PPGL()
    edges, public, count = edges_of(cell.features), prepared.public, cell.clients
    truth = np.stack([edges.distances(own.x) / own.rows for own in prepared.clients])

    def upper(matrices: Array) -> Array:
        return np.stack([matrix[edges.ends] for matrix in matrices.reshape(count, cell.features, cell.features)])

    started = time.process_time()
    run = DeviatingServer(
        method, prepared.clients, SUMS["sums"](), ChosenConsensus(), seed=seed, public=public
    ).deceive()
    assert run.estimate is not None
    seconds, rounds = time.process_time() - started, len(run.broadcasts)
    passive = None
    if seed < HONEST:
        honest = Federation(method, prepared.clients, SUMS["sums"](), seed=seed, public=public).run(rounds)
        view, rng = sum_only(honest.transcript, None), np.random.default_rng(seed)
        passive = DistanceFit().run(view, Target(method, public), rng)
    return {
        "rounds": rounds,
        "seconds": seconds,
        "refused": run.refused,
        "chosen": leakage(upper(run.estimate.value), truth),
        "honest": None if passive is None else leakage(upper(passive.value), truth),
    }
