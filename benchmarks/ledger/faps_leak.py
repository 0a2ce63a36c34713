"""FAPS, figure 1(a): SSI gives a client's Gram matrix away long before it solves the problem."""

from __future__ import annotations

import numpy as np

from benchmarks.ledger.faps_runs import PAPER, Problem
from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line
from benchmarks.peers.ssi_reconstruction import CLIENTS, FEATURES, RANK, ROUNDS, SAMPLES, TARGET, curve, observe
from securefed.datasets._base import Dataset


def leak(context: Context) -> Findings:
    """Relative errors of the paper's estimator (least norm) and of the KKT condition, round by round."""
    setting = f"n={FEATURES}, m={SAMPLES}, p={RANK}, {CLIENTS} clients, entries uniform in [-1, 1], least-norm estimate"
    counts = (9, 11, 12) if context.quick else (1, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15)
    needed, left = [], []
    curves: list[Curve] = []
    for seed in context.seeds:
        x = np.random.default_rng(seed).uniform(-1, 1, (SAMPLES, FEATURES))
        observed, target = observe(x, seed)
        own = x[: SAMPLES // CLIENTS]
        errors = curve(observed, target, own.T @ own, counts, ("minimum-norm",))["minimum-norm"]
        pooled = Problem.pooled([Dataset(x)])
        bases = [observed.rounds[count - 1].broadcast["basis"] for count in counts]
        residuals = [pooled.residual(basis) / pooled.energy for basis in bases]
        first = next((k for k, error in enumerate(errors) if error <= TARGET), len(counts) - 1)
        needed.append(float(counts[first]))
        left.append(residuals[first])
        for series, values in (("reconstruction error of S_1", errors), ("scaled KKT violation", residuals)):
            x_axis = tuple(float(count) for count in counts)
            curves.append(Curve("Fig. 1(a)", series, x_axis, tuple(values), "rounds of SSI", "relative", log_y=True))
        context.progress(f"seed {seed}: {needed[-1]:.0f} rounds to {TARGET:g}, scaled KKT violation {left[-1]:.1e}")
    evidence = "Neither the number of clients nor the distribution of the entries is stated."
    quantity = f"rounds of SSI until S_1 is known to {TARGET:g}, {ROUNDS} at most"
    lines = (
        Line("Fig. 1(a)", quantity, setting, None, tuple(needed), (None, ROUNDS - 1), stated=False, evidence=evidence),
        Line(
            "Fig. 1(a)",
            f"scaled KKT violation at that round ('much faster than solving the PCA problem', to {TARGET:g})",
            setting,
            None,
            tuple(left),
            (TARGET, None),
            stated=False,
            evidence=evidence,
        ),
    )
    return Findings(lines, tuple(curves))


EXPERIMENTS = (Experiment("faps/figure1", PAPER, "Figure 1(a): what SSI gives away", leak, 1.5),)
