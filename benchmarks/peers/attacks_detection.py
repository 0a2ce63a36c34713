"""Rows of network traffic read off what detection networks send: `python -m benchmarks attacks_detection`.

FedAE, FedAE-2 and FedBiGAN on normal rows of UNSW-NB15 (SECUREFED_DATA), 39 features z-scored over all normal rows and
cut at 10 standard deviations. 3 clients, the first round, one local epoch in batches of 32 (one step, as a client holds
fewer rows) or five. A number counts as right within 5 % of its column's range over the client's rows, or of one
standard deviation where they are equal, a record where all its numbers are. The guess beside it is the median row.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from benchmarks.rows import Row, merge, row
from securefed._catalogue import algorithms
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._tensors import Array
from securefed.attacks import NetworkInversion, tabular_accuracy, views
from securefed.attacks._base import Target
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import load
from securefed.datasets.scaling import z_score

SEEDS = range(int(os.environ.get("DETECTION_SEEDS", "10")))
CLIENTS, CUT = 3, 10.0
ATTACK = NetworkInversion(restarts=2, evaluations=1200, fits=16)


@dataclass(frozen=True)
class Case:
    """One algorithm in one setting; `whole` attacks the sum of all clients."""

    algorithm: str
    rows: int
    epochs: int = 1
    whole: bool = False

    def __str__(self) -> str:
        steps = "1 local step" if self.epochs == 1 else f"{self.epochs} local steps"
        seen = f"sum of {CLIENTS} clients" if self.whole else "one client's message"
        return f"{self.algorithm}, {steps}, n_i={self.rows}, {seen}"


CASES = (
    *(Case("detection/fedae", rows) for rows in (1, 2, 4, 8)),
    Case("detection/fedae", 4, epochs=5),
    Case("detection/fedae", 1, whole=True),
    *(Case("detection/fedae-2", rows) for rows in (1, 4)),
    *(Case("detection/fedbigan", rows) for rows in (1, 4)),
)


@cache
def traffic() -> tuple[Array, Array]:
    """Normal rows (rows, 39), and their median."""
    data = load("unsw_nb15").data
    normal = Dataset(data.x[data.labels() == 0])
    x = np.clip(z_score(normal)(normal).x, -CUT, CUT)
    return x, np.median(x, axis=0)


def attack(case: Case, seed: int) -> dict[str, float]:
    """Shares of features and of records, for the attack and for the guess; the misfit, and CPU seconds."""
    x, middle = traffic()
    chosen = np.random.default_rng(seed).choice(len(x), CLIENTS * case.rows, replace=False)
    clients = [Dataset(x[part]) for part in np.split(chosen, CLIENTS)]
    public = Public.of(clients, feature_bound=CUT)
    method = algorithms.make(case.algorithm, local_epochs=case.epochs)
    transcript = Federation(method, clients, seed=seed, public=public).run(1).transcript
    observed = (views.sum_only if case.whole else views.server)(transcript, 0)
    truth = x[chosen] if case.whole else clients[0].x
    start = time.process_time()
    found = ATTACK.run(observed, Target(method, public), np.random.default_rng(seed))
    took = time.process_time() - start
    features, records = tabular_accuracy(found.value, truth)
    blank, none = tabular_accuracy(np.broadcast_to(middle, truth.shape), truth)
    return {
        "features": float(features.mean()), "records": records, "residual": float(found.residual), "seconds": took,
        "guessed features": float(blank.mean()), "guessed records": none,
    }  # fmt: skip


def main() -> None:
    """Measure and write `results/attacks_detection.json`, case by case."""
    torch.set_num_threads(1)
    for case in CASES:
        rows: list[Row] = []
        cells = [attack(case, seed) for seed in SEEDS]
        of = {name: [cell[name] for cell in cells] for name in cells[0]}
        setting = f"{case}, UNSW-NB15, {len(cells)} seeds"
        for quantity, name in (("features right", "features"), ("full records right", "records")):
            mean, guess = float(np.mean(of[name])), float(np.mean(of[f"guessed {name}"]))
            spread = (min(of[name]), max(of[name]))
            rows.append(Row(quantity, setting, mean, "share", len(cells), spread, guess, "median row"))
            print(f"{quantity:20} {setting:70} {mean:5.2f} {spread} guess {guess:.2f}", flush=True)
        rows += [row("misfit", setting, of["residual"], ""), row("CPU time of an attack", setting, of["seconds"], "s")]
        merge("attacks_detection", rows)


if __name__ == "__main__":
    sys.exit(main())
