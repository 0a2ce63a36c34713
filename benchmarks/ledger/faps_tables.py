"""FAPS, Tables 1 and 4: rounds and errors on matrices (23)-(24)."""

from __future__ import annotations

from statistics import median

from benchmarks.ledger.faps_runs import KEPT, PAPER, Solved, faps, geometric_problem, localpower, ssi
from benchmarks.ledger.ledger import Context, Experiment, Findings, Line

_STOP = "stop at a KKT residual of 1e-4 (the paper's rule (27) does not give its printed errors)"


STOP = (
    "The stop and the number of inner steps are not the paper's: it states (26) and (27). Rounds depend on the random "
    "start, which no paper states: SSI's differ by a factor of two between seeds."
)

STARTS = 30


def table4(context: Context) -> Findings:
    """n = 1000, m = 36000, m_i = 1000 i, in the coordinates of the leading directions."""
    kept = 250 if context.quick else KEPT
    setting = f"n=1000, m=36000, m_i=1000 i, xi=1.01, p=10, d=8, {_leading(kept)}; {_STOP}"
    runs: dict[str, list[Solved]] = {}
    for seed in context.seeds:
        problem = geometric_problem(1000, range(1000, 9000, 1000), 1.01, seed, kept)
        runs.setdefault("SSI", []).append(ssi(10, problem, seed))
        runs.setdefault("LocalPower, q halved every round", []).append(localpower(10, problem, seed, 1))
        runs.setdefault("LocalPower, q halved every 20 rounds", []).append(localpower(10, problem, seed, 20))
        for steps in (10,) if context.quick else (10, 11):
            runs.setdefault(f"FAPS, {steps} inner steps", []).append(faps(10, problem, seed, steps))
        context.progress(f"seed {seed}: " + ", ".join(f"{name} {found[-1].rounds}" for name, found in runs.items()))
    fast = runs["FAPS, 10 inner steps"]
    ratio = tuple(f.rounds / s.rounds for f, s in zip(fast, runs["SSI"], strict=True))
    table = "Table 4"
    slow = (
        "The schedule as described halves q every round: three rounds later LocalPower is SSI, and takes about as many "
        "rounds. Halving every 20 rounds gives the printed count."
    )
    lines = [
        _rounds(table, "SSI", setting, 337, runs["SSI"], (220, 360)),
        _rounds(
            table,
            "LocalPower, q halved every round",
            setting,
            164,
            runs["LocalPower, q halved every round"],
            (130, 200),
            slow,
        ),
        _rounds(
            table,
            "LocalPower, q halved every 20 rounds",
            setting,
            164,
            runs["LocalPower, q halved every 20 rounds"],
            (130, 200),
        ),
        _rounds(table, "FAPS, 10 inner steps", setting, 55, fast, (None, 75)),
        _ratio(table, "FAPS (10 inner steps)", setting, 55 / 337, ratio),
        _error(table, "FAPS, 10 inner steps", setting, 7.67e-8, fast, (5e-8, 1.1e-7)),
        _error(table, "SSI", setting, 1.06e-7, runs["SSI"], (5e-8, 1.5e-7)),
        _kkt(table, "FAPS, 10 inner steps", setting, 1.80e-6, fast),
        _kkt(table, "SSI", setting, 1.94e-6, runs["SSI"]),
    ]
    if not context.quick:
        name = "FAPS, 11 inner steps"
        lines.append(_rounds(table, f"{name} (10 is on an edge)", setting, None, runs[name], (None, None)))
        lines += _thirty_starts(context, table, setting, kept)
    return Findings(tuple(lines))


