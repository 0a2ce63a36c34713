"""PPGL Tables I and II: seven graphs by four scores, over the number of signals and over what clients share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from statistics import mean

import numpy as np

from benchmarks.ledger.ledger import Context, Experiment, Findings, Line
from benchmarks.ledger.ppgl_runs import (
    PAPER,
    UNSTATED,
    VERTICES,
    Choice,
    Draw,
    Learned,
    choose_for,
    draws,
    fixed,
    learn,
)
from securefed.algorithms._graph.metrics import EdgeScores
from securefed.datasets._graphs import related_graphs

CLIENTS = 5
METHODS = ("IGL", "FedAvg", "FedProx", "MRMTL", "Ditto", "PPGL")
ROWS = (*METHODS[:-1], "PPGL local", "PPGL consensus")
WORDS = {"precision": "precision", "recall": "recall", "f_score": "F-score", "relative_error": "relative error"}
TOLERANCE = {"precision": 0.1, "recall": 0.1, "f_score": 0.05, "relative_error": 0.1}
"""What counts as the printed figure where the issue sets no range of its own: fixed before any full run."""
CONSENSUS_TOLERANCE = 0.07
"""Of the consensus' F-score: its mean moves so much between sets of ten graphs."""
SWEPT = (
    "swept on six other draws: beta from .01 to .2 and thresholds from 0 to .3 move IGL's F-score between .58 and .63 "
    "at N = 20 (beta <= .1) and between .26 and .75 at N = 100, its relative error between .75 and .93 and between "
    ".61 and .75; no pair gives the paper's figures at both N"
)

Printed = Mapping[str, tuple[float, float, float, float]]


@dataclass(frozen=True)
class Column:
    """One setting of a table: q of the edges common, N signals a client, and what the paper prints for it.

    Attributes:
        ranges: of F-scores, where the issue sets them.      least: of the paired difference, PPGL local less IGL.
    """

    where: str
    shared: float
    rows: int
    printed: Printed
    ranges: Mapping[str, tuple[float, float]]
    least: float

    def make(self, rng: np.random.Generator) -> Draw:
        related = related_graphs(CLIENTS, self.shared, rng, vertices=VERTICES)
        return Draw.of(related, [self.rows] * CLIENTS, rng)


def _rows(*figures: tuple[float, float, float, float]) -> Printed:
    return dict(zip(ROWS, figures, strict=True))


TABLE_1 = (
    Column(
        "Table I, N = 20",
        0.5,
        20,
        _rows(
            (0.594, 0.469, 0.521, 0.915),
            (0.434, 0.759, 0.552, 0.802),
            (0.423, 0.767, 0.544, 0.765),
            (0.522, 0.551, 0.547, 0.881),
            (0.582, 0.547, 0.557, 0.884),
            (0.547, 0.579, 0.561, 0.911),
            (0.636, 0.516, 0.566, 0.874),
        ),
        {},
        0.0,
    ),
    Column(
        "Table I, N = 50",
        0.5,
        50,
        _rows(
            (0.692, 0.620, 0.651, 0.778),
            (0.464, 0.792, 0.584, 0.768),
            (0.523, 0.728, 0.606, 0.718),
            (0.647, 0.688, 0.663, 0.756),
            (0.662, 0.671, 0.663, 0.775),
            (0.625, 0.760, 0.678, 0.731),
            (0.781, 0.656, 0.710, 0.701),
        ),
        {},
        0.0,
    ),
    Column(
        "Table I, N = 100",
        0.5,
        100,
        _rows(
            (0.776, 0.739, 0.755, 0.698),
            (0.519, 0.789, 0.624, 0.744),
            (0.623, 0.703, 0.655, 0.690),
            (0.738, 0.789, 0.760, 0.680),
            (0.732, 0.780, 0.750, 0.696),
            (0.698, 0.870, 0.774, 0.619),
            (0.881, 0.736, 0.800, 0.627),
        ),
        {"IGL": (0.72, 0.77), "PPGL local": (0.74, 0.79), "PPGL consensus": (0.70, 0.82)},
        0.010,
    ),
)
TABLE_2 = (
    Column(
        "Table II, q = .3",
        0.3,
        50,
        _rows(
            (0.701, 0.593, 0.640, 0.783),
            (0.385, 0.841, 0.527, 0.835),
            (0.437, 0.720, 0.543, 0.770),
            (0.662, 0.691, 0.674, 0.761),
            (0.667, 0.675, 0.668, 0.765),
            (0.637, 0.736, 0.679, 0.740),
            (0.462, 0.516, 0.487, 0.874),
        ),
        {},
        0.0,
    ),
    Column(
        "Table II, q = .6",
        0.6,
        50,
        _rows(
            (0.736, 0.645, 0.685, 0.758),
            (0.460, 0.867, 0.599, 0.783),
            (0.569, 0.750, 0.645, 0.716),
            (0.690, 0.730, 0.707, 0.753),
            (0.698, 0.714, 0.704, 0.739),
            (0.661, 0.776, 0.715, 0.700),
            (0.653, 0.726, 0.687, 0.752),
        ),
        {},
        0.0,
    ),
    Column(
        "Table II, q = .9",
        0.9,
        50,
        _rows(
            (0.822, 0.706, 0.759, 0.717),
            (0.811, 0.922, 0.862, 0.672),
            (0.874, 0.863, 0.868, 0.641),
            (0.816, 0.794, 0.807, 0.663),
            (0.821, 0.783, 0.804, 0.667),
            (0.800, 0.812, 0.805, 0.635),
            (0.825, 0.927, 0.873, 0.634),
        ),
        {},
        0.0,
    ),
)


