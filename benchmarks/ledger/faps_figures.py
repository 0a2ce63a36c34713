"""FAPS, figures 2, 3 and 4: rounds over sizes, an image set, convergence on arithmetic singular values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.ledger.faps_runs import (
    KEPT,
    PAPER,
    Problem,
    Solved,
    faps,
    geometric_problem,
    localpower,
    residuals,
    solve,
    ssi,
)
from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line
from securefed.algorithms._pca import FAPS, SSI, LocalPower
from securefed.datasets._images import mnist
from securefed.datasets._spectral_matrices import arithmetic, spectral
from securefed.datasets.partition import iid

POINTS = (
    ("Fig. 2(b), m = 160000", 2000, 1250, 10, 1.01),
    ("Fig. 2(c), p = 10", 1000, 1000, 10, 1.01),
    ("Fig. 2(d), xi = 1.1", 1000, 2000, 10, 1.1),
)
TABLE_2 = {
    "Fig. 2(b), m = 160000": (
        "varying m",
        {"SSI": (1.95e-6, 1.07e-7), "LocalPower": (1.92e-6, 1.02e-7), "FAPS": (1.90e-6, 9.97e-8)},
    ),
    "Fig. 2(c), p = 10": (
        "varying p",
        {"SSI": (1.95e-6, 8.30e-8), "LocalPower": (1.91e-6, 9.18e-8), "FAPS": (1.92e-6, 1.15e-7)},
    ),
    "Fig. 2(d), xi = 1.1": (
        "varying xi",
        {"SSI": (4.09e-6, 3.15e-7), "LocalPower": (3.94e-6, 3.08e-7), "FAPS": (3.87e-6, 2.99e-7)},
    ),
}
"""By point, the row of Table 2 that it belongs to: scaled KKT violation and relative error, means over its group."""
"""(where, n, samples a client, p, xi) of one point a group; group (a) with n = 2000 is Table 1. d = 128."""
CONDITIONS = (10, 100, 1000)
MOST = 70
"""Rounds after which FAPS is stopped on images."""


def sizes(context: Context) -> Findings:
    """FAPS against SSI and LocalPower at one point of each group of figure 2."""
    clients = 16 if context.quick else 128
    lines: list[Line] = []
    for where, features, rows, rank, ratio in POINTS:
        kept = min(200 if context.quick else KEPT, 150 if ratio > 1.05 else KEPT)
        setting = (
            f"n={features} (leading {kept}), m={clients * rows}, p={rank}, xi={ratio}, d={clients}, 6 inner steps; "
            "KKT stop at 1e-4"
        )
        runs: dict[str, list[Solved]] = {"SSI": [], "LocalPower": [], "FAPS": []}
        for seed in context.seeds[:1]:  # one draw: these are the large ones
            problem = geometric_problem(features, [rows] * clients, ratio, seed, kept)
            runs["SSI"].append(ssi(rank, problem, seed))
            runs["LocalPower"].append(localpower(rank, problem, seed, 20))
            runs["FAPS"].append(faps(rank, problem, seed, 6))
            counts = {name: [float(run.rounds) for run in found] for name, found in runs.items()}
            context.progress(f"{where}: " + ", ".join(f"{name} {found[-1]}" for name, found in counts.items()))
        lines += [
            Line(where, f"rounds, {name}", setting, None, tuple(found), (None, None)) for name, found in counts.items()
        ]
        for name in ("SSI", "LocalPower"):
            ratios = tuple(ours / theirs for ours, theirs in zip(counts["FAPS"], counts[name], strict=True))
            quantity = f"rounds of FAPS / {name}, 'clearly outperforms'"
            lines.append(Line(where, quantity, setting, None, ratios, (None, 1.0), stated=False, evidence=_FRAGILE))
        lines += _errors(where, setting, runs)
    return Findings(tuple(lines))


def _errors(where: str, setting: str, runs: Mapping[str, Sequence[Solved]]) -> list[Line]:
    """Return the errors of one point beside the printed means over its group."""
    group, printed = TABLE_2[where]
    lines = []
    for name, found in runs.items():
        pairs = (
            ("scaled KKT violation", printed[name][0], [run.kkt for run in found]),
            ("relative error", printed[name][1], [run.error for run in found]),
        )
        lines += [
            Line(
                f"Table 2, {group}",
                f"{quantity}, {name} (one point of the group of four)",
                setting,
                mean,
                tuple(values),
                (mean / 2, mean * 2),
                stated=False,
                evidence=_OPEN_STOP,
            )
            for quantity, mean, values in pairs
        ]
    return lines


_OPEN_STOP = "The error follows from the residual at the stop, and the paper does not state the stop it used."
_FRAGILE = "A fixed number of inner steps suits some spectra and not others."


def images(context: Context) -> Findings:
    """MNIST, p = 5, d = 16, rule (27) as printed: rounds, scaled KKT violation, error; one start."""
    data = mnist().data
    rows, clients, most = (2000, 4, 60) if context.quick else (data.rows, 16, MOST)
    problem = Problem.pooled(iid(data.take(np.arange(rows)), clients, np.random.default_rng(0)))
    setting = f"MNIST, pixels in [0, 1], {rows} samples, p=5, d={clients}, equal shares, rule (27)"
    methods = {
        "SSI": SSI(5),
        "LocalPower": LocalPower(5),
        "FAPS": FAPS(5, max_rounds=most),
    }
    runs = {
        name: [solve(method, problem.together if name == "SSI" else problem, seed) for seed in context.seeds[:1]]
        for name, method in methods.items()
    }
    evidence = (
        "beta_i = .15 ||A_i||_2^2 is set by the mean image, whose eigenvalue is many times lambda_p: near the solution "
        "the p-th component then converges at about 1 - gap / beta_i a round, SSI's at 1 - gap / lambda_p."
    )
    lines = [
        Line(
            "Fig. 3, MNIST",
            f"rounds, {name}, {most} at most for FAPS",
            setting,
            None,
            tuple(float(run.rounds) for run in found),
            (None, None),
        )
        for name, found in runs.items()
    ]
    ratio = tuple(a.rounds / b.rounds for a, b in zip(runs["FAPS"], runs["SSI"], strict=True))
    lines.append(
        Line(
            "Fig. 3, MNIST",
            "rounds of FAPS / SSI, 'always dominates'",
            setting,
            None,
            ratio,
            (None, 1.0),
            stated=False,
            evidence=evidence,
        )
    )
    where, mean = (
        "Table 3 (mean of four sets)",
        "Rule (27) as printed ends at smaller errors here; the paper prints means over four sets, this is one of them. "
        f"FAPS is stopped after {most} rounds.",
    )
    for name, kkt, error in (
        ("SSI", 4.34e-6, 5.80e-8),
        ("LocalPower", 4.59e-6, 6.27e-8),
        ("FAPS", 4.42e-6, 5.06e-8),
    ):
        found = runs[name]
        pairs = (
            ("scaled KKT violation", kkt, [r.kkt for r in found]),
            ("relative error", error, [r.error for r in found]),
        )
        for quantity, printed, values in pairs:
            target = (printed / 5, printed * 5)
            lines.append(
                Line(where, f"{quantity}, {name}", setting, printed, tuple(values), target, stated=False, evidence=mean)
            )
    return Findings(tuple(lines))


def convergence(context: Context) -> Findings:
    """Figure 4 at half its size: the residual round by round, arithmetic singular values.

    Two or three inner steps converge here; five and ten, which suit (23)-(24), do not within 60 rounds.
    """
    features, rows, clients, rounds = (200, 250, 16, 60) if context.quick else (500, 1250, 32, 60)
    lines: list[Line] = []
    curves: list[Curve] = []
    for condition in CONDITIONS[1:2] if context.quick else CONDITIONS:
        setting = (
            f"n={features}, m={clients * rows}, kappa={condition}, p=10, d={clients}, 3 inner steps (half the size)"
        )
        ends: dict[str, list[float]] = {}
        for seed in context.seeds[:1]:
            values = arithmetic(features, condition)
            problem = Problem.of(spectral(values, [rows] * clients, np.random.default_rng(seed)))
            series = {
                "SSI": residuals(SSI(10, 0.0), problem.together, seed, rounds),
                "LocalPower": residuals(LocalPower(10, 0.0, rounds_each=20), problem, seed, rounds),
                "FAPS": residuals(FAPS(10, 0.0, inner_steps=3), problem, seed, rounds),
            }
            for name, found in series.items():
                ends.setdefault(name, []).append(found[-1])
                x = tuple(float(k) for k in range(rounds + 1))
                curves.append(
                    Curve(f"Fig. 4, kappa = {condition}", name, x, tuple(found), "rounds", "KKT residual", log_y=True)
                )
        for name in ("SSI", "LocalPower"):
            gain = tuple(a / b for a, b in zip(ends["FAPS"], ends[name], strict=True))
            lines.append(
                Line(
                    f"Fig. 4, kappa = {condition}",
                    f"residual after {rounds} rounds, FAPS / {name}",
                    setting,
                    None,
                    gain,
                    (None, 1.0),
                    stated=False,
                    evidence=_FRAGILE,
                )
            )
        context.progress(f"kappa {condition}: {ends}")
    return Findings(tuple(lines), tuple(curves))


EXPERIMENTS = (
    Experiment("faps/figure2", PAPER, "Figure 2: one point of each group", sizes, 2.5),
    Experiment("faps/images", PAPER, "Figure 3 and Table 3: MNIST", images, 3.5),
    Experiment("faps/figure4", PAPER, "Figure 4: rates of convergence", convergence, 1.0),
)