def _thirty_starts(context: Context, table: str, setting: str, kept: int) -> list[Line]:
    """The same for so many starts that the mean means something: three seeds leave it open by a fifth and more."""
    slow: list[Solved] = []
    fast: list[Solved] = []
    first = min(context.seeds)
    for seed in range(first, first + STARTS):
        problem = geometric_problem(1000, range(1000, 9000, 1000), 1.01, seed, kept)
        slow.append(ssi(10, problem, seed))
        fast.append(faps(10, problem, seed, 10))
        context.progress(f"start {seed}: SSI {slow[-1].rounds}, FAPS {fast[-1].rounds}")
    middle, far = median(run.rounds for run in fast), sum(run.rounds > 100 for run in fast)
    edge = (
        f"Over {STARTS} starts the median is {middle:g}, and {far} of them need more than 100 rounds: at 10 inner "
        "steps FAPS is on an edge, where some starts settle late. " + STOP
    )
    counted = f"{STARTS} starts"
    return [
        _rounds(table, f"SSI, {counted}", setting, 337, slow, (220, 360)),
        _rounds(table, f"FAPS, 10 inner steps, {counted}", setting, 55, fast, (None, 75), edge),
    ]


def table1(context: Context) -> Findings:
    """n = 2000, m = 128000, d = 128, in the coordinates of the leading directions; quick: a tenth of it."""
    clients, kept = (16, 200) if context.quick else (128, KEPT)
    setting = f"n=2000, m={1000 * clients}, xi=1.01, p=20, d={clients}, equal clients, {_leading(kept)}; {_STOP}"
    ours: list[Solved] = []
    theirs: list[Solved] = []
    for seed in context.seeds:
        problem = geometric_problem(2000, [1000] * clients, 1.01, seed, kept)
        theirs.append(ssi(20, problem, seed))
        ours.append(faps(20, problem, seed, 6))
        context.progress(f"seed {seed}: SSI {theirs[-1].rounds}, FAPS {ours[-1].rounds}")
    ratio = tuple(f.rounds / s.rounds for f, s in zip(ours, theirs, strict=True))
    return Findings(
        (
            _rounds("Table 1", "SSI", setting, 207, theirs, (150, 330)),
            _rounds("Table 1", "FAPS, 6 inner steps", setting, 42, ours, (None, 60)),
            _ratio("Table 1", "FAPS", setting, 42 / 207, ratio),
            _error("Table 1", "FAPS, 6 inner steps", setting, 8.04e-8, ours, (4e-8, 1.6e-7)),
            _error("Table 1", "SSI", setting, 1.09e-7, theirs, (5e-8, 2e-7)),
        )
    )


def _leading(kept: int) -> str:
    return f"leading {kept} left singular vectors of A (the others hold eigenvalues below {1.01 ** (-2 * kept):.0e})"


def _rounds(
    table: str,
    method: str,
    setting: str,
    printed: float | None,
    runs: list[Solved],
    target: tuple[float | None, float | None],
    evidence: str = STOP,
) -> Line:
    values = tuple(float(run.rounds) for run in runs)
    return Line(table, f"rounds, {method}", setting, printed, values, target, stated=False, evidence=evidence)


def _ratio(table: str, method: str, setting: str, printed: float, values: tuple[float, ...]) -> Line:
    quantity = f"rounds of {method} / SSI"
    return Line(table, quantity, setting, printed, values, (None, 0.3), stated=False, evidence=STOP)


def _error(
    table: str, method: str, setting: str, printed: float, runs: list[Solved], target: tuple[float, float]
) -> Line:
    values = tuple(run.error for run in runs)
    evidence = "The error follows from the residual at the stop, and the paper does not state the stop it used."
    quantity = f"relative error of the singular values, {method}"
    return Line(table, quantity, setting, printed, values, target, stated=False, evidence=evidence)


def _kkt(table: str, method: str, setting: str, printed: float, runs: list[Solved]) -> Line:
    values = tuple(run.kkt for run in runs)
    evidence = "At most 1e-4 / ||A||_F^2 by the stop."
    quantity = f"scaled KKT violation, {method}"
    return Line(table, quantity, setting, printed, values, (1e-6, 2.5e-6), stated=False, evidence=evidence)


EXPERIMENTS = (
    Experiment("faps/table4", PAPER, "Table 4: unevenly distributed data", table4, 1.1),
    Experiment("faps/table1", PAPER, "Table 1: 128 clients", table1, 5.0),
)
