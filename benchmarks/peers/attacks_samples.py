"""Samples, personal models and distances: errors of the attacks over ten seeds.

`python -m benchmarks attacks_samples`. Errors are relative (Frobenius, rows matched); a target is held against the
median.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.rows import Row, merge, row, write
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed.algorithms import _personalized as personalized
from securefed.algorithms._graph import PPGL
from securefed.algorithms._optimization import (
    DSGD,
    L1,
    CompositeFedADMM,
    FedAvg,
    FedCM,
    FedProx,
    FedSaga,
    LoSAC,
    LoSACProx,
    MimeSVRG,
    Scaffold,
    ScaffoldProx,
)
from securefed.attacks import views
from securefed.attacks._base import Attack, Target
from securefed.attacks._distances import DistanceFit as Distances
from securefed.attacks._gradient_inversion import SampleFit, TelescopingFit
from securefed.attacks._personal import ADMMRecursion
from securefed.attacks.scores import relative_error, sample_error
from securefed.datasets._base import Dataset
from securefed.datasets._graphs import related_graphs, smooth_signals
from securefed.problems import LogisticRegression

SEEDS = range(10)
STOCHASTIC: dict[str, Any] = {
    "DSGD": DSGD(),
    "FedAvg": FedAvg(),
    "SCAFFOLD": Scaffold(),
    "LoSAC": LoSAC(learning_rate=0.02),
    "FedSaga": FedSaga(learning_rate=0.02),
    "MimeSVRG": MimeSVRG(),
    "FedCM": FedCM(),
    "FedProx": FedProx(),
    "FedADMM": CompositeFedADMM(learning_rate=0.05),
    "pFedMe": personalized.PFedMe(learning_rate=0.02, local_steps=2, inner_steps=3),
    "FedADMM (FLAME's)": personalized.FedADMM(learning_rate=0.02, penalty=0.5),
    "Ditto": personalized.Ditto(learning_rate=0.02),
}
PROXIMAL = {
    "LoSAC-Prox, T = 1": LoSACProx(learning_rate=0.05, local_steps=1, regulariser=L1(0.01)),
    "SCAFFOLD-Prox, option I": ScaffoldProx(option="I", regulariser=L1(0.01)),
}
FLAME, FLAME_LONG = personalized.FLAME(learning_rate=0.02), personalized.FLAME(learning_rate=0.1)
DRAWN: dict[str, tuple[Any, int, str]] = {
    "DSGD, drawn 2 of 4": (DSGD(batch_size=2), 4, "batches of 2 of 4 rows"),
    "DSGD, drawn 4 of 8": (DSGD(batch_size=4), 8, "batches of 4 of 8 rows"),
    "FedAvg, drawn 2 of 4": (FedAvg(batch_size=2), 4, "batches of 2 of 4 rows, T = 5"),
    "SCAFFOLD, drawn 2 of 4": (Scaffold(batch_size=2), 4, "batches of 2 of 4 rows, T = 5"),
    "LoSAC, drawn 1 of 2": (LoSAC(learning_rate=0.02, blocks=2), 2, "M = 2 blocks of 1 row, T = 5"),
    "LoSAC, drawn 1 of 3": (LoSAC(learning_rate=0.02, blocks=3), 3, "M = 3 blocks of 1 row, T = 5"),
}
"""Methods whose local steps draw their rows: the method, rows of a client, in words."""
SUMS = ((1, 10, 2, 2), (1, 10, 3, 4), (1, 7, 4, 8), (5, 10, 2, 4), (5, 7, 3, 8))
"""Sums of PPGL: local steps, vertices, clients, starts."""


def digits(
    method: Any, rows: int, rounds: int, seed: int, dtype: type = np.float64
) -> tuple[Federation, list[Dataset]]:
    """Four clients with `rows` digits each, pixels in [0, 1]; labels 0-4 against 5-9 for logistic regression."""
    data, binary = load_digits(), isinstance(method.problem, LogisticRegression)
    labels = (data.target >= 5).astype(int) if binary else data.target
    order = np.random.default_rng(seed).permutation(len(data.data))[: 4 * rows]
    clients = [Dataset(data.data[part] / 16, labels[part]) for part in np.split(order, 4)]
    public = Public(4, 4, 64, (rows,) * 4, 2 if binary else 10, 1.0)
    federation = Federation(method, clients, seed=seed, public=public)
    federation.run(rounds)
    return federation, clients


def samples(attack: Attack, method: Any, rows: int, rounds: int, seeds: Iterable[int] = SEEDS) -> list[float]:
    """Error of client 1's rows, seen by the server in the clear, by seed."""
    errors = []
    for seed in seeds:
        federation, clients = digits(method, rows, rounds, seed)
        observed = views.server(federation.transcript, 1)
        found = attack.run(observed, Target(method, federation.public), np.random.default_rng(seed))
        errors.append(sample_error(found.value, clients[1].x))
    return errors


def personal(seeds: Iterable[int] = SEEDS) -> list[float]:
    """Error of theta_1 by the recursion, clients of 20 rows."""
    errors = []
    for seed in seeds:
        federation, _ = digits(FLAME, 20, 10, seed)
        observed = views.server(federation.transcript, 1)
        found = ADMMRecursion().run(observed, Target(FLAME, federation.public), np.random.default_rng(0))
        errors.append(relative_error(found.value[0], federation.nodes[1].state.committed.memory[0]))
    return errors


