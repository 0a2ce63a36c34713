"""A batch of eight behind softmax regression: rows recovered, and in what time. `python -m benchmarks attacks_batch`.

d = 64, C = 10, digits, labels unknown. From a start of zeros all rows of one class pull alike, so that one gradient
holds their mean only: rank says so, and rows alone in their class are all that can be had. One gradient at random
weights, or further rounds, hold the rows apart.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.rows import Row, row, write
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed.algorithms._optimization import DSGD
from securefed.attacks import views
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks._gradient_inversion import SampleFit
from securefed.attacks._gradient_inversion.multistart_search import MultiStartSearch
from securefed.attacks.scores import match
from securefed.datasets._base import Dataset

SEEDS = range(10)
ROWS, SECONDS = 8, 5.0
RECOVERED = 1e-3
"""Largest error of a pixel of a row that counts as recovered; pixels lie in [0, 1]."""
METHOD = DSGD(learning_rate=1.0)
ATTACK = SampleFit(search=MultiStartSearch(budget=2500))
"""The audit's own budget of 300 Jacobians need not last until the right counts of labels are tried."""


def main() -> None:
    """Measure and write `results/attacks_batch.json`."""
    rows: list[Row] = []
    cases = {
        "one gradient at torch's default weights": lambda seed: at_random(seed, 1 / 8),
        "one gradient at weights U(-.5, .5)": lambda seed: at_random(seed, 0.5),
        "2 rounds from zeros, step 1": lambda seed: _rounds(seed, 2),
        "4 rounds from zeros, step 1": lambda seed: _rounds(seed, 4),
        "one gradient at zeros": lambda seed: _rounds(seed, 1),
    }
    for name, observe in cases.items():
        found, took = zip(*(attacked(*observe(seed), seed) for seed in SEEDS), strict=True)
        setting = f"softmax, d=64, C=10, {name}, labels unknown"
        asked = name != "one gradient at zeros"
        rows += [
            row(
                "rows of 8 recovered", setting, found, "rows",
                target="8" if asked else None, met=float(np.median(found)) == ROWS if asked else None,
            ),
            row(
                "CPU time of that attack", setting, took, "s",
                target=f"<= {SECONDS:g} s" if asked else None, met=float(np.median(took)) <= SECONDS if asked else None,
            ),
        ]  # fmt: skip
        print(f"{name:34} rows {sorted(found)}  seconds {min(took):.2f} to {max(took):.2f}")
    print(write("attacks_batch", rows))


def _data(seed: int) -> tuple[list[Dataset], Public]:
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.data))[: 3 * ROWS]
    clients = [Dataset(data.data[part] / 16, data.target[part]) for part in np.split(order, 3)]
    return clients, Public(3, 3, 64, (ROWS,) * 3, 10, 1.0)


def _rounds(seed: int, rounds: int) -> tuple[View, Public, Dataset]:
    clients, public = _data(seed)
    transcript = Federation(METHOD, clients, seed=seed, public=public).run(rounds).transcript
    return views.server(transcript, 0), public, clients[0]


def at_random(seed: int, largest: float) -> tuple[View, Public, Dataset]:
    """One message of client 0, computed from weights and biases in [-largest, largest]."""
    clients, public = _data(seed)
    rng = np.random.default_rng([seed, 1])
    zeros = METHOD.broadcast(METHOD.start(public, rng))
    point = {name: rng.uniform(-largest, largest, value.shape) for name, value in zeros.items()}
    _, message = METHOD.contribute(METHOD.enroll(clients[0], public, rng), point, rng)
    one = frozenset({0})
    return View("server", 0, (RoundView(0, point, message, one, one),), point), public, clients[0]


def attacked(observed: View, public: Public, truth: Dataset, seed: int) -> tuple[float, float]:
    """Rows recovered, and processor seconds."""
    start = time.process_time()
    found = ATTACK.run(observed, Target(METHOD, public), np.random.default_rng(seed))
    took = time.process_time() - start
    error = np.abs(match(found.value, truth.x) - truth.x).max(axis=1)
    return float((error < RECOVERED).sum()), took


if __name__ == "__main__":
    main()
