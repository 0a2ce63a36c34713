"""Run of subspace iteration whose messages the ledger's `faps/figure1` attacks (faps section 1.1, figure 1a).

n = 1000 features, m = 10000 samples, p = 100 components; the paper names no number of clients: 10.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
TARGET = 1e-5


def observe(x: Array, seed: int, count: int = ROUNDS) -> tuple[View, Target]:
    """Client 0's messages of a plain run over so many rounds."""
    clients = [Dataset(part) for part in np.array_split(x, CLIENTS)]
    algorithm, public = SSI(RANK), Public.of(clients)
    rng = np.random.default_rng(seed)
    server = algorithm.start(public, rng)
    states = [algorithm.enroll(data, public, rng) for data in clients]
    rounds = []
    everybody = tuple(range(CLIENTS))
    for number in range(count):
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
    counts: tuple[int, ...],
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
