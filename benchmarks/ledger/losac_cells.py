"""LoSAC on HAR: cells of Table 2 beside T = 2, M = 5, and what Fig. 5 claims of the number of local steps."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.ledger.ledger import Context, Curve, Experiment, Findings, Line
from benchmarks.ledger.losac_runs import LABEL_SORTED, PAPER, Climb, losac, one_thread, run, scaffold
from benchmarks.ledger.losac_tables import CLIENTS, COHORT, HAR, RATE
from securefed.datasets.partition import by_label
from securefed.problems._dense import DenseNetwork


@dataclass(frozen=True)
class Cell:
    """A cell of Table 2: its method, T and M, the printed rounds to 85 %, and the rounds run."""

    method: str
    steps: int
    blocks: int
    printed: float | None
    limit: int

    @property
    def name(self) -> str:
        """Name of the cell in the lines of the ledger."""
        return f"{self.method}, T = {self.steps}, M = {self.blocks}"


TWO, THREE = Cell("LoSAC", 2, 2, 102, 204), Cell("LoSAC", 2, 3, 74, 148)
LONG, EQUAL = Cell("SCAFFOLD", 6, 3, 166, 250), Cell("LoSAC, equal step", 2, 3, None, 300)
WITHIN = 0.25
"""How far from the printed rounds still counts, as a share of them; as in the other cells of Table 2."""


def climb(cell: Cell, seed: int, rounds: int) -> Climb:
    """Return the accuracies of one run."""
    data, test = HAR.data(seed)
    problem, clients = DenseNetwork(hidden=(200, 200), start=HAR.start), by_label(data, CLIENTS)
    if cell.method == "SCAFFOLD":
        method = scaffold(problem, clients, rate=RATE, steps=cell.steps, blocks=cell.blocks)
    else:
        printed = cell.method == "LoSAC"
        method = losac(problem, rate=RATE, steps=cell.steps, blocks=cell.blocks, printed=printed)
    look = Climb(problem, test)
    run(method, clients, look, rounds=rounds, every=HAR.every, seed=seed, cohort=COHORT)
    return look


def cells(context: Context) -> Findings:
    """Return the rounds of four cells, and what the paper claims of them; one seed."""
    one_thread()
    setting = (
        f"2NN, {HAR.start} start; {HAR.prepared}; N, S = {CLIENTS}, {COHORT}, {LABEL_SORTED}; eta = {RATE:g} on sums "
        "over rows (n_i * block gradient); one seed"
    )
    lines: list[Line] = []
    curves: list[Curve] = []
    reached: dict[Cell, float] = {}
    for cell in (TWO, THREE, LONG, EQUAL):
        limit = 10 if context.quick else cell.limit
        look = climb(cell, context.seeds[0], limit)
        reached[cell] = float(look.reached or limit)
        context.progress(f"{cell.name}: 85 % at round {look.reached}")
        near = (None, None) if cell.printed is None else ((1 - WITHIN) * cell.printed, (1 + WITHIN) * cell.printed)
        lines.append(
            Line(
                HAR.where,
                f"rounds to 85 %, {cell.name} ({limit} at most)",
                setting,
                cell.printed,
                (reached[cell],),
                near,
                stated=False,
                evidence=HAR.why,
            )
        )
        curves.append(look.curve("Table 2, HAR, other cells", cell.name))
    for quantity, printed, above, below, target in (
        ("'larger M is better': rounds at M = 2 over M = 3, LoSAC, T = 2", 102 / 74, TWO, THREE, (1.0, None)),
        ("rounds of SCAFFOLD at T = 6 over LoSAC at T = 2, both M = 3", 166 / 74, LONG, THREE, (0.9, None)),
        ("the same at LoSAC's equal step", None, LONG, EQUAL, (None, None)),
    ):
        ratio = (reached[above] / reached[below],)
        lines.append(Line(HAR.where, quantity, setting, printed, ratio, target, stated=False, evidence=HAR.why))
    return Findings(tuple(lines), tuple(curves))


SHORT, FULL, RIVAL = (Cell(*cell, None, 100) for cell in (("LoSAC", 2, 5), ("LoSAC", 8, 5), ("SCAFFOLD", 8, 5)))
"""Curves of Fig. 5 that the paper compares in words, at the default M; it does not say after which round."""


def steps(context: Context) -> Findings:
    """Return accuracies with few and with many local steps; one seed."""
    one_thread()
    rounds = 10 if context.quick else SHORT.limit
    setting = (
        f"2NN, {HAR.start} start; {HAR.prepared}; N, S = {CLIENTS}, {COHORT}, {LABEL_SORTED}; eta = {RATE:g} on sums "
        "over rows (n_i * block gradient), as printed; one seed"
    )
    looks: dict[Cell, Climb] = {}
    for cell in (SHORT, FULL, RIVAL):
        looks[cell] = climb(cell, context.seeds[0], rounds)
        context.progress(f"{cell.name}: {looks[cell].at(rounds):.1f} %")
    lines = tuple(
        Line(
            "Fig. 5, HAR",
            f"accuracy after {rounds} rounds, {more.name} less {less.name} ({words})",
            setting,
            None,
            (looks[more].at(rounds) - looks[less].at(rounds),),
            (0.0, None),
            stated=False,
            unit="points",
            evidence=HAR.why,
        )
        for more, less, words in ((SHORT, RIVAL, "'even exhibits better performances'"), (FULL, SHORT, "'larger T'"))
    )
    return Findings(lines, tuple(look.curve("Fig. 5, HAR", cell.name) for cell, look in looks.items()))


EXPERIMENTS = (
    Experiment("losac/table2-har-cells", PAPER, "Table 2: UCI HAR, other T and M", cells, 2.2),
    Experiment("losac/fig5-har", PAPER, "Fig. 5: local steps, UCI HAR", steps, 1.5),
)
