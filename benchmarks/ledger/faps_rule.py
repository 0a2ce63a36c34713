"""FAPS, a rule of this project: inner steps chosen by reach, guarded by SSI, beside fixed numbers of inner steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.ledger.faps_runs import PAPER, Problem, geometric_problem, solve, ssi
from benchmarks.ledger.ledger import Context, Experiment, Findings, Line
from securefed.algorithms._pca import FAPS, GuardedFAPS
from securefed.algorithms._pca.server import SubspaceMethod
from securefed.datasets._base import Dataset
from securefed.datasets._images import digits
from securefed.datasets.partition import by_label

SCALED = 2e-6
"""Stop at a residual of so many ||A||_F^2, which is what the paper's tables print."""
MOST = 2.0
"""A method that takes so many times SSI's rounds is stopped there."""


@dataclass(frozen=True)
class Case:
    """A problem of the family: `make(seed)` draws it."""

    name: str
    rank: int
    make: Callable[[int], Problem]


def _geometric(features: int, sizes: Sequence[int], ratio: float, rank: int) -> Case:
    even = len(set(sizes)) == 1
    cut = f"m_i={sizes[0]}" if even else f"m_i={sizes[0]} i"
    name = f"(23)-(24), n={features}, d={len(sizes)}, {cut}, xi={ratio}, p={rank}"
    return Case(name, rank, lambda seed: geometric_problem(features, sizes, ratio, seed))


def _digits(rank: int, centre: bool) -> Case:
    def make(seed: int) -> Problem:
        data = digits().data
        x = data.x - data.x.mean(axis=0) if centre else data.x
        return Problem.pooled(by_label(Dataset(x, data.y), 10))

    return Case(f"digits sorted by label, d=10, p={rank}, {'centred' if centre else 'as they are'}", rank, make)


CASES = (
    _geometric(100, [150] * 8, 1.01, 5),
    _geometric(100, range(30, 270, 30), 1.01, 5),
    _geometric(100, [70] * 12, 1.005, 6),
    _geometric(100, [300] * 6, 1.02, 8),
    _geometric(80, [400] * 4, 1.002, 3),
    _geometric(100, [200] * 16, 1.1, 5),
    _geometric(100, range(30, 330, 30), 1.05, 8),
    *(_digits(rank, centre) for rank in (3, 5, 10) for centre in (False, True)),
)
QUICK = (CASES[0], CASES[3], CASES[7], CASES[10])
METHODS: dict[str, SubspaceMethod] = {
    "guarded FAPS": GuardedFAPS(1),
    "FAPS, inner steps by reach": FAPS(1, inner_rule="reach"),
    "FAPS, 5 inner steps": FAPS(1, inner_steps=5),
}


def rule(context: Context) -> Findings:
    """Rounds of each method over those of SSI, case by case, and the worst over all of them."""
    lines: list[Line] = []
    worst = dict.fromkeys(context.seeds, 0.0)
    for case in QUICK if context.quick else CASES:
        ratios: dict[str, list[float]] = {}
        for seed in context.seeds:
            for name, ratio in _ratios(case, seed).items():
                ratios.setdefault(name, []).append(ratio)
            worst[seed] = max(worst[seed], ratios["guarded FAPS"][-1])
        context.progress(f"{case.name}: " + ", ".join(f"{name} {max(found):.2f}" for name, found in ratios.items()))
        for name, found in ratios.items():
            ours = name == "guarded FAPS"
            lines.append(_line(name, case.name, tuple(found), (None, 1.0) if ours else (None, None)))
    setting = f"all cases above, worst of each seed; stop at a residual of {SCALED:g} ||A||_F^2"
    lines.append(_line("guarded FAPS, the worst", setting, tuple(worst.values()), (None, 1.0)))
    return Findings(tuple(lines))


def _ratios(case: Case, seed: int) -> dict[str, float]:
    problem = case.make(seed)
    tolerance = SCALED * problem.energy
    base = ssi(case.rank, problem, seed, tolerance).rounds
    most = int(np.ceil(MOST * base))
    out = {}
    for name, method in METHODS.items():
        ready = replace(method, rank=case.rank, tolerance=tolerance, stop="kkt", max_rounds=most)
        out[name] = solve(ready, problem, seed).rounds / base
    return out


def _line(name: str, setting: str, values: tuple[float, ...], target: tuple[float | None, float | None]) -> Line:
    return Line(
        where="a rule of this project",
        quantity=f"rounds of {name} / SSI, {MOST:g} at most",
        setting=setting,
        printed=None,
        values=values,
        target=target,
        evidence="A block of FAPS was tried that did not pay.",
    )


EXPERIMENTS = (Experiment("faps/inner-rule", PAPER, "A rule for the inner steps, never slower than SSI", rule, 2.1),)
