"""Measure how many pictures trap weights read through the convolutions and maximum pooling of `cnn` on MNIST.

    python -m benchmarks.pages.active_convolutions

Writes `results/active_convolutions.json`, whose figures stand in docs/attacks-active.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.pages.active import RATE, SEEDS, recovered
from benchmarks.rows import RESULTS
from securefed import DeviatingServer, chain
from securefed._auditing.cases.data_splits import rows_each
from securefed.algorithms import FedAvg
from securefed.attacks import TrapWeights
from securefed.attacks._active.chosen_broadcasts import Situation
from securefed.attacks._active.simulated_client import SimulatedClient
from securefed.attacks._active.trap_network import DenseChain, layer_inputs
from securefed.attacks._base import Target
from securefed.datasets import load
from securefed.defenses import clip, local_gaussian, quantise
from securefed.problems import problems

CLIENTS = 8
CELLS: Mapping[str, Callable[[], Any]] = {
    "sums": lambda: chain(quantise()),
    "clip 1, noise 0.1": lambda: chain(clip(1.0), local_gaussian(0.1)),
}


def measure(defence: Any, seed: int) -> dict[str, float]:
    """Run one seed: shares of pictures and of their pooled forms that are read, and of single ones that are right."""
    prepared = rows_each(1)(load("mnist"), CLIENTS, seed)
    method = FedAvg(problem=problems.make("cnn"), learning_rate=RATE, local_steps=1)
    attack, public = TrapWeights(), prepared.public
    run = DeviatingServer(method, prepared.clients, defence, attack, seed=seed, public=public).deceive()
    client = SimulatedClient(Situation(Target(method, public), run.honest, 0, frozenset(range(CLIENTS))))
    layers = DenseChain.of(method.problem.shapes(public), public.features, public.classes)
    assert layers is not None
    assert run.estimate is not None
    inputs = layer_inputs(client, layers, client.model.parameters(run.honest))
    assert inputs is not None
    truth = np.concatenate([own.x for own in prepared.clients])
    pooled, read = (np.stack([inputs.of(row) for row in rows]) for rows in (truth, run.estimate.value))
    single = int(run.estimate.diagnostics["single rows"])
    found = {"pictures": recovered(run.estimate.value, truth), "pooled": recovered(read, pooled), "single": single}
    return found | ({"right": recovered(pooled, read[:single])} if single else {})


def main() -> None:
    """Measure all cells."""
    out = {}
    for name, defence in CELLS.items():
        out[name] = {"seeds": [measure(defence(), seed) for seed in range(SEEDS)], "load": os.getloadavg()[0]}
        for key in ("pictures", "pooled", "single", "right"):
            values = [seed[key] for seed in out[name]["seeds"] if key in seed]
            print(
                name, key, np.median(values) if values else None, min(values, default=None), max(values, default=None)
            )
        (RESULTS / "active_convolutions.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
