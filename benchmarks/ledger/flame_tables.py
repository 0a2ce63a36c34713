"""FLAME, Tables II and III: softmax regression on MNIST, a support vector machine on synthetic rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.ledger.flame import (
    ALL,
    ANCHOR,
    DECAY,
    LOCAL,
    PAPER,
    SCRIPT,
    SPLIT,
    Clients,
    Trace,
    digits,
    fedadmm,
    fedavg,
    flame,
    pfedme,
    synthetic,
    trace,
)
from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line, at_night
from securefed.algorithms._optimization import GradientMethod
from securefed.problems import Problem, SoftmaxRegression, SupportVectorMachine

What = Literal["global", "personal", "rounds"]
WHY = {
    "FLAME": ANCHOR,
    "pFedMe": f"eta_w = .5 and server step 1, the script's, one of the five rates that the paper tried; {SCRIPT}",
    "FedAvg": f"its curve is flat near the level, where a tenth of a point decides on dozens of rounds; {SCRIPT}",
    "FedADMM": f"local steps begin at the broadcast w, which no source says (the script has no FedADMM); {SCRIPT}",
}


@dataclass(frozen=True)
class Figure:
    """A figure of Table II (`global`, `personal`, in percent) or III (`rounds`), and what counts as reproduced."""

    method: str
    what: What
    printed: float
    target: tuple[float | None, float | None]

    def of(self, run: Trace, level: float) -> float:
        """Ours, of one run."""
        if self.what == "rounds":
            return run.first(level)
        return max(run.shared if self.what == "global" else run.personal)


@dataclass(frozen=True)
class Column:
    """One data set and model of Tables II and III."""

    name: str
    level: float
    problem: Problem
    draw: Callable[[int, int, int], Clients]
    data: str
    rows: int
    rounds: int
    figures: tuple[Figure, ...]
    remark: str = ""

    def clients(self, count: int, context: Context, seed: int) -> Clients:
        """`count` clients; few rows in a quick run."""
        return self.draw(count, seed, self.rows // 10 if context.quick else self.rows)

    def length(self, context: Context) -> int:
        """Rounds of a run."""
        return 5 if context.quick else self.rounds

    def setting(self, clients: int = 50) -> str:
        """What it takes to repeat a run."""
        return f"{self.data}; {clients} clients, {LOCAL}, lambda 5, rho .01, pFedMe's eta_w .5; {SPLIT}"

    def line(self, figure: Figure, traces: Sequence[Trace], evidence: str) -> Line:
        """Ours beside the paper's."""
        rounds = len(traces[0].shared)
        table, quantity, unit = "II", f"{figure.method} {figure.what} model, best of {rounds} rounds", "%"
        if figure.what == "rounds":
            table, quantity, unit = "III", f"{figure.method}, rounds to {self.level:g} %, {rounds} at most", "rounds"
        values = tuple(figure.of(run, self.level) for run in traces)
        where = f"Table {table}, {self.name}"
        return Line(
            where, quantity, self.setting(), figure.printed, values, figure.target, False, unit, evidence + self.remark
        )


