"""FLAME, Figs. 4-7: effects of lambda, H, rho and biased selection on the training losses, on MNIST.

The paper prints curves and what it reads off them. Each claim becomes one line: a ratio of losses, above 1 if it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.ledger.flame import ANCHOR, LOCAL, PAPER, Clients, flame
from benchmarks.ledger.flame_tables import MLR, Column
from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Tensors
from securefed.algorithms._optimization import GradientMethod
from securefed.datasets._base import Dataset
from securefed.problems import Problem

TRAINING = "training loss of a row, weight decay included"
LEAD = (
    "biased selection leads over the first half, the personal models by most, and is passed in the second: the clients "
    "with the largest norms come again and again, and the others' z_i stand still"
)


@dataclass(frozen=True)
class Losses:
    """Mean training loss of a row under the global and the personal models, after the rounds `at`."""

    at: tuple[float, ...]
    shared: tuple[float, ...]
    personal: tuple[float, ...]

    def end(self, model: str) -> float:
        """The last loss of the "global" or the "personal" models."""
        return self.after(self.at[-1], model)

    def after(self, rounds: float, model: str) -> float:
        """Their loss after so many rounds, one of `at`."""
        return (self.shared if model == "global" else self.personal)[self.at.index(rounds)]

    def curves(self, figure: str, series: str) -> tuple[Curve, ...]:
        """Both losses over the rounds."""
        kinds = {"global": self.shared} | ({"personal": self.personal} if self.personal else {})
        axes = ("rounds", "training loss", True)
        return tuple(Curve(figure, f"{series}, {kind}", self.at, y, *axes) for kind, y in kinds.items())


def losses(
    method: GradientMethod, clients: Clients, seed: int, rounds: int, every: int, cohort: int | None = None
) -> Losses:
    """Run, and take the mean over ALL clients' training rows every so many rounds.

    A method without personal models has none of their losses.
    """
    federation = Federation(method, clients.train, seed=seed, cohort=cohort, options=RunOptions(keep_transcript=False))
    at = range(every, rounds + 1, every)
    shared, personal = [], []
    for number in at:
        result = federation.run(number)
        shared.append(_loss(method.problem, [result.output] * len(clients.train), clients.train))
        if result.personal:
            models = [result.personal[k] for k in range(len(clients.train))]
            personal.append(_loss(method.problem, models, clients.train))
    return Losses(tuple(map(float, at)), tuple(shared), tuple(personal))


def _loss(problem: Problem, models: Sequence[Tensors], rows: Sequence[Dataset]) -> float:
    total = sum(
        data.rows * problem.loss(model, data.x, data.labels()) for model, data in zip(models, rows, strict=True)
    )
    return total / sum(data.rows for data in rows)


@dataclass(frozen=True)
class Sweep:
    """One of Figs. 4-6: FLAME with one hyper-parameter at three values, 50 clients, one seed.

    Attributes:
        claims: (model, setting that ends lower, setting that ends higher, the paper's words).
    """

    figure: str
    settings: Mapping[str, dict[str, Any]]
    claims: tuple[tuple[str, str, str, str], ...]

    def run(self, column: Column, context: Context) -> Findings:
        """Run FLAME with each value on a column's data."""
        (rounds, every), seed = ((2, 1) if context.quick else (20, 2)), context.seeds[0]
        clients = column.clients(50, context, seed)
        found: dict[str, Losses] = {}
        for label, settings in self.settings.items():
            found[label] = losses(flame(column.problem, **settings), clients, seed, rounds, every)
            context.progress(f"{self.figure}, {label}: {found[label].shared[-1]:.4f} after {rounds} rounds")
        lines = tuple(
            Line(
                f"{self.figure}, {column.name}",
                f"{claim}: {model} loss, {higher} over {lower}, after {rounds} rounds",
                f"{column.data}, {TRAINING}; 50 clients, {LOCAL}, lambda 5, rho .01 but for what is varied; one seed",
                None,
                (found[higher].end(model) / found[lower].end(model),),
                (1.0, None),
                stated=False,
                evidence=ANCHOR,
            )
            for model, lower, higher, claim in self.claims
        )
        figure = f"{self.figure}, {column.name}"
        return Findings(lines, tuple(c for label, run in found.items() for c in run.curves(figure, label)))


LAMBDA = Sweep(
    "Fig. 4",
    {f"lambda {value}": {"attraction": float(value)} for value in (1, 3, 5)},
    (
        ("global", "lambda 5", "lambda 1", "a larger lambda brings the global model on faster"),
        ("personal", "lambda 1", "lambda 5", "and the personal models more slowly"),
    ),
)
EPOCHS = Sweep(
    "Fig. 5",
    {f"H {value}": {"local_epochs": value} for value in (1, 5, 10)},
    (
        ("global", "H 5", "H 1", "more local passes speed up the global model"),
        ("personal", "H 5", "H 1", "more local passes speed up the personal models"),
        ("global", "H 10", "H 5", "and more still the global model"),
    ),
)
PENALTY = Sweep(
    "Fig. 6",
    {f"rho {value:g}": {"penalty": value} for value in (0.01, 0.05, 0.1)},
    (
        ("global", "rho 0.01", "rho 0.1", "a smaller rho speeds up the global model"),
        ("personal", "rho 0.01", "rho 0.1", "a smaller rho speeds up the personal models"),
    ),
)


def selection(column: Column, context: Context) -> Findings:
    """Fig. 7: of 100 clients 10 a round, at random or those of 50 candidates with the largest gradients."""
    rounds, every = (5, 5) if context.quick else (100, 5)
    kinds = {"uniform": {}, "biased": {"selection": "biased", "candidates": 50}}
    found: dict[str, list[Losses]] = {kind: [] for kind in kinds}
    for seed in context.seeds:
        clients = column.clients(100, context, seed)
        for kind, settings in kinds.items():
            found[kind].append(losses(flame(column.problem, **settings), clients, seed, rounds, every, cohort=10))
            context.progress(f"Fig. 7, {kind}, seed {seed}: {found[kind][-1].shared[-1]:.4f} after {rounds} rounds")
    lines = tuple(
        Line(
            f"Fig. 7, {column.name}",
            f"biased selection speeds up the {model} models: loss, uniform over biased, after {at} rounds",
            f"{column.data}, {TRAINING}; 100 clients, 10 a round, biased: of 50 candidates; "
            f"{LOCAL.replace('full participation, ', '')}, lambda 5, rho .01",
            None,
            tuple(a.after(at, model) / b.after(at, model) for a, b in zip(*found.values(), strict=True)),
            (1.0, None),
            stated=False,
            evidence=f"{LEAD}; {ANCHOR}",
        )
        for model in ("global", "personal")
        for at in ((rounds,) if context.quick else (30, rounds))
    )
    curves = tuple(
        curve for kind, runs in found.items() for run in runs for curve in run.curves(f"Fig. 7, {column.name}", kind)
    )
    return Findings(lines, curves)


EXPERIMENTS = (
    Experiment("flame/fig4-lambda", PAPER, "Fig. 4: lambda", partial(LAMBDA.run, MLR), 1.1),
    Experiment("flame/fig5-epochs", PAPER, "Fig. 5: H", partial(EPOCHS.run, MLR), 1.1),
    Experiment("flame/fig6-rho", PAPER, "Fig. 6: rho", partial(PENALTY.run, MLR), 1.1),
    Experiment("flame/fig7-selection", PAPER, "Fig. 7: biased client selection", partial(selection, MLR), 2.2),
)
