"""Measure how many pictures a server reads through the convolutions and maximum pooling of `cnn` on MNIST.

`python -m benchmarks.pages.active --part convolutions` measures the cells, for docs/attacks-active.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.pages.active import RATE, SUMS, recovered
from benchmarks.rows import RESULTS
from securefed import DeviatingServer
from securefed._auditing.cases.data_splits import rows_each
from securefed.algorithms import FedAvg
from securefed.attacks import ClientKernels, TrapWeights
from securefed.attacks._active.client_kernels import client_channels
from securefed.attacks._active.simulated_client import SimulatedClient
from securefed.attacks._active.trap_network import DenseChain, layer_inputs
from securefed.attacks._base import Target
from securefed.datasets import load
from securefed.problems import problems

FILE = RESULTS / "active_convolutions.json"


@dataclass(frozen=True)
class ConvolutionCell:
    """One row of the table: clients with as many pictures each, in one local step.

    Attributes:
        clients: number of clients.
        defence: name in `SUMS`.
        rows: of each client.
        kernels: whether each client is sent channels of its own; otherwise all clients are sent the same trap weights.
    """

    clients: int
    defence: str = "sums"
    rows: int = 1
    kernels: bool = False

    @property
    def name(self) -> str:
        """Key of the cell in the file."""
        return f"{self.clients} clients, {self.defence}" + f", {self.rows} pictures, kernels" * self.kernels


def cells() -> list[ConvolutionCell]:
    """List all cells, in the order of the page."""
    sizes, noises = (8, 32, 100), ("clip 1, noise 0.01", "clip 1, noise 0.1")
    defences = ("sums", "clip 1", "clip 1, noise 0.001")
    out = [ConvolutionCell(clients, defence) for defence in defences for clients in sizes]
    out += [ConvolutionCell(8, "clip 0.1")] + [ConvolutionCell(8, defence) for defence in noises]
    shown = ("sums", "secure aggregation", "clip 1", "clip 1, noise 0.001")
    return out + [ConvolutionCell(8, defence, rows=8, kernels=True) for defence in shown]


def measure(cell: ConvolutionCell, seed: int) -> dict[str, Any]:
    """Run one seed: shares of pictures and of their pooled forms that are read, and of single ones that are right."""
    prepared = rows_each(cell.rows)(load("mnist"), cell.clients, seed)
    method = FedAvg(problem=problems.make("cnn"), learning_rate=RATE, local_steps=1)
    traps = TrapWeights()
    attack, measured = (ClientKernels(traps), client_channels) if cell.kernels else (traps, layer_inputs)
    public, started = prepared.public, time.process_time()
    defence = SUMS[cell.defence]()
    server = DeviatingServer(method, prepared.clients, defence, attack, seed=seed, public=public)
    run = server.deceive()
    seconds = time.process_time() - started
    if run.estimate is None:
        return {"rounds": len(run.broadcasts), "seconds": seconds, "refused": run.refused}
    client = SimulatedClient(Target(method, public), server.dialogue)
    layers = DenseChain.of(method.problem.shapes(public), public.features, public.classes)
    assert layers is not None
    inputs = measured(client, layers, client.model.parameters(run.honest))
    assert inputs is not None
    truth = np.concatenate([own.x for own in prepared.clients])
    pooled, read = (np.stack([inputs.of(row) for row in rows]) for rows in (truth, run.estimate.value))
    single = int(run.estimate.diagnostics["single rows"])
    return {
        "rounds": len(run.broadcasts),
        "seconds": seconds,
        "pictures": recovered(run.estimate.value, truth),
        "pooled": recovered(read, pooled),
        "single": single,
        "right": recovered(pooled, read[:single]) if single else None,
    }
