"""Measure how many rows a server reads by choosing its broadcasts, over seeds, for docs/attacks-active.md.

    python -m benchmarks.pages.active [--part rows|groups|convolutions|distances] [--seconds S]

Measures one cell at a time, writes it to `results/active.json` (of other parts `active_PART.json`) at once, and goes on
where it stopped. MNIST is read from `SECUREFED_DATA`. Set OMP_NUM_THREADS=1: on a busy machine more threads take ten
times as long. After a change of an attack, remove these files, so that every cell is measured again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.rows import RESULTS
from securefed import ActiveRun, DeviatingServer, Federation, chain
from securefed._auditing.cases import Prepared
from securefed._auditing.cases.data_splits import rows_each
from securefed._tensors import Array
from securefed.algorithms import FLAME, FedAvg, Scaffold
from securefed.attacks import (
    ClassThresholds,
    ClientKernels,
    GradientSuppression,
    TrapWeights,
    broadcast_signs,
    insert_imprint_module,
)
from securefed.datasets import load
from securefed.defenses import clip, local_gaussian, quantise, secure_aggregation
from securefed.problems import TorchModule, problems

FILE = RESULTS / "active.json"
PARTS = {
    "rows": "active",
    "groups": "active_groups",
    "convolutions": "active_convolutions",
    "distances": "active_distances",
}
"""Modules that list and measure the cells."""
SEEDS = 10
WITHIN = 0.05
"""A row counts as recovered within this relative error: pictures then look the same."""
RATE = 0.05
HONEST_ROUNDS = 3
SHOWN = 8
"""Clients of the cells from which the table of what a client can see is made."""
BOUND = 8.0
"""Declared gradient bound of the residual network, whose last layer's gradients reach 2.5."""
Defence = Callable[[], Any]
SUMS: Mapping[str, Defence] = {
    "sums": lambda: chain(quantise()),  # the sums of integers of secure aggregation, bit for bit
    "secure aggregation": lambda: chain(secure_aggregation()),
    "in the clear": chain,
    "clip 1": lambda: chain(clip(1.0), quantise()),
    "clip 0.1": lambda: chain(clip(0.1), quantise()),
    "clip 1, noise 0.001": lambda: chain(clip(1.0), local_gaussian(0.001)),
    "clip 1, noise 0.01": lambda: chain(clip(1.0), local_gaussian(0.01)),
    "clip 1, noise 0.1": lambda: chain(clip(1.0), local_gaussian(0.1)),
    "clip 1, noise 1": lambda: chain(clip(1.0), local_gaussian(1.0)),
}
"""By name in the tables; noise is that of each client, in multiples of the clipping norm."""


@dataclass(frozen=True)
class Cell:
    """One row of a table.

    Attributes:
        attack: the attack with its settings.
        problem: name of the problem.
        clients: number of clients.
        rows: of each client.
        defence: name in `SUMS`.
        method: makes the algorithm from a problem.
        settings: of the algorithm, for the table.
        informed: whether trap weights know the rows' brightness from held-out rows.
        bins: outputs of the first layer of an imprint module in front of `residual_network`; 0: the model is `problem`.
        channels: of the convolution before that layer; 0: none.
        data: name of the data set.
    """

    attack: Any
    problem: str
    clients: int
    rows: int = 1
    defence: str = "sums"
    method: Callable[..., Any] = FedAvg
    settings: Mapping[str, Any] = field(default_factory=lambda: {"local_steps": 5})
    informed: bool = False
    bins: int = 0
    channels: int = 0
    data: str = "digits"

    @property
    def name(self) -> str:
        """Key of the cell in the file."""
        words = (
            f"{self.attack.name}, {self.attack.rounds} rounds",
            self.problem,
            self.clients,
            self.rows,
            self.defence,
            self.method.__name__,
        )
        name = " | ".join(map(str, (*words, dict(self.settings), *["informed"] * self.informed)))
        return name + (f" | {self.bins} bins, {self.channels} channels, {self.data}" if self.bins else "")

    def model(self, side: int) -> Any:
        """Make the problem, for pictures with this side where a module is inserted."""
        if not self.bins:
            return problems.make(self.problem)
        network, shape = partial(residual_network, side), (1, side, side)
        module = partial(insert_imprint_module, network, shape, self.bins, self.channels)
        return TorchModule(module=module, gradient_bound=BOUND)  # else bounds would have to double in the first round