MLR = Column(
    name="Mnist-MLR",
    level=90.0,
    problem=SoftmaxRegression(l2=DECAY, precision="float32"),
    draw=digits,
    data="MNIST, 70000 rows, two label shards a client",
    rows=ALL,
    rounds=100,
    figures=(
        Figure("FLAME", "global", 91.12, (90.0, None)),
        Figure("FLAME", "personal", 97.14, (96.3, 97.7)),
        Figure("FLAME", "rounds", 21, (None, 35)),
        Figure("pFedMe", "global", 90.69, (90.0, 91.4)),
        Figure("pFedMe", "personal", 97.03, (96.3, 97.7)),
        Figure("pFedMe", "rounds", 88, (61, 99)),
        Figure("FedAvg", "global", 90.23, (89.5, 90.8)),
        Figure("FedAvg", "rounds", 94, (66, 99)),
        Figure("FedADMM", "global", 90.67, (90.0, 91.4)),
        Figure("FedADMM", "rounds", 9, (6, 12)),
    ),
)
SVM = Column(
    name="Synthetic-SVM",
    level=65.0,
    problem=SupportVectorMachine(l2=DECAY),
    draw=synthetic,
    data="Synthetic(.5, .5), 5000 to 10000 rows a client",
    rows=375_000,
    rounds=50,
    figures=(
        Figure("FLAME", "global", 81.90, (78.9, 84.9)),
        Figure("FLAME", "personal", 82.07, (79.1, 85.1)),
        Figure("FLAME", "rounds", 9, (6, 12)),
        Figure("pFedMe", "global", 81.72, (78.7, 84.7)),
        Figure("pFedMe", "personal", 82.01, (79.0, 85.0)),
        Figure("pFedMe", "rounds", 23, (16, 30)),
        Figure("FedAvg", "global", 68.64, (65.6, 71.6)),
        Figure("FedAvg", "rounds", 63, (44, 49)),
        Figure("FedADMM", "global", 79.02, (76.0, 82.0)),
        Figure("FedADMM", "rounds", 6, (4, 8)),
    ),
    remark="; the clients' rules are drawn, and how far one model can serve them all differs from draw to draw: the "
    "paper's draw is not published, ours lets averaging reach 65 % several times sooner",
)


def compare(
    column: Column, most: int = 100, **methods: Callable[[Problem], GradientMethod]
) -> Callable[[Context], Findings]:
    """An experiment: some methods of a column, 50 clients, the column's rounds or `most`."""

    def run(context: Context) -> Findings:
        rounds = min(most, column.length(context))
        traces: dict[str, list[Trace]] = {name: [] for name in methods}
        for seed in context.seeds:
            clients = column.clients(50, context, seed)
            for name, make in methods.items():
                traces[name].append(trace(make(column.problem), clients, seed, rounds, context.progress))
        chosen = [figure for figure in column.figures if figure.method in methods]
        lines = tuple(column.line(figure, traces[figure.method], WHY[figure.method]) for figure in chosen)
        return Findings(lines, _curves(f"Fig. 3, {column.name}", traces))

    return run


def anchors(context: Context) -> Findings:
    """FLAME as Algorithm 1 has it, and with 100 clients; one seed each."""
    rounds, seed = MLR.length(context), context.seeds[0]
    paper = trace(flame(MLR.problem, anchor="local"), MLR.clients(50, context, seed), seed, rounds, context.progress)
    many = trace(flame(MLR.problem), MLR.clients(100, context, seed), seed, rounds, context.progress)
    return Findings(
        (
            Line(
                "Table II, Mnist-MLR",
                f"FLAME as in Algorithm 1 (drawn to w_i), global model, best of {rounds} rounds",
                MLR.setting(),
                91.12,
                (max(paper.shared),),
                (90.0, None),
                unit="%",
                evidence="with the paper's own anchor w_i the model moves too slowly for the printed curves; the "
                "authors' code, and FLAME's other lines here, have the broadcast w in its place",
            ),
            Line(
                "Table III, Mnist-MLR",
                f"FLAME as in Algorithm 1 (drawn to w_i), rounds to 90 %, {rounds} at most",
                MLR.setting(),
                21,
                (paper.first(90.0),),
                (None, 35),
                unit="rounds",
                evidence="as the line on its best accuracy",
            ),
            *(
                Line(
                    "Table II, Mnist-MLR, 100 clients",
                    f"FLAME {what} model, best of {rounds} rounds",
                    MLR.setting(100),
                    printed,
                    (max(values),),
                    target,
                    stated=False,
                    unit="%",
                    evidence=ANCHOR,
                )
                for what, printed, values, target in (
                    ("global", 90.64, many.shared, (89.9, 91.4)),
                    ("personal", 97.87, many.personal, (97.1, 98.6)),
                )
            ),
        ),
        _curves("Fig. 3, Mnist-MLR, anchors", {"as in Algorithm 1": [paper], "100 clients": [many]}),
    )


