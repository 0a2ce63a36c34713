"""Measure how much of one client a server reads from the sum of its group: `python -m benchmarks.pages.group_sums`.

Digits dealt to 20 clients with skewed labels, subspace iteration, 12 rounds under `grouped` with 5 groups of 4, and
under one secure sum. The audit's attack `gram/power` runs on the audit's own views: the sum over all 20, that of the
target's group, and the latter less what colluding members of the group sent. It reads the Gram matrix of the members of
a view exactly; the client's own is estimated by its share. Rows hold the relative error of that estimate: the median,
the lowest and the highest over 3 seeds and 5 targets each.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rows import Row, row, write
from securefed import Dataset, Federation, Public
from securefed._catalogue import attacks
from securefed._messages import Transcript
from securefed.algorithms import SSI
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.datasets import load, partition
from securefed.defenses import Defense, chain, grouped, secure_aggregation

CLIENTS, GROUPS, ROUNDS, SEEDS, TARGETS = 20, 5, 12, 3, 5
METHOD = SSI(rank=8, tolerance=0.0)
ALL, GROUP = "one sum of 20", "a group of 4"


def main() -> None:
    """Measure and write `results/group_sums.json`."""
    errors: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        data = partition.dirichlet(load("digits").data, CLIENTS, rng, alpha=1.0, minimum=10)
        for setting, error in _errors(data, seed):
            errors.setdefault(setting, []).append(error)
    quantity = "error of a client's Gram matrix"
    rows: list[Row] = [row(quantity, name, found, "relative") for name, found in errors.items()]
    for r in rows:
        print(f"{r.setting:30} {r.ours:.3g} ({r.spread[0]:.3g} to {r.spread[1]:.3g}), {r.runs} clients")
    print(write("group_sums", rows))


def _errors(data: list[Dataset], seed: int) -> list[tuple[str, float]]:
    """Return, by setting, the errors of all targets of one run in groups and of one run without."""
    grams, public = [own.x.T @ own.x for own in data], Public.of(data)
    in_groups = _run(data, chain(grouped(secure_aggregation(threshold=4), groups=GROUPS)), seed)
    together = _run(data, chain(secure_aggregation()), seed)
    out = []
    for target in range(TARGETS):
        others = [c for own in in_groups.records[0].sums if target in own for c in own if c != target]
        seen: dict[str, View] = {ALL: views.sum_only(together, target)}
        for colluding in range(len(others) + 1):
            name = GROUP if not colluding else f"{GROUP}, {colluding} of them collude"
            seen[name] = views.collusion(in_groups, target, others[:colluding])
        for name, view in seen.items():
            found = attacks.make("gram/power").run(view, Target(METHOD, public), np.random.default_rng(0)).value
            share = found / len(view.members)
            out.append((name, float(np.linalg.norm(share - grams[target]) / np.linalg.norm(grams[target]))))
    return out


def _run(data: list[Dataset], defense: Defense, seed: int) -> Transcript:
    return Federation(METHOD, data, defense, seed=seed).run(ROUNDS).transcript


if __name__ == "__main__":
    main()