def cells() -> list[Cell]:
    """List all cells, in the order of the page."""
    thresholds, trap = ClassThresholds(rounds=40), TrapWeights()
    out = [Cell(thresholds, "softmax", clients) for clients in (8, 32, 100)]
    out += [Cell(thresholds, "softmax", 8, rows=16)]
    for problem in ("mlp", "2nn"):
        for clients in (8, 32, 100):
            out += [Cell(TrapWeights(rounds=1), problem, clients, informed=True), Cell(trap, problem, clients)]
    out += [Cell(trap, "2nn", 8, 16, settings={"local_steps": steps}) for steps in (1, 5)]
    out += [Cell(trap, "mlp", 8, method=Scaffold, settings={"local_steps": 5})]
    flame = {"local_steps": 5, "anchor": "global"}
    out += [Cell(thresholds, "softmax", clients, method=FLAME, settings=flame) for clients in (8, 32, 100)]
    out += [Cell(thresholds, "softmax", 8, 4, method=FLAME, settings=flame)]
    out += [Cell(attack, name, 8, defence="in the clear") for attack, name in ((thresholds, "softmax"), (trap, "mlp"))]
    one_step = {"local_steps": 1}
    for name in ("sums", "secure aggregation"):
        out += [Cell(GradientSuppression(), "mlp", 8, 4, defence=name, settings=one_step)]
    defences = [name for name in SUMS if name.startswith("clip")]
    out += [Cell(thresholds, "softmax", 8, defence=name) for name in defences]
    out += [Cell(trap, "mlp", 8, defence=name) for name in defences]
    return out + inserted_cells()


def inserted_cells() -> list[Cell]:
    """List the cells of models that begin with an imprint module."""
    one_step = {"local_steps": 1}
    trap = partial(Cell, TrapWeights(), "residual", settings=one_step)
    known = partial(Cell, TrapWeights(rounds=1), "residual", settings=one_step, informed=True, data="mnist")
    kernels = partial(Cell, ClientKernels(TrapWeights()), "residual", settings=one_step)
    at_once = partial(Cell, ClientKernels(TrapWeights(rounds=1)), "residual", settings=one_step, informed=True)
    out = [known(8, 8, bins=256), known(8, 64, bins=2048), known(8, 64, defence="in the clear", bins=256)]
    out += [trap(8, 8, bins=256), trap(32, 32, bins=2048), trap(100, 8, bins=2048)]
    out += [Cell(TrapWeights(), "residual", 8, 8, bins=256)]
    out += [at_once(32, 16, bins=64, channels=64), at_once(100, 8, bins=32, channels=200)]
    out += [trap(32, 16, bins=64, channels=64)]  # with the same bins, and all clients told the same
    small = {"bins": 64, "channels": 16}
    defences = ["sums", "secure aggregation", "clip 1", "clip 0.1", "clip 1, noise 0.001", "clip 1, noise 0.01"]
    out += [kernels(8, 8, defence=name, **small) for name in defences]
    return out + [trap(8, 8, defence=name, bins=256) for name in defences if name != "sums"]


class Residual(nn.Module):
    """Two convolutions with a normalisation between them, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.layers = nn.Sequential(first, nn.GroupNorm(2, channels), nn.ReLU(), second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block's output."""
        return x + self.layers(x)


