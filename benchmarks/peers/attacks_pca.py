"""How much of a client's Gram matrix do the subspace methods give away? Medians and ranges over ten seeds.

Clients of digits, as in the audit: client 0 holds a few rows, seven others share the rest. Smaller federations of even
shares show what single clients of many rows, and sums over few clients, give away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.rows import Row, merge, row
from securefed._public import Public
from securefed._runtime.federation import Federation
from securefed._tensors import Array
from securefed.algorithms._base import Algorithm
from securefed.algorithms._pca import FAPS, FedPE, FedPG, LocalPower
from securefed.attacks import views
from securefed.attacks._base import Attack, Target
from securefed.attacks._duals import FedPEDuals, JointDuals
from securefed.attacks._gram import ConsensusGram, JointGram, LocalPowerGram
from securefed.attacks.scores import relative_error
from securefed.datasets import partition
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import LoadedDataset, load
from securefed.defenses._chain import chain

SEEDS = 10
CLIENTS = 8
EXACT = 1e-6
Split = Callable[[LoadedDataset, np.random.Generator], list[Dataset]]


def small_client(rows: int, source: LoadedDataset, rng: np.random.Generator) -> list[Dataset]:
    """All columns; client 0 holds `rows` rows, seven others share the rest."""
    return partition.one_small(source.data, CLIENTS, rows, rng)


def even(features: int, clients: int, kind: str, source: LoadedDataset, rng: np.random.Generator) -> list[Dataset]:
    """Columns of highest variance, even shares: random (`iid`), by label (`sorted`), or z-scored by each client."""
    x, y = source.data.x, source.data.labels()
    columns = np.sort(np.argsort(-x.var(axis=0), kind="stable")[:features])
    order = np.argsort(y, kind="stable") if kind == "sorted" else rng.permutation(len(x))
    parts = [x[rows][:, columns] for rows in np.array_split(order, clients)]
    if kind == "z-scored":
        parts = [(part - part.mean(axis=0)) / np.where(part.std(axis=0) > 0, part.std(axis=0), 1) for part in parts]
    return [Dataset(part) for part in parts]


@dataclass(frozen=True)
class Setting:
    """One federation and what is tried on it.

    Attributes:
        quantity, words: for the table.      split: data of the clients.      rounds: seen.
        sums: whether only everybody's sum is seen; the error is then the worst client's, each compared with the nearest
            of the matrices found, and FedPG's and FedPE's are compared per row.
        seeds: which.
    """

    quantity: str
    words: str
    split: Split
    algorithm: Algorithm[Any, Any]
    attack: Attack
    rounds: int
    sums: bool = False
    seeds: Sequence[int] = range(SEEDS)

    def measure(self, seed: int) -> tuple[float, float]:
        """Relative error of the target's Gram matrix, and processor seconds of the attack."""
        source = _source()
        clients = self.split(source, np.random.default_rng([seed, 0xDA7A]))
        bound = max(float(np.abs(data.x).max()) for data in clients)
        public = Public.of(clients, feature_bound=max(bound, source.feature_bound))
        transcript = Federation(self.algorithm, clients, chain(), seed=seed, public=public).run(self.rounds).transcript
        observed = views.sum_only(transcript, 0) if self.sums else views.server(transcript, 0)
        start = time.process_time()
        found = self.attack.run(observed, Target(self.algorithm, public), np.random.default_rng(seed))
        seconds = time.process_time() - start
        if not self.sums:
            return relative_error(found.value, _gram(clients[0])), seconds
        scaled = isinstance(self.algorithm, FedPG | FedPE)
        truths = [_gram(data) / (data.rows if scaled else 1) for data in clients]
        return max(min(relative_error(g, S) for g in found.diagnostics["clients"]) for S in truths), seconds


def _gram(data: Dataset) -> Array:
    return np.asarray(data.x.T @ data.x)


@cache
def _source() -> LoadedDataset:
    return load("digits")


def _setting(
    quantity: str, words: str, split: Split, algorithm: Algorithm[Any, Any], attack: Attack, rounds: int
) -> Setting:
    """A setting whose words begin with the data and end with the rounds; sums are attacked by the joint fits."""
    sums = isinstance(attack, JointGram | JointDuals)
    said = f"{quantity}, sums alone, worst client" if sums else quantity
    return Setting(said, f"digits, {words}, {rounds} rounds", split, algorithm, attack, rounds, sums)


def _few_rows(rows: int, inner_steps: int | None, rounds: int) -> Setting:
    rule = "adaptive rule" if inner_steps is None else f"J = {inner_steps}"
    split, method = partial(small_client, rows), FAPS(5, inner_steps=inner_steps)
    return _setting("FAPS, one client's messages", f"m = {rows}, p = 5, {rule}", split, method, ConsensusGram(), rounds)


