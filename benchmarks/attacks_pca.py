"""How much of a client's Gram matrix do the subspace methods give away? Medians and ranges over ten seeds.

Clients of digits, as in the audit: client 0 holds a few rows, seven others share the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.rows import Row, row, write
from securefed.algorithms.base import Public
from securefed.algorithms.pca import FAPS
from securefed.attacks import views
from securefed.attacks.base import Observed, Target
from securefed.attacks.gram import ConsensusGram
from securefed.attacks.scores import relative_error
from securefed.datasets import partition
from securefed.datasets.loaders import load
from securefed.defenses.compose import chain
from securefed.federation import Federation

SEEDS = 10
CLIENTS = 8
EXACT = 1e-6


@dataclass(frozen=True)
class Setting:
    """One federation: rows of the target, rank, inner steps (`None` for the adaptive rule) and rounds seen."""

    data: str
    rows: int
    rank: int
    inner_steps: int | None
    rounds: int

    def __str__(self) -> str:
        rule = "adaptive rule" if self.inner_steps is None else f"J = {self.inner_steps}"
        return f"{self.data}, m = {self.rows}, p = {self.rank}, {rule}, {self.rounds} rounds"


SETTINGS = (
    Setting("digits", 8, 5, None, 10),
    Setting("digits", 8, 5, None, 3),
    Setting("digits", 8, 5, 1, 10),
    Setting("digits", 8, 5, 3, 10),
    Setting("digits", 4, 5, None, 10),
)


def attack(setting: Setting, seed: int) -> tuple[float, float]:
    """Relative error of the target's Gram matrix, and processor seconds of the attack."""
    rng = np.random.default_rng([seed, 0xDA7A])
    source = load(setting.data)
    clients = partition.one_small(source.data, CLIENTS, setting.rows, rng)
    public = Public.of(clients, feature_bound=source.feature_bound)
    algorithm = FAPS(setting.rank, inner_steps=setting.inner_steps)
    result = Federation(algorithm, clients, chain(), seed=seed, public=public).run(setting.rounds)
    observed: Observed = views.server(result.transcript, 0)
    start = time.process_time()
    found = ConsensusGram().run(observed, Target(algorithm, public), np.random.default_rng(seed))
    seconds = time.process_time() - start
    return relative_error(found.value, clients[0].x.T @ clients[0].x), seconds


def main() -> None:
    rows: list[Row] = []
    for setting in SETTINGS:
        results = [attack(setting, seed) for seed in range(SEEDS)]
        rows += _rows(setting, [error for error, _ in results], [seconds for _, seconds in results])
        print(f"{setting}: {rows[-2].ours:.0f} of {SEEDS} exact, median {rows[-3].ours:.1e}, {rows[-1].ours:.2f} s")
    write("attacks_pca", rows)


def _rows(setting: Setting, errors: Sequence[float], seconds: Sequence[float]) -> list[Row]:
    exact = float(sum(error < EXACT for error in errors))
    name = "FAPS, one client's messages"
    return [
        row(f"{name}: relative error of S_1", str(setting), errors, "relative Frobenius error"),
        Row(f"{name}: seeds below {EXACT:g}", str(setting), exact, f"of {SEEDS}", SEEDS, (exact, exact)),
        row(f"{name}: time of the attack", str(setting), seconds, "processor s"),
    ]


if __name__ == "__main__":
    main()
