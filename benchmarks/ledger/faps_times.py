"""FAPS, Table 4 and Fig. 3(b): ratios of processor time where no direction is left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.ledger.faps_runs import PAPER, Problem, Solved, faps, geometric_problem, localpower, solve
from benchmarks.ledger.ledger import Context, Findings, Line, at_night
from securefed.algorithms._pca import FAPS, SSI, LocalPower
from securefed.datasets._images import mnist
from securefed.datasets.partition import iid


def timed(run: Callable[[], Solved]) -> float:
    """Return the processor time of a run in seconds."""
    began = time.process_time()
    run()
    return time.process_time() - began


def seconds(context: Context) -> Findings:
    """Return ratios of processor time on Table 4's matrix in full and on MNIST, where nothing is left out; one seed."""
    seed = context.seeds[0]
    features, unit, stop = (200, 100, 1e-3) if context.quick else (1000, 1000, 1e-4)
    matrix = geometric_problem(features, range(unit, 9 * unit, unit), 1.01, seed)
    runs = {
        "SSI": partial(solve, SSI(10, stop, stop="kkt"), matrix, seed),
        "LocalPower": partial(localpower, 10, matrix, seed, 20, stop),
        "FAPS": partial(faps, 10, matrix, seed, 10, stop),
    }
    times = {name: timed(run) for name, run in runs.items()}
    context.progress(f"Table 4: {times}")
    data = mnist().data
    pictures = Problem.pooled(
        iid(data.take(np.arange(2000 if context.quick else data.rows)), 16, np.random.default_rng(0))
    )
    methods = {"SSI": SSI(5), "LocalPower": LocalPower(5), "FAPS": FAPS(5, max_rounds=20 if context.quick else 70)}
    drawn = {name: timed(partial(solve, method, pictures, seed)) for name, method in methods.items()}
    context.progress(f"MNIST: {drawn}")
    about = (
        f"n={features}, m={36 * unit}, all directions, 10 inner steps, KKT stop at {stop:g}; one processor, one seed"
    )
    shown = "MNIST, p=5, d=16, rule (27), FAPS stopped after 70 rounds; one processor, one seed"
    return Findings(
        tuple(
            Line(
                where,
                f"processor time of FAPS / {name}",
                setting,
                value,
                (found["FAPS"] / found[name],),
                (None, most),
                stated=False,
                evidence="the paper's seconds are of its cluster, and its inner steps are not stated; a round of FAPS "
                "here makes a fixed number of inner steps, each as dear as a round of SSI",
            )
            for where, setting, found, printed, most in (
                ("Table 4, time", about, times, {"SSI": 14.93 / 32.73, "LocalPower": 14.93 / 16.52}, 1.0),
                ("Fig. 3(b), MNIST", shown, drawn, {"SSI": None, "LocalPower": None}, None),
            )
            for name, value in printed.items()
        )
    )


EXPERIMENTS = (at_night("faps/time", PAPER, "Table 4 and Figure 3(b): processor time", seconds, 6.0, messages=True),)