def _by_round(quantity: str, method: FAPS, features: int, rounds: int, kind: str) -> Setting:
    words, split = f"n = {features}, N = 5, {kind}, p = {method.rank}", partial(even, features, 5, kind)
    return _setting(f"{quantity}, round by round", words, split, method, ConsensusGram(fit_unknowns=0), rounds)


def _one_step(features: int, rank: int, rounds: int, kind: str) -> Setting:
    return _by_round("FAPS of one inner step", FAPS(rank, inner_steps=1), features, rounds, kind)


def _solved(features: int, rank: int, rounds: int, kind: str) -> Setting:
    method = FAPS(rank, inner_tolerance=1e-10, inner_cap=5000)
    return _by_round("FAPS with solved subproblems", method, features, rounds, kind)


def _power(steps: int, words: str, split: Split, rank: int, rounds: int) -> Setting:
    method, quantity = LocalPower(rank, local_steps=(steps,)), "LocalPower of constant q, one client's messages"
    return _setting(quantity, f"{words}, p = {rank}, q = {steps}", split, method, LocalPowerGram(), rounds)


def _few_power(steps: int, rows: int) -> Setting:
    return _power(steps, f"m = {rows}", partial(small_client, rows), 5, 10)


def _full_power(steps: int) -> Setting:
    return _power(steps, "n = 20, N = 5, iid", partial(even, 20, 5, "iid"), 3, 12)


def _fedpe(local_steps: int, rounds: int) -> Setting:
    method = FedPE(3, rho=1.0, step_size=0.01, local_steps=local_steps)
    words, split = f"n = 20, N = 5, z-scored, p = 3, C = {local_steps}", partial(even, 20, 5, "z-scored")
    return _setting("FedPE, one client's messages", words, split, method, FedPEDuals(), rounds)


def _faps_sums(features: int, clients: int) -> Setting:
    words, split = f"n = {features}, N = {clients}, iid, p = 2", partial(even, features, clients, "iid")
    return _setting("FAPS of one inner step", words, split, FAPS(2, inner_steps=1), JointGram(), 11)


def _fedpg_sums(features: int, clients: int, rounds: int) -> Setting:
    words, split = f"n = {features}, N = {clients}, z-scored, p = 2", partial(even, features, clients, "z-scored")
    method = FedPG(2, step_size=0.05, local_steps=5)
    return _setting("FedPG", f"{words}, C = 5, step .05", split, method, JointDuals(), rounds)


SETTINGS = (
    _few_rows(8, None, 10),
    _few_rows(8, None, 3),
    _few_rows(8, 1, 10),
    _few_rows(8, 3, 10),
    _few_rows(4, None, 10),
    _one_step(36, 5, 10, "iid"),
    _one_step(36, 5, 10, "sorted"),
    _one_step(64, 5, 20, "iid"),
    _solved(20, 3, 12, "iid"),
    _solved(20, 3, 12, "sorted"),
    _solved(36, 4, 16, "iid"),
    _few_power(2, 8),
    _few_power(4, 8),
    _few_power(4, 3),
    _full_power(2),
    _full_power(4),
    _fedpe(1, 13),
    _fedpe(10, 22),
    _fedpg_sums(6, 2, 12),
    _fedpg_sums(8, 3, 25),
    _faps_sums(6, 2),
    _faps_sums(8, 2),
    _faps_sums(6, 3),
)


def main(settings: Sequence[Setting] = SETTINGS) -> None:
    rows: list[Row] = []
    for setting in settings:
        results = [setting.measure(seed) for seed in setting.seeds]
        rows += _rows(setting, [error for error, _ in results], [seconds for _, seconds in results])
        error, exact, seconds = rows[-3:]
        spread = f"{error.ours:.0e} ({error.spread[0]:.0e} to {error.spread[1]:.0e})"
        print(
            f"{setting.quantity}, {setting.words}: {exact.ours:.0f} exact, {spread}, {seconds.ours:.2f} s", flush=True
        )
    merge("attacks_pca", rows)


def _rows(setting: Setting, errors: Sequence[float], seconds: Sequence[float]) -> list[Row]:
    exact, runs = float(sum(error < EXACT for error in errors)), len(errors)
    name = setting.quantity
    return [
        row(f"{name}: relative error", setting.words, errors, "relative Frobenius error"),
        Row(f"{name}: seeds below {EXACT:g}", setting.words, exact, f"of {runs}", runs, (exact, exact)),
        row(f"{name}: time of the attack", setting.words, seconds, "processor s"),
    ]


if __name__ == "__main__":
    main()
