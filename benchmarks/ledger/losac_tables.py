"""LoSAC, Table 2: rounds to 85 % and accuracy after 500 rounds, at the printed and at the equal effective step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line
from benchmarks.ledger.losac_runs import LABEL_SORTED, PAPER, Climb, Split, losac, one_thread, run, scaffold
from securefed.datasets._base import Dataset
from securefed.datasets._images import mnist as load_mnist
from securefed.datasets._signals import esr as load_esr
from securefed.datasets._signals import uci_har
from securefed.datasets.partition import by_label, split
from securefed.datasets.scaling import maximum, z_score
from securefed.problems._dense import DenseNetwork
from securefed.problems._initial_weights import InitialWeights

CLIENTS, COHORT, STEPS, BLOCKS, RATE, JUDGED = 100, 10, 2, 5, 1e-4, 500
Range = tuple[float | None, float | None]


@dataclass(frozen=True)
class Row:
    """One method's line of Table 2, T = 2, M = 5: printed figures and the ranges that count.

    Attributes:
        limit: rounds run; a method that has not reached 85 % by then counts with the limit.
        most: seeds at most, fewer than asked for where a run is long and not judged.
    """

    method: str
    limit: int
    rounds: float | None
    accuracy: float | None
    rounds_range: Range
    accuracy_range: Range
    most: int | None = None


@dataclass(frozen=True)
class Table:
    """One set's part of Table 2.

    Attributes:
        data: training and test rows for a seed.      prepared: how, for the record.
        start: of the network, a setting the paper does not name and on which the rounds depend twofold.
        every: how often a model is tested.      why: evidence for what is not met.
    """

    where: str
    data: Callable[[int], Split]
    prepared: str
    start: InitialWeights
    rows: tuple[Row, ...]
    ratio: float
    ratio_range: Range
    every: int
    why: str


def mnist(seed: int) -> Split:
    """Pixels / 255, the official split."""
    source = load_mnist()
    assert source.test is not None
    return source.data.single(), source.test


def har(seed: int) -> Split:
    """z-score per feature by the training rows, the official split."""
    source = uci_har()
    assert source.test is not None
    scaling = z_score(source.data)
    return scaling(source.data).single(), scaling(source.test)


def esr(seed: int) -> Split:
    """Seizure or not, all samples over the largest one, 2300 random test rows."""
    data, test = split(load_esr().data, 0.2, np.random.default_rng(seed))
    scaling = maximum(data)
    return scaling(data).single(), scaling(test)


STEP_EVIDENCE = (
    "as printed, g = n_i * block gradient is stored and summed over M blocks, so LoSAC's effective step is M = 5 times "
    "SCAFFOLD's; at the equal effective step (the line beside it) the gain is gone"
)
MNIST = Table(
    "Table 2, MNIST",
    mnist,
    "pixels / 255",
    "glorot",
    (
        Row("LoSAC", JUDGED, 44, 96.45, (None, 70), (96.0, None)),
        Row("SCAFFOLD", JUDGED, 57, 94.38, (43, 71), (93.4, 95.4)),
        Row("LoSAC, equal step", 300, None, None, (None, None), (None, None)),
    ),
    57 / 44,
    (1.1, None),
    5,
    "SCAFFOLD depends on the unstated start of the network: Glorot with zero bias here. LoSAC as printed stands at "
    "the edge of stability: with seed 12 it leaves its path after round 60 and falls, and the same run in "
    "float64, or client by client, gives the same curve; seeds 11, 13 and 14 end at 96.7 to 97.0. " + STEP_EVIDENCE,
)
HAR = Table(
    "Table 2, HAR",
    har,
    "z-score per feature of recomputed features, official split",
    "uniform",
    (
        Row("LoSAC", JUDGED, 89, 93.52, (None, 110), (92.5, None)),
        Row("SCAFFOLD", JUDGED, 137, 91.08, (103, 171), (90.1, 92.1)),
        Row("LoSAC, equal step", 300, None, None, (None, None), (None, None)),
    ),
    137 / 89,
    (1.7, None),
    5,
    "the 561 features are recomputed from the raw windows, not the published ones; torch's uniform start is taken "
    "for the unnamed one (Glorot, one seed: LoSAC 40 rounds, 93.1 %; SCAFFOLD 61, 92.5 %). " + STEP_EVIDENCE,
)
ESR = Table(
    "Table 2, ESR",
    esr,
    "binary, every sample over the largest of the training rows, 2300 random test rows",
    "uniform",
    (
        Row("LoSAC", 700, 445, 85.54, (334, 556), (84.5, 86.5)),
        Row("SCAFFOLD", 2200, 1941, 79.79, (1456, 2426), (78.8, 80.8)),
        Row("LoSAC, equal step", 2200, None, None, (None, None), (None, None), most=1),
    ),
    1941 / 445,
    (3.27, 5.45),
    10,
    "the paper does not say how the signals are scaled, and that alone changes the rounds 200-fold: torch's "
    "uniform start is taken for the unnamed one (Glorot, one seed: LoSAC 83 rounds, 95.4 %). " + STEP_EVIDENCE,
)


def climb(
    table: Table, method: str, seed: int, rounds: int, *, steps: int = STEPS, blocks: int = BLOCKS, last: int = 0
) -> Climb:
    """One run of one method; with `last`, the training loss after that round."""
    data, test = table.data(seed)
    problem = DenseNetwork(hidden=(200, 200), start=table.start)
    clients: list[Dataset] = by_label(data, CLIENTS)
    if method == "SCAFFOLD":
        chosen = scaffold(problem, clients, rate=RATE, steps=steps, blocks=blocks)
    else:
        chosen = losac(problem, rate=RATE, steps=steps, blocks=blocks, printed=method == "LoSAC")
    look = Climb(problem, test, train=data, last=last)
    run(chosen, clients, look, rounds=rounds, every=table.every, seed=seed, cohort=COHORT)
    return look


def experiment(table: Table, context: Context) -> Findings:
    """All lines of one set."""
    one_thread()
    setting = (
        f"2NN, {table.start} start; {table.prepared}; N, S = {CLIENTS}, {COHORT}, {LABEL_SORTED}; T = {STEPS}, "
        f"M = {BLOCKS}, eta = {RATE:g} on sums over rows (n_i * block gradient)"
    )
    lines: list[Line] = []
    curves: list[Curve] = []
    reached: dict[str, list[float]] = {}
    for row in table.rows:
        limit = 25 if context.quick else row.limit
        climbs = []
        for seed in context.seeds[: row.most]:
            climbs.append(climb(table, row.method, seed, limit))
            context.progress(f"{table.where}, {row.method}, seed {seed}: 85 % at round {climbs[-1].reached}")
        judged = min(JUDGED, limit)
        reached[row.method] = [float(look.reached or limit) for look in climbs]
        step = "effective step as SCAFFOLD's" if row.method.endswith("equal step") else "as printed"
        line = Line(
            table.where,
            f"rounds to 85 %, {row.method} ({limit} at most, tested every {table.every}th below 82 %, each from there)",
            f"{setting}; {step}",
            row.rounds,
            tuple(reached[row.method]),
            row.rounds_range,
            stated=False,
            evidence=table.why,
        )
        accuracy = replace(
            line,
            quantity=f"accuracy after {judged} rounds, {row.method}",
            printed=row.accuracy,
            values=tuple(look.at(judged) for look in climbs),
            target=row.accuracy_range,
            unit="%",
        )
        lines += [line, accuracy]
        curves += [look.curve(table.where, row.method) for look in climbs]
    return Findings((*lines, *_ratios(table, setting, reached)), tuple(curves))


def _ratios(table: Table, setting: str, reached: dict[str, list[float]]) -> list[Line]:
    """Rounds of SCAFFOLD over rounds of LoSAC, seed by seed, at either step."""
    out = []
    for method, printed, target in (
        ("LoSAC", table.ratio, table.ratio_range),
        ("LoSAC, equal step", None, (None, None)),
    ):
        pairs = zip(reached["SCAFFOLD"], reached[method], strict=False)  # as many seeds as both have
        out.append(
            Line(
                table.where,
                f"rounds of SCAFFOLD over rounds of {method} (a method that did not arrive counts with the last round)",
                setting,
                printed,
                tuple(theirs / ours for theirs, ours in pairs),
                target,
                stated=False,
                evidence=table.why,
            )
        )
    return out


EXPERIMENTS = (
    Experiment("losac/table2-mnist", PAPER, "Table 2: MNIST", partial(experiment, MNIST), 8.5),
    Experiment("losac/table2-har", PAPER, "Table 2: UCI HAR", partial(experiment, HAR), 5.0),
    Experiment("losac/table2-esr", PAPER, "Table 2: ESR", partial(experiment, ESR), 8.0),
)
