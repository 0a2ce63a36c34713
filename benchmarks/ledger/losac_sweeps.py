"""LoSAC, Figs. 2 to 5: shares of sorted rows between, clients a round and local steps, with training losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.ledger.ledger import Context, Curve, Findings, Line, at_night
from benchmarks.ledger.losac_figures import CONTENDERS, contender
from benchmarks.ledger.losac_figures import RATE as MNIST_RATE
from benchmarks.ledger.losac_runs import PAPER, Climb, one_thread, run
from benchmarks.ledger.losac_tables import CLIENTS, ESR, HAR, MNIST, RATE, Table
from securefed.algorithms._optimization import MimeSVRG
from securefed.datasets._base import Dataset
from securefed.datasets.partition import by_label, iid, partly_sorted
from securefed.problems._dense import DenseNetwork

WORDS = "the paper draws curves and reads them in words; it does not print the values that it varies"
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
COHORT, STEPS = 10, 5
Case = tuple[str, int, bool]
"""A method, the value of what is varied, and whether rows are sorted by label."""


@dataclass(frozen=True)
class Setting:
    """Data of a set, and rounds; a tenth of the paper's clients on MNIST, at the same eta n_i."""

    table: Table
    rate: float
    rounds: int

    def look(self, name: str, clients: Sequence[Dataset], seed: int, *, rounds: int, cohort: int, steps: int) -> Climb:
        """Run a method and return its last accuracy and training loss."""
        data, test = self.table.data(seed)
        problem = DenseNetwork(hidden=(200, 200), start=self.table.start)
        method = contender(name, problem, clients, rate=self.rate, steps=steps)
        exchanges = 2 * rounds if isinstance(method, MimeSVRG) else rounds
        look = Climb(problem, test, near=101.0, train=data, last=exchanges)
        run(method, clients, look, rounds=exchanges, every=max(1, exchanges // 5), seed=seed, cohort=cohort)
        return look


def shares(setting: Setting, context: Context) -> Findings:
    """Fig. 2: accuracy and loss at five shares of sorted rows; one seed."""
    one_thread()
    rounds, seed = (3 if context.quick else setting.rounds), context.seeds[0]
    data, _ = setting.table.data(seed)
    lines: list[Line] = []
    curves: list[Curve] = []
    for name in CONTENDERS:
        looks = []
        for share in SHARES[:: 4 if context.quick else 1]:
            clients = partly_sorted(data, CLIENTS, np.random.default_rng(seed), share=share)
            looks.append(setting.look(name, clients, seed, rounds=rounds, cohort=COHORT, steps=STEPS))
            context.progress(f"Fig. 2, {name}, share {share:g}: loss {looks[-1].loss:.4f}")
        about = (
            f"MNIST, N, S = {CLIENTS}, {COHORT}, eta = {setting.rate:g}, T = {STEPS}, M = 5, {rounds} rounds; one seed"
        )
        rises = (looks[-1].loss / looks[0].loss,)
        target = (1.1, None) if name in ("FedAvg", "FedSaga") else (None, None)
        quantity = f"training loss with label-sorted rows over that with shuffled rows, {name}"
        lines.append(Line("Fig. 2, losses", quantity, about, None, rises, target, stated=False, evidence=WORDS))
        x = SHARES[:: 4 if context.quick else 1]
        values = (("loss", [look.loss for look in looks]), ("accuracy, %", [look.accuracies[-1] for look in looks]))
        for label, y in values:
            curves.append(Curve(f"Fig. 2, {label.partition(',')[0]}", name, x, tuple(y), "share sorted", label))
    return Findings(tuple(lines), tuple(curves))


@dataclass(frozen=True)
class Sweep:
    """A figure in which T or S varies.

    Attributes:
        figure: with its set, "Fig. 3, MNIST".
        varied: "T" or "S".
        claims: the paper's words, the two cases that they compare, and whether the first is above the second.
    """

    figure: str
    setting: Setting
    varied: str
    claims: tuple[tuple[str, Case, Case], ...]

    def run(self, context: Context) -> Findings:
        """Return the accuracies of the cases that the claims compare; one seed."""
        one_thread()
        rounds, seed = (3 if context.quick else self.setting.rounds), context.seeds[0]
        data, _ = self.setting.table.data(seed)
        looks: dict[Case, Climb] = {}
        for case in dict.fromkeys(case for _, *cases in self.claims for case in cases):
            name, value, ordered = case
            clients = by_label(data, CLIENTS) if ordered else iid(data, CLIENTS, np.random.default_rng(seed))
            cohort, steps = (value, STEPS) if self.varied == "S" else (COHORT, value)
            looks[case] = self.setting.look(name, clients, seed, rounds=rounds, cohort=cohort, steps=steps)
            context.progress(f"{self.figure}, {self._name(case)}: {looks[case].accuracies[-1]:.1f} %")
        about = (
            f"2NN, {self.setting.table.start} start; {self.setting.table.prepared}; N = {CLIENTS}, M = 5, "
            f"{'T = 5' if self.varied == 'S' else 'S = 10'}, eta = {self.setting.rate:g}; one seed"
        )
        lines = tuple(
            Line(
                self.figure,
                f"accuracy after {rounds} rounds, {self._name(above)} less {self._name(below)} ({words})",
                about,
                None,
                (looks[above].accuracies[-1] - looks[below].accuracies[-1],),
                (0.0, None),
                stated=False,
                unit="points",
                evidence=WORDS,
            )
            for words, above, below in self.claims
        )
        return Findings(lines, tuple(look.curve(self.figure, self._name(case)) for case, look in looks.items()))

    def _name(self, case: Case) -> str:
        name, value, ordered = case
        return f"{name}, {self.varied} = {value}, {'sorted' if ordered else 'shuffled'}"


def claims(few: int, many: int, *, momentum: bool) -> tuple[tuple[str, Case, Case], ...]:
    """Return the claims of Figs. 3 and 4 between a small and a large value, on shuffled and on sorted rows."""
    both = (False, True)
    return (
        *(("'larger' is better", ("LoSAC", many, way), ("LoSAC", few, way)) for way in both),
        *(("'outperforms'", ("LoSAC", many, way), ("SCAFFOLD", many, way)) for way in both),
        *(("'worse than FedAvg'", ("FedAvg", many, way), ("FedSaga", many, way)) for way in both),
        ("'degraded' by sorted rows", ("FedAvg", many, False), ("FedAvg", many, True)),
        ("'more clients' help", ("FedCM", many, True), ("FedCM", few, True))
        if momentum
        else ("'more local steps' degrade", ("FedCM", few, True), ("FedCM", many, True)),
    )


def sorted_claims(few: int, many: int) -> tuple[tuple[str, Case, Case], ...]:
    """Return the claims of Fig. 5, whose rows are sorted."""
    return (
        ("'larger' is better", ("LoSAC", many, True), ("LoSAC", few, True)),
        *(("'significantly affected'", ("LoSAC", many, True), (name, many, True)) for name in ("SCAFFOLD", "FedAvg")),
    )


ON_MNIST = Setting(MNIST, MNIST_RATE, 40)
ON_HAR = Setting(HAR, RATE, 100)
ON_ESR = Setting(ESR, RATE, 200)
CLIENTS_MNIST = Sweep("Fig. 3, MNIST", ON_MNIST, "S", claims(5, 20, momentum=True))
STEPS_MNIST = Sweep("Fig. 4, MNIST", ON_MNIST, "T", claims(2, 8, momentum=False))
CLIENTS_HAR = Sweep("Fig. 5, HAR", ON_HAR, "S", sorted_claims(5, 20))
STEPS_HAR = Sweep(
    "Fig. 5, HAR",
    ON_HAR,
    "T",
    (*sorted_claims(2, 8), ("'even exhibits better performances'", ("LoSAC", 2, True), ("SCAFFOLD", 8, True))),
)
STEPS_ESR = Sweep("Fig. 5, ESR", ON_ESR, "T", sorted_claims(2, 8))
CLIENTS_ESR = Sweep("Fig. 5, ESR", ON_ESR, "S", sorted_claims(5, 20))
EXPERIMENTS = (
    at_night("losac/fig2-shares", PAPER, "Fig. 2: losses, and shares between", partial(shares, ON_MNIST), 6.0),
    at_night("losac/fig3-mnist", PAPER, "Fig. 3: clients a round, MNIST", CLIENTS_MNIST.run, 4.0),
    at_night("losac/fig4-mnist", PAPER, "Fig. 4: local steps, MNIST", STEPS_MNIST.run, 4.0),
    at_night("losac/fig5-steps-har", PAPER, "Fig. 5: local steps, UCI HAR", STEPS_HAR.run, 2.0),
    at_night("losac/fig5-clients-har", PAPER, "Fig. 5: clients a round, UCI HAR", CLIENTS_HAR.run, 2.0),
    at_night("losac/fig5-steps-esr", PAPER, "Fig. 5: local steps, ESR", STEPS_ESR.run, 2.0),
    at_night("losac/fig5-clients-esr", PAPER, "Fig. 5: clients a round, ESR", CLIENTS_ESR.run, 2.0),
)
