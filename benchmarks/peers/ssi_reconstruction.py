"""How fast does subspace iteration give a client's Gram matrix away? (faps section 1.1, figure 1a)

One client's messages of a run with n = 1000 features, m = 10000 samples, p = 100 components; the paper names no
number of clients and no distribution: 10 clients, and entries uniform in [-1, 1] or standard normal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.rows import Row, row, write
from securefed._messages import Aggregate
from securefed._public import Public
from securefed._tensors import Array, add
from securefed.algorithms._pca import SSI
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks._gram import PowerGram
from securefed.attacks._gram.linear import ESTIMATORS, Estimator
from securefed.attacks.scores import relative_error
from securefed.datasets._base import Dataset

FEATURES, SAMPLES, RANK, CLIENTS, ROUNDS = 1000, 10000, 100, 10, 15
COUNTED = (1, 2, 4, 6, 8, 9, 10, 11, 12, 15)
TARGET, WITHIN = 1e-5, 12
REFERENCE = {10: 1.3e-4, 11: 2.7e-6, 15: 1.2e-7}
"""Errors of the reference attack (one run)."""


def observe(x: Array, seed: int) -> tuple[View, Target]:
    """Client 0's messages of a plain run over `ROUNDS` rounds."""
    clients = [Dataset(part) for part in np.array_split(x, CLIENTS)]
    algorithm, public = SSI(RANK), Public.of(clients)
    rng = np.random.default_rng(seed)
    server = algorithm.start(public, rng)
    states = [algorithm.enroll(data, public, rng) for data in clients]
    rounds = []
    everybody = tuple(range(CLIENTS))
    for number in range(ROUNDS):
        broadcast = algorithm.broadcast(server)
        first, *others = (algorithm.contribute(state, broadcast, rng)[1] for state in states)
        rounds.append(RoundView(number, broadcast, first, frozenset({0}), frozenset(everybody)))
        total = first
        for other in others:
            total = add(total, other)
        server = algorithm.combine(server, Aggregate(total, everybody))
    return View("server", 0, tuple(rounds), algorithm.broadcast(server)), Target(algorithm, public)


def curve(
    observed: View,
    target: Target,
    truth: Array,
    counts: tuple[int, ...] = COUNTED,
    estimators: Sequence[Estimator] = ESTIMATORS,
) -> dict[str, list[float]]:
    """Relative error of each estimator after each number of rounds."""
    rng = np.random.default_rng(0)
    out: dict[str, list[float]] = {}
    for estimator in estimators:
        attack = PowerGram(estimator)
        views = (View(observed.view, 0, observed.rounds[:count], observed.output) for count in counts)
        out[estimator] = [relative_error(attack.run(view, target, rng).value, truth) for view in views]
    return out


def main() -> None:
    rows: list[Row] = []
    for name in ("uniform", "normal"):
        rng = np.random.default_rng(0)
        shape = (SAMPLES, FEATURES)
        x = rng.uniform(-1, 1, shape) if name == "uniform" else rng.normal(size=shape)
        observed, target = observe(x, seed=1)
        own = x[: SAMPLES // CLIENTS]
        start = time.perf_counter()
        errors = curve(observed, target, own.T @ own)
        print(f"{name} entries, {time.perf_counter() - start:.0f} s for {len(COUNTED)} x {len(errors)} attacks")
        print("rounds       " + " ".join(f"{count:8d}" for count in COUNTED))
        for estimator, values in errors.items():
            print(f"{estimator:12s} " + " ".join(f"{value:8.1e}" for value in values))
        rows += _rows(name, errors)
    write("ssi_reconstruction", rows)


def _rows(name: str, errors: dict[str, list[float]]) -> list[Row]:
    setting = f"n={FEATURES}, m={SAMPLES}, p={RANK}, {CLIENTS} clients, {name} entries"
    rows = []
    for estimator, values in errors.items():
        for count, value in zip(COUNTED, values, strict=True):
            strongest, counts = estimator == "psd", count == WITHIN
            rows.append(
                row(
                    f"relative error of S_1 after {count} rounds of SSI, {estimator}",
                    setting,
                    [value],
                    "relative Frobenius error",
                    peer=REFERENCE.get(count) if strongest else None,
                    peer_name="reference attack" if strongest and count in REFERENCE else None,
                    target=f"<= {TARGET:g} by round {WITHIN}" if strongest and counts else None,
                    met=value <= TARGET if strongest and counts else None,
                )
            )
    return rows


if __name__ == "__main__":
    main()