Printed = Mapping[str, tuple[Callable[[Problem], GradientMethod], dict[What, float]]]
HUNDRED: Printed = {
    "pFedMe": (pfedme, {"global": 90.29, "personal": 96.90}),
    "FedAvg": (fedavg, {"global": 90.28}),
    "FedADMM": (fedadmm, {"global": 90.19}),
}
"""FLAME's rivals with 100 clients on Mnist-MLR, as Table II prints them."""
HUNDRED_SVM: Printed = {
    "FLAME": (flame, {"global": 73.09, "personal": 81.97}),
    "pFedMe": (pfedme, {"global": 67.91, "personal": 81.93}),
    "FedAvg": (fedavg, {"global": 56.27}),
    "FedADMM": (fedadmm, {"global": 67.13}),
}
"""All methods with 100 clients on Synthetic-SVM, as Table II prints them."""
NEAR, NEAR_SVM = 0.7, 3.0
"""Points of accuracy that count as reproduced, as with 50 clients."""


def hundred(column: Column, methods: Printed, near: float, context: Context) -> Findings:
    """Methods of a column with 100 clients; one seed."""
    rounds, seed = column.length(context), context.seeds[0]
    clients = column.clients(100, context, seed)
    lines: list[Line] = []
    traces: dict[str, list[Trace]] = {}
    for name, (make, printed) in methods.items():
        run = trace(make(column.problem), clients, seed, rounds, context.progress)
        traces[name] = [run]
        lines += [
            Line(
                f"Table II, {column.name}, 100 clients",
                f"{name} {what} model, best of {rounds} rounds",
                f"{column.setting(100)}; one seed",
                value,
                (max(run.shared if what == "global" else run.personal),),
                (round(value - near, 2), round(value + near, 2)),
                stated=False,
                unit="%",
                evidence=WHY[name] + column.remark,
            )
            for what, value in printed.items()
        ]
    return Findings(tuple(lines), _curves(f"Fig. 3, {column.name}, 100 clients", traces))


def _curves(figure: str, traces: Mapping[str, Sequence[Trace]]) -> tuple[Curve, ...]:
    return tuple(curve for name, runs in traces.items() for run in runs for curve in run.curves(figure, name))


EXPERIMENTS = (
    Experiment("flame/mlr", PAPER, "Tables II, III: MNIST, FLAME", compare(MLR, FLAME=flame), 3.8),
    Experiment("flame/mlr-fedavg", PAPER, "Tables II, III: MNIST, FedAvg", compare(MLR, FedAvg=fedavg), 3.8),
    Experiment("flame/mlr-pfedme", PAPER, "Tables II, III: MNIST, pFedMe", compare(MLR, pFedMe=pfedme), 3.8),
    Experiment("flame/mlr-fedadmm", PAPER, "Tables II, III: MNIST, FedADMM", compare(MLR, 50, FedADMM=fedadmm), 2.0),
    Experiment("flame/anchors", PAPER, "Tables II, III: MNIST, the paper's anchor; 100 clients", anchors, 2.6),
    Experiment(
        "flame/mlr-100",
        PAPER,
        "Table II: MNIST, FLAME's rivals with 100 clients",
        partial(hundred, MLR, HUNDRED, NEAR),
        2.2,
        seeds=1,
    ),
    at_night(
        "flame/svm-100",
        PAPER,
        "Table II: synthetic rows, 100 clients",
        partial(hundred, SVM, HUNDRED_SVM, NEAR_SVM),
        2.5,
    ),
    Experiment(
        "flame/svm",
        PAPER,
        "Tables II, III: synthetic rows, FLAME and FedAvg",
        compare(SVM, FLAME=flame, FedAvg=fedavg),
        3.4,
    ),
    Experiment(
        "flame/svm-rivals",
        PAPER,
        "Tables II, III: synthetic rows, pFedMe and FedADMM",
        compare(SVM, pFedMe=pfedme, FedADMM=fedadmm),
        3.4,
    ),
)