def table(columns: tuple[Column, ...], context: Context) -> Findings:
    """All lines of a table."""
    return Findings(tuple(line for column in columns for line in _lines(column, context)))


def _lines(column: Column, context: Context) -> list[Line]:
    context.progress(f"{column.where}: choosing parameters")
    repetitions = 4 if context.quick else 20
    choice = fixed(METHODS) if context.quick else choose_for(column.make, METHODS, 5)
    found: dict[str, list[list[Learned]]] = {}  # by method, by seed
    for name, method in choice.methods.items():
        context.progress(f"{column.where}: {name}")
        found[name] = [
            [learn(method, draw) for draw in draws(column.make, seed, repetitions)] for seed in context.seeds
        ]
    lines = []
    for row in ROWS:
        name, part = row.partition(" ")[0], row.partition(" ")[2]
        setting = _setting(column, choice, name, repetitions)
        for index, field in enumerate(fields(EdgeScores)):
            values = tuple(mean(getattr(_of(one, part), field.name) for one in each) for each in found[name])
            printed = column.printed[row][index]
            lines.append(
                Line(
                    where=column.where,
                    quantity=f"{WORDS[field.name]}, {row}",
                    setting=setting,
                    printed=printed,
                    values=values,
                    target=_target(column, row, field.name, printed),
                    stated=False,
                    evidence=f"{UNSTATED}; {SWEPT}",
                )
            )
    return [*lines, _gain(column, choice, found, repetitions)]


def _gain(column: Column, choice: Choice, found: Mapping[str, list[list[Learned]]], repetitions: int) -> Line:
    pairs = zip(found["PPGL"], found["IGL"], strict=True)
    gains = tuple(mean(a.local.f_score - b.local.f_score for a, b in zip(*pair, strict=True)) for pair in pairs)
    printed = column.printed["PPGL local"][2] - column.printed["IGL"][2]
    return Line(
        where=column.where,
        quantity="F-score of PPGL local less that of IGL, same draws",
        setting=_setting(column, choice, "PPGL", repetitions),
        printed=round(printed, 3),
        values=gains,
        target=(column.least, None),
        stated=False,
        evidence=UNSTATED,
    )


def _of(learned: Learned, part: str) -> EdgeScores:
    return learned.consensus if part == "consensus" and learned.consensus else learned.local


def _target(column: Column, row: str, field: str, printed: float) -> tuple[float, float]:
    if field == "f_score" and row in column.ranges:
        return column.ranges[row]
    loose = field == "f_score" and row == "PPGL consensus"
    tolerance = CONSENSUS_TOLERANCE if loose else TOLERANCE[field]
    return round(printed - tolerance, 3), round(printed + tolerance, 3)


def _setting(column: Column, choice: Choice, name: str, repetitions: int) -> str:
    return (
        f"q = {column.shared:g}, N = {column.rows}, {CLIENTS} clients, {repetitions} repetitions a seed, "
        f"T = 50, K = 5, xi = .9, eta = .005, alpha = 1, {choice.words[name]}"
    )


EXPERIMENTS = (
    Experiment("ppgl/table1", PAPER, "Table I: data size", lambda context: table(TABLE_1, context), 2.8),
    Experiment("ppgl/table2", PAPER, "Table II: heterogeneity", lambda context: table(TABLE_2, context), 2.8),
)