def graphs(
    steps: int,
    vertices: int,
    rounds: int,
    *,
    pooled: bool,
    members: int = 2,
    starts: int = 6,
    seeds: Iterable[int] = SEEDS,
) -> list[float]:
    """Error of client 0's mean squared distances, of clients with 100 smooth signals each."""
    errors = []
    for seed in seeds:
        rng, method = np.random.default_rng(seed), PPGL(local_steps=steps)
        clients = [smooth_signals(one, 100, rng) for one in related_graphs(members, 0.5, rng, vertices=vertices).graphs]
        federation = Federation(method, clients, seed=seed)
        transcript = federation.run(rounds).transcript
        observed = views.sum_only(transcript, None) if pooled else views.server(transcript, 0)
        found = Distances(starts=starts).run(observed, Target(method, federation.public), np.random.default_rng(seed))
        blocks, x = found.value.reshape(-1, vertices, vertices), clients[0].x
        truth = ((x[:, :, None] - x[:, None, :]) ** 2).mean(axis=0)
        errors.append(min(relative_error(block, truth) for block in blocks))
    return errors


def sums(steps: int, vertices: int, members: int, starts: int) -> list[float]:
    """Error of client 0's distances from 14 rounds of sums."""
    return graphs(steps, vertices, 14, pooled=True, members=members, starts=starts)


LARGE = LoSAC(problem=LogisticRegression(), learning_rate=1.0, local_steps=1)
SMALL = LoSAC(problem=LogisticRegression(), learning_rate=0.05, local_steps=1)
Entry = tuple[str, str, Callable[[], Sequence[float]], float | None]
"""Quantity, setting, what measures it, and the limit of the median."""


def entries() -> list[Entry]:
    """All lines of the table, in its order."""
    flame, losac, ppgl = "FLAME: rows, all rounds jointly", "LoSAC: rows, telescoping", "PPGL: distances"
    of_sum = "PPGL: client 0 of the sum"
    out: list[Entry] = [
        ("FLAME: theta_i by recursion", "softmax, digits, n_i = 20, H = 5, 10 rounds", personal, 1e-16),
        *((flame, f"n_i = {n}, H = 5, 8 rounds", partial(samples, SampleFit(), FLAME, n, 8), 1e-14) for n in (4, 8)),
    ]
    for count, limit in ((1, 1e-14), (3, None)):
        setting = f"softmax, digits, n_i = {count}, labels unknown, 8 rounds"
        for name, method in STOCHASTIC.items():
            out.append((f"{name}: rows", setting, partial(samples, SampleFit(), method, count, 8), limit))
    for name, method in PROXIMAL.items():
        out.append((f"{name}: rows", setting, partial(samples, TelescopingFit(), method, 3, 8), None))
    for setting, method, count, rounds, limit in (
        ("logistic, n_i = 3, T = 1, labels unknown, 12 rounds", SMALL, 3, 12, 4e-14),
        ("logistic, n_i = 5, T = 1, step 1, 24 rounds", LARGE, 5, 24, 6e-14),
    ):
        out.append((losac, setting, partial(samples, TelescopingFit(), method, count, rounds), limit))
    for steps, rounds, said in ((1, 1, "1 round"), (5, 2, "2 rounds")):
        setting = f"d = 20, N = 2, K = {steps}, {said}, in the clear"
        out.append((ppgl, setting, partial(graphs, steps, 20, rounds, pooled=False), 1e-15))
    for steps, limit in ((1, 1.4e-12), (5, None)):
        setting = f"d = 10, N = 2, K = {steps}, 6 rounds"
        out.append((of_sum, setting, partial(graphs, steps, 10, 6, pooled=True), limit))
    jointly, telescoped = SampleFit(rounds=30), TelescopingFit(rounds=40)
    out += [
        (flame, "n_i = 8, H = 5, step 0.1, 30 rounds", partial(samples, jointly, FLAME_LONG, 8, 30), 1e-14),
        (losac, "logistic, n_i = 10, T = 1, step 1, 40 rounds", partial(samples, telescoped, LARGE, 10, 40), None),
    ]
    for name, (method, count, setting) in DRAWN.items():
        measure = partial(samples, SampleFit(), method, count, 20)
        out.append((f"{name}: rows", f"{setting}, 20 rounds", measure, None))
    for steps, vertices, members, starts in SUMS:
        setting = f"d = {vertices}, N = {members}, K = {steps}, 14 rounds, {starts} starts"
        out.append((of_sum, setting, partial(sums, steps, vertices, members, starts), None))
    return out


def main(chosen: str = "") -> None:
    """Measure every line whose quantity or setting holds the word, and write `results/attacks_samples.json`."""
    rows: list[Row] = []
    for quantity, setting, measure, limit in entries():
        if chosen not in quantity + setting:
            continue
        errors = measure()
        met = None if limit is None else bool(np.median(errors) <= limit)
        target = None if limit is None else f"median <= {limit:g}"
        rows.append(row(quantity, setting, errors, "relative error", target=target, met=met))
        low, high = rows[-1].spread
        print(
            f"{quantity:36s} {setting:52s} median {rows[-1].ours:.1e}  ({low:.1e} to {high:.1e})  {target or ''} {met}"
        )
        (merge if chosen else write)("attacks_samples", rows)


if __name__ == "__main__":
    main()
