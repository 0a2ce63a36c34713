"""FLAME, Fig. 3: training losses of all methods by round; and Figs. 4-7 on synthetic rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.ledger.flame import ANCHOR, LOCAL, PAPER, fedadmm, fedavg, flame, pfedme
from benchmarks.ledger.flame_figures import EPOCHS, LAMBDA, PENALTY, TRAINING, Losses, losses, selection
from benchmarks.ledger.flame_tables import MLR, SVM, Column
from benchmarks.ledger.ledger import Context, Findings, Line, at_night
from securefed.algorithms._optimization import GradientMethod
from securefed.problems import Problem

RIVALS: dict[str, Callable[[Problem], GradientMethod]] = {
    "FLAME": flame,
    "pFedMe": pfedme,
    "FedAvg": fedavg,
    "FedADMM": fedadmm,
}


def compared(column: Column, context: Context) -> Findings:
    """Fig. 3, training losses: FLAME's global model is "only slower than FedADMM" in the first rounds; one seed."""
    (rounds, every), seed = ((2, 1) if context.quick else (20, 2)), context.seeds[0]
    clients = column.clients(50, context, seed)
    found: dict[str, Losses] = {}
    for name, make in RIVALS.items():
        found[name] = losses(make(column.problem), clients, seed, rounds, every)
        context.progress(f"Fig. 3, {column.name}, {name}: {found[name].shared[-1]:.4f} after {rounds} rounds")
    figure = f"Fig. 3, {column.name}, loss"
    lines = tuple(
        Line(
            figure,
            f"global loss after {rounds} rounds, {name} over FLAME",
            f"{column.data}, {TRAINING}; 50 clients, {LOCAL}, lambda 5, rho .01, pFedMe's eta_w .5; one seed",
            None,
            (found[name].end("global") / found["FLAME"].end("global"),),
            (None, None) if name == "FedADMM" else (1.0, None),
            stated=name == "FedADMM",
            evidence=ANCHOR,
        )
        for name in RIVALS
        if name != "FLAME"
    )
    return Findings(lines, tuple(c for name, run in found.items() for c in run.curves(figure, name)))


EXPERIMENTS = (
    at_night("flame/fig3-loss-mlr", PAPER, "Fig. 3: training losses, MNIST", partial(compared, MLR), 1.5),
    at_night("flame/fig3-loss-svm", PAPER, "Fig. 3: training losses, synthetic rows", partial(compared, SVM), 1.0),
    at_night("flame/fig4-lambda-svm", PAPER, "Fig. 4: lambda, synthetic rows", partial(LAMBDA.run, SVM), 0.8),
    at_night("flame/fig5-epochs-svm", PAPER, "Fig. 5: H, synthetic rows", partial(EPOCHS.run, SVM), 0.8),
    at_night("flame/fig6-rho-svm", PAPER, "Fig. 6: rho, synthetic rows", partial(PENALTY.run, SVM), 0.8),
    at_night(
        "flame/fig7-selection-svm",
        PAPER,
        "Fig. 7: biased client selection, synthetic rows",
        partial(selection, SVM),
        1.2,
    ),
)
