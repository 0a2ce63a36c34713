"""FedPCA, Figs. 4(d), 6 and 7: accuracy and loss by round on both sets, and the processor time of both methods."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.ledger.fedpca import COHORT, LAST, PAPER, RANK, ROWS, STEPPING, TITLES, Traffic, traffic, trained
from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line
from securefed._tensors import Tensors
from securefed.algorithms._pca import FedPE, FedPG
from securefed.datasets._intrusion import ton_iot, unsw_nb15
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.detection import projection

METHODS = {"FedPG": (FedPG, 0.003), "FedPE": (FedPE, 0.001)}
"""Both methods with the step sizes of Table I, at rho = 1."""
ROUNDS, TIMED = 400, 40
POINTS = 3.0
"""Points of accuracy that count as a difference, as in Table I."""


def followed(kind: str, data: Traffic, seed: int, rounds: int) -> tuple[list[int], list[float], list[float]]:
    """Return the rounds of 20 looks at a run, and the accuracy in percent and the loss over the optimum at each."""
    make, step = METHODS[kind]
    at: list[int] = []
    accuracies: list[float] = []
    losses: list[float] = []

    def look(done: int, output: Tensors) -> None:
        at.append(done)
        accuracies.append(100 * data.measure(projection(output["basis"])).accuracy)
        losses.append(data.ratio(output["basis"], RANK))

    method = make(rank=RANK, rho=1.0, step_size=step, **STEPPING)
    trained(method, data.clients, seed, rounds, every=max(1, rounds // 20), cohort=COHORT, look=look)
    return at, accuracies, losses


def rounds_of(load: Callable[[], LoadedDataset]) -> Callable[[Context], Findings]:
    """Return the experiment on accuracy and loss by round on one set; one seed."""

    def run(context: Context) -> Findings:
        data, rounds = traffic(load), ROUNDS // 10 if context.quick else ROUNDS
        about = (
            f"{data.split}, {COHORT} a round, rank {RANK}, rho 1, 10 local steps, {rounds} rounds, means of the last "
            f"{LAST} of 20 evaluations; one seed"
        )
        ends: dict[str, float] = {}
        lines: list[Line] = []
        curves: list[Curve] = []
        accuracy, loss = (f"Fig. {figure}, {TITLES[data.name]}" for figure in ("6", "4(c,d)"))
        for kind in METHODS:
            context.progress(kind)
            at, accuracies, losses = followed(kind, data, context.seeds[0], rounds)
            ends[kind], left = float(np.mean(accuracies[-LAST:])), float(np.mean(losses[-LAST:]))
            lines += [
                Line(accuracy, f"accuracy, {kind}", about, None, (ends[kind],), (None, None), unit="%"),
                Line(loss, f"training loss / optimum, {kind}", about, None, (left,), (None, None)),
            ]
            x = tuple(map(float, at))
            curves += [
                Curve(f"{accuracy}, accuracy", kind, x, tuple(accuracies), "round", "accuracy, %"),
                Curve(f"{loss}, training loss", kind, x, tuple(losses), "round", "loss / optimum"),
            ]
        gap = (ends["FedPG"] - ends["FedPE"],)
        words = "accuracy of FedPG less that of FedPE ('comparable', or FedPG ahead)"
        lines.append(Line(accuracy, words, about, None, gap, (-POINTS, None), False, "points", ROWS))
        return Findings(tuple(lines), tuple(curves))

    return run


def seconds(kind: str, data: Traffic, seed: int, rounds: int) -> float:
    """Return the processor time of a run that nothing looks at."""
    make, step = METHODS[kind]
    method = make(rank=RANK, rho=1.0, step_size=step, **STEPPING)
    began = time.process_time()
    trained(method, data.clients, seed, rounds, every=rounds, cohort=COHORT)
    return time.process_time() - began


def training_time(context: Context) -> Findings:
    """Return the processor time of FedPG over that of FedPE, same rounds and local steps."""
    rounds = TIMED // 10 if context.quick else TIMED
    lines = []
    for load, printed, most in ((unsw_nb15, None, 1.0), (ton_iot, 1 / 6, 0.25)):
        data = traffic(load)
        data.optimum(RANK)  # not counted
        ratios = tuple(
            seconds("FedPG", data, seed, rounds) / seconds("FedPE", data, seed, rounds) for seed in context.seeds
        )
        lines.append(
            Line(
                f"Figs. 6 and 7, {TITLES[data.name]}",
                "processor time of FedPG over FedPE ('significantly shorter'; on TON-IoT 'less than a sixth')",
                f"{data.split}, {COHORT} a round, rank {RANK}, 10 local steps each, {rounds} rounds",
                printed,
                ratios,
                (None, most),
                stated=False,
                evidence="the paper does not say whether its time is of equal rounds or to a level; per step both "
                "methods here multiply the same matrices, and FedPG adds a QR factorisation",
            )
        )
    return Findings(tuple(lines))


EXPERIMENTS = (
    Experiment("fedpca/rounds-unsw", PAPER, "Figs. 4 and 6 by round: UNSW-NB15", rounds_of(unsw_nb15), 0.3),
    Experiment("fedpca/rounds-ton", PAPER, "Figs. 4 and 6 by round: TON-IoT", rounds_of(ton_iot), 0.3),
    Experiment("fedpca/time", PAPER, "Figs. 6 and 7: training time", training_time, 0.2, messages=True),
)
