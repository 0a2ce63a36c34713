"""FAPS, figures 3 and 4: an image set, convergence on arithmetic singular values."""

from __future__ import annotations

import numpy as np

from benchmarks.ledger.faps_runs import (
    PAPER,
    Problem,
    residuals,
    solve,
)
from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line
from securefed.algorithms._pca import FAPS, SSI, LocalPower
from securefed.datasets._images import mnist
from securefed.datasets._spectral_matrices import arithmetic, spectral
from securefed.datasets.partition import iid

CONDITIONS = (10, 100, 1000)
MOST = 70
"""Rounds after which FAPS is stopped on images."""


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
    Experiment("faps/images", PAPER, "Figure 3 and Table 3: MNIST", images, 3.5),
    Experiment("faps/figure4", PAPER, "Figure 4: rates of convergence", convergence, 1.0),
)