def residual_network(side: int) -> nn.Sequential:
    """Make a small residual network for pictures of one colour with 10 classes."""
    begin = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), Residual(8), nn.MaxPool2d(2), Residual(8))
    return nn.Sequential(*begin, nn.Flatten(), nn.Linear(8 * (side // 2) ** 2, 10))


def recovered(estimate: Array, truth: Array) -> float:
    """Return the share of true rows (m, features) that lie within `WITHIN` of a row of the estimate (k, features)."""
    distance = np.linalg.norm(truth[:, None] - estimate[None], axis=2) / np.linalg.norm(truth, axis=1)[:, None]
    return float((distance.min(axis=1) < WITHIN).mean())


def measure(cell: Cell, seed: int) -> dict[str, Any]:
    """Run one seed of a cell."""
    prepared = rows_each(cell.rows)(load(cell.data), cell.clients, seed)
    model = cell.model(int(prepared.public.features**0.5))
    algorithm = cell.method(problem=model, learning_rate=RATE, **cell.settings)
    attack = cell.attack
    if cell.informed:
        means = prepared.test.x.mean(axis=1)
        told = {"brightness": (float(means.mean()), float(means.std()))}
        kernels = isinstance(attack, ClientKernels)
        attack = replace(attack, traps=replace(attack.traps, **told)) if kernels else replace(attack, **told)
    defence, alone = SUMS[cell.defence](), cell.defence == "in the clear"
    started = time.process_time()
    run = DeviatingServer(
        algorithm, prepared.clients, defence, attack, alone=alone, seed=seed, public=prepared.public
    ).deceive()
    found = {"rounds": len(run.broadcasts), "seconds": time.process_time() - started, "refused": run.refused}
    if run.estimate is not None:
        members = sorted(run.estimate.members or ())
        truth = np.concatenate([prepared.clients[client].x for client in members])
        single = run.estimate.diagnostics["single rows"]
        surely = recovered(truth, run.estimate.value[:single]) if single else None
        whose = run.estimate.diagnostics.get("clients")
        if whose is not None:  # rows recovered among those that are said to be the client's
            by_client = [run.estimate.value[np.equal(whose, client)] for client in members]
            own = [recovered(rows, prepared.clients[client].x) for client, rows in zip(members, by_client, strict=True)]
            found["own"] = float(np.average(own, weights=[prepared.clients[client].rows for client in members]))
        found |= {"share": recovered(run.estimate.value, truth), "single": single, "right": surely, "rows": len(truth)}
    return found | (_signs(algorithm, prepared, run, seed) if cell.clients == SHOWN else {})


def _signs(algorithm: Any, prepared: Prepared, run: ActiveRun, seed: int) -> dict[str, Any]:
    """Compare the first chosen broadcast with the initial model, beside what honest rounds change."""
    honest = Federation(algorithm, prepared.clients, chain(), seed=seed, public=prepared.public).run(HONEST_ROUNDS)
    sent = [*(record.broadcast for record in honest.transcript.records), honest.output]
    usual = [broadcast_signs(after, before) for before, after in pairwise(sent)]
    chosen = broadcast_signs(run.broadcasts[min(1, len(run.broadcasts) - 1)], run.honest)
    return {
        "change": chosen.change if np.isfinite(chosen.change) else None,
        "alike": chosen.alike,
        "largest": chosen.largest,
        "usual alike": max(sign.alike for sign in usual),
        "usual change": usual[-1].change,
        "usual largest": max(sign.largest for sign in usual),
    }


def fill(path: Path, wanted: Sequence[Any], run: Callable[[Any, int], dict[str, Any]], until: float) -> dict[str, Any]:
    """Measure the cells that a file lacks, and return all that it holds."""
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for cell in sorted(wanted, key=lambda cell: cell.clients * cell.rows):  # small ones first
        if len(stored.get(cell.name, {}).get("seeds", [])) < SEEDS and time.monotonic() < until:
            seeds = [run(cell, seed) for seed in range(SEEDS)]
            stored[cell.name] = {"seeds": seeds, "load": os.getloadavg()[0]}
            path.write_text(json.dumps(stored, indent=1) + "\n")
    return stored


def main(arguments: Sequence[str] = ()) -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further cell after so long")
    parser.add_argument("--part", choices=PARTS, help="measure one part of the cells; by default all")
    chosen = parser.parse_args(arguments or None)
    limit = time.monotonic() + chosen.seconds
    for part in [chosen.part] if chosen.part else PARTS:
        module = importlib.import_module(f"benchmarks.pages.{PARTS[part]}")
        fill(module.FILE, module.cells(), module.measure, limit)


if __name__ == "__main__":
    main()
