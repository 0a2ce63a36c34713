"""What LoSAC's experiments share: a run whose model is looked at on the way, and the networks' settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.ledger.ledger import Curve
from securefed._runtime.federation import Federation
from securefed._runtime.history import RoundHistory
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Tensors
from securefed.algorithms._optimization import GradientMethod, LoSAC, Scaffold
from securefed.datasets._base import Dataset
from securefed.problems import Problem

PAPER = "LoSAC: An Efficient Local Stochastic Average Control Method for Federated Optimization (Chen et al. 2023)"
LABEL_SORTED = "label-sorted rows, cut evenly"
Split = tuple[Dataset, Dataset]
"""Training and test rows."""


def one_thread() -> None:
    """Keep torch to one thread: experiments run two at a time."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)


class Watched:
    """A method whose newest model can be read while a federation runs."""

    def __init__(self, method: GradientMethod) -> None:
        self.method = method
        self.server: Any = None

    def combine(self, *args: Any) -> Any:
        self.server = self.method.combine(*args)
        return self.server

    def model(self) -> Tensors:
        """What the next round broadcasts."""
        return self.method.broadcast(self.server)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)


Look = Callable[[int, Tensors], bool]
"""Gets a round, counted from 1, and its model; says whether to look at the next one as well."""


def run(
    method: GradientMethod, clients: Sequence[Dataset], look: Look, *, rounds: int, every: int, seed: int, cohort: int
) -> None:
    """Run, and look at every `every`-th round, at the last, and at each that follows a look which asked for it."""
    watched, next_too = Watched(method), False

    def progress(entry: RoundHistory) -> None:
        nonlocal next_too
        number = entry.round + 1
        if next_too or number % every == 0 or number == rounds:
            next_too = look(number, watched.model())

    Federation(watched, clients, seed=seed, cohort=cohort, options=RunOptions(keep_transcript=False)).run(
        rounds, progress=progress
    )


@dataclass
class Climb:
    """Test accuracy on the way up, in percent.

    Below `near` it is taken every few rounds, from there at each, until `goal` is reached.

    Attributes:
        train, last: the rows of all clients, and the round after which their mean loss is taken.
        rounds, accuracies: where it was taken and what it was.      reached: first round at `goal` or above, or `None`.
    """

    problem: Problem
    test: Dataset
    goal: float = 85.0
    near: float = 82.0
    train: Dataset | None = None
    last: int = 0

    def __post_init__(self) -> None:
        self.rounds: list[int] = []
        self.accuracies: list[float] = []
        self.reached: int | None = None
        self.loss = math.nan

    def __call__(self, number: int, model: Tensors) -> bool:
        if self.train is not None and number == self.last:
            self.loss = float(self.problem.loss(model, self.train.x, self.problem.targets(self.train)))
        accuracy = 100.0 * self.problem.score(model, self.test.x, self.problem.targets(self.test))
        self.rounds.append(number)
        self.accuracies.append(accuracy)
        if self.reached is None and accuracy >= self.goal:
            self.reached = number
        return self.reached is None and accuracy >= self.near

    def at(self, number: int) -> float:
        """Accuracy at a round that was looked at."""
        return self.accuracies[self.rounds.index(number)]

    def curve(self, figure: str, series: str) -> Curve:
        """Accuracy over rounds."""
        x = tuple(float(number) for number in self.rounds)
        return Curve(figure, series, x, tuple(self.accuracies), "rounds", "test accuracy, %")


def scaffold(problem: Problem, clients: Sequence[Dataset], *, rate: float, steps: int, blocks: int) -> Scaffold:
    """SCAFFOLD at LoSAC's local step: losses are sums over rows there, so its step on the mean loss is rate * n_i."""
    rows = sum(data.rows for data in clients) / len(clients)
    return Scaffold(problem=problem, learning_rate=rate * rows, local_steps=steps, batch_size=round(rows / blocks))


def losac(problem: Problem, *, rate: float, steps: int, blocks: int, printed: bool) -> LoSAC:
    """LoSAC as printed, or at SCAFFOLD's effective step."""
    scale = "printed" if printed else "consistent"
    return LoSAC(problem=problem, learning_rate=rate, local_steps=steps, blocks=blocks, block_scale=scale)
