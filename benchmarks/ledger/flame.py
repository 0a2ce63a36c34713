"""What FLAME's experiments share: the clients of its section 5.1, and a run that scores both models every round.

The paper leaves open how rows are held out, how pixels are scaled and whether weights decay. These are taken from the
authors' public script: training and test rows pooled, each client's rows split 80/20, both models scored on the
client's own fifth and averaged over clients, (x - .1307) / .3081, weight decay .01, the best over the rounds reported,
float32 on MNIST.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.ledger.ledger import Curve
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Tensors
from securefed.algorithms._optimization import FedAvg, GradientMethod
from securefed.algorithms._personalized import FLAME, FedADMM, PFedMe
from securefed.datasets._base import Dataset
from securefed.datasets._images import mnist
from securefed.datasets._synthetic import linear_rules
from securefed.datasets.partition import shards, split
from securefed.problems import Problem

PAPER = "FLAME: Personalized Federated Learning via ADMM with Moreau Envelope"
LOCAL = "full participation, eta .01, batches of 100, H = 5 passes, weight decay .01"
SPLIT = "each client's rows split 80/20, accuracy averaged over the clients' own fifths"
SCRIPT = "the paper leaves open how rows are held out and scaled and whether weights decay: as in the authors' script"
ANCHOR = (
    "local steps are drawn to the broadcast w, as in the authors' code; Algorithm 1 has w_i, measured beside it. "
    + SCRIPT[0].upper()
    + SCRIPT[1:]
)
DECAY = 0.01
MEAN, DEVIATION = 0.1307, 0.3081
HELD_OUT = 0.2
ALL = 70_000
FEW = 7_000
"""Rows of MNIST in quick runs."""


@dataclass(frozen=True)
class Clients:
    """Each client's training rows, and the rows that its models are scored on."""

    train: list[Dataset]
    test: list[Dataset]

    @classmethod
    def of(cls, everyone: list[Dataset], rng: np.random.Generator) -> Clients:
        """A fifth of every client's rows is held out."""
        pairs = [split(data, HELD_OUT, rng) for data in everyone]
        return cls([train for train, _ in pairs], [test for _, test in pairs])


@dataclass(frozen=True)
class Trace:
    """Accuracies in percent after each round, averaged over clients; `personal` is empty for a method without."""

    shared: tuple[float, ...]
    personal: tuple[float, ...]

    def first(self, level: float) -> float:
        """Rounds until the shared model reaches `level` percent; the number of rounds if it never does."""
        reached = (k for k, value in enumerate(self.shared, 1) if value >= level)
        return float(next(reached, len(self.shared)))

    def curves(self, figure: str, series: str) -> tuple[Curve, ...]:
        """Both models' accuracy over the rounds."""
        rounds = tuple(float(k) for k in range(1, len(self.shared) + 1))
        axes = ("rounds", "test accuracy, %")
        kinds = {"global": self.shared} | ({"personal": self.personal} if self.personal else {})
        return tuple(Curve(figure, f"{series}, {kind}", rounds, values, *axes) for kind, values in kinds.items())


def digits(clients: int, seed: int, rows: int = ALL) -> Clients:
    """MNIST in shards of one label, two a client; `rows` of the pooled 70000, drawn at random."""
    source, rng = mnist(), np.random.default_rng([seed, 1])
    assert source.test is not None
    chosen = rng.permutation(source.data.rows + source.test.rows)[:rows]
    x = np.concatenate([source.data.x, source.test.x])[chosen]
    y = np.concatenate([source.data.labels(), source.test.labels()])[chosen]
    rows = Dataset((x - MEAN) / DEVIATION, y).single()
    return Clients.of(shards(rows, clients, rng, pure=True), rng)


def synthetic(clients: int, seed: int, rows: int = 375_000) -> Clients:
    """Synthetic(.5, .5), about `rows` in all: by default 5000 to 10000 for each of 50 clients.

    There are five sizes, so that clients of a size compute together.
    """
    rng = np.random.default_rng([seed, 2])
    sizes = np.linspace(2 / 3, 4 / 3, 5) * rows / clients
    return Clients.of(linear_rules(rng.choice(sizes.astype(int), clients), rng), rng)


def flame(problem: Problem, **settings: Any) -> FLAME:
    """FLAME in the paper's setting, with the code's anchor."""
    return FLAME(**_local(problem) | {"attraction": 5.0, "penalty": 0.01, "anchor": "global"} | settings)


def pfedme(problem: Problem) -> PFedMe:
    """pFedMe in the paper's setting."""
    return PFedMe(attraction=5.0, model_rate=0.5, **_local(problem))


def fedavg(problem: Problem) -> FedAvg:
    """FedAvg in the paper's setting."""
    return FedAvg(weighting="uniform", **_local(problem))


def fedadmm(problem: Problem) -> FedADMM:
    """FedADMM in the paper's setting."""
    return FedADMM(penalty=0.01, **_local(problem))


def trace(method: GradientMethod, clients: Clients, seed: int, rounds: int, progress: Callable[[str], None]) -> Trace:
    """Run, and score both models on the clients' own test rows after every round."""
    federation = Federation(method, clients.train, seed=seed, options=RunOptions(keep_transcript=False))
    shared: list[float] = []
    personal: list[float] = []
    for number in range(1, rounds + 1):
        result = federation.run(number)
        shared.append(_score(method.problem, [result.output] * len(clients.test), clients.test))
        if result.personal:
            personal.append(_score(method.problem, [result.personal[k] for k in sorted(result.personal)], clients.test))
        if number % 10 == 0:
            progress(f"{type(method).__name__}, seed {seed}: {shared[-1]:.1f} % after {number} rounds")
    return Trace(tuple(shared), tuple(personal))


def _score(problem: Problem, models: Sequence[Tensors], rows: Sequence[Dataset]) -> float:
    scores = [problem.score(model, data.x, data.labels()) for model, data in zip(models, rows, strict=True)]
    return 100 * float(np.mean(scores))


def _local(problem: Problem) -> dict[str, Any]:
    return {"problem": problem, "learning_rate": 0.01, "batch_size": 100, "local_epochs": 5}
