"""FedPG and FedPE: duals, iterates and Gram matrices."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.references.figures import Cell, Figure, Measurement
from benchmarks.references.registered import strongest
from benchmarks.references.scenes import digits, scene
from securefed.algorithms.pca import FedPE, FedPG
from securefed.algorithms.pca.consensus import ConsensusPCA
from securefed.attacks.duals.steps import opened
from securefed.attacks.scores import relative_error
from securefed.datasets.base import Dataset

WHERE = "ATTACKS.md, FedPG and FedPE"
METHODS: dict[str, type[ConsensusPCA]] = {"FedPG": FedPG, "FedPE": FedPE}
FEW = 10


CONVERGES, AUDIT = (10.0, 0.02), (1.0, 0.01)
"""rho and eta: of a run that converges, and those of the audit, whose subspaces move little."""


def _method(name: str, local_steps: int, penalty: tuple[float, float] = CONVERGES) -> ConsensusPCA:
    rho, eta = penalty
    return METHODS[name](3, rho=rho, step_size=eta, local_steps=local_steps, tolerance=0.0)


def recovered(name: str, local_steps: int, rounds: int, penalty: tuple[float, float], seed: int) -> Cell:
    run = scene(_method(name, local_steps, penalty), digits(20, seed, standardised=True), rounds, seed)
    return strongest("gram", run.view, run.target, run.truth, seed).cell


def by_rank(seed: int) -> Cell:
    """A client of 10 raw rows: no trace is known, and S + c I would have full rank."""
    clients = [Dataset(data.x[:FEW]) for data in digits(20, seed)]
    run = scene(_method("FedPG", 1), clients, 13, seed)
    return strongest("gram", run.view, run.target, run.truth, seed).cell


def iterates(seed: int) -> Cell:
    """U_i after eight rounds, read off the messages."""
    run = scene(_method("FedPG", 5), digits(20, seed, standardised=True), 8, seed)
    basis = run.federation.nodes[run.client].state.committed.basis
    return {"error": relative_error(opened(run.view.rounds, CONVERGES[0])[-1].end, np.asarray(basis))}


_SETTING = "digits, n = 20, p = 3, 5 clients, z-scored, rho = {:g}, eta = {:g}, {}, one client in the clear"


_SLOW = (
    "The reference's rho and eta are not stated. With these small steps subspaces hardly move in eight participations, "
    "and the linear system is the worse conditioned."
)


def _figure(
    name: str, steps: int, rounds: int, printed: str, penalty: tuple[float, float] = CONVERGES, evidence: str = ""
) -> Figure:
    text = f"C = {steps}, {rounds} participations"
    exact = f"{name}, C = 1: after 8 participations"
    return Figure(
        where=WHERE,
        claim=exact if steps == 1 else f"{name}, C > 1: steps simulated, S fitted",
        printed=printed,
        setting=_SETTING.format(*penalty, text),
        measurement=Measurement(
            f"{name.lower()}/{text}, rho = {penalty[0]:g}", partial(recovered, name, steps, rounds, penalty)
        ),
        evidence=evidence,
    )


FIGURES = (
    Figure(
        where=WHERE,
        claim="U_i = M_i - Y_i / rho exactly",
        printed="exact",
        setting=_SETTING.format(*CONVERGES, "C = 5, 8 participations"),
        measurement=Measurement("fedpg/iterates", iterates),
    ),
    *(_figure(name, 1, 8, "1e-8") for name in METHODS),
    *(_figure(name, 1, 8, "1e-8", AUDIT, evidence=_SLOW) for name in METHODS),
    *(_figure(name, 5, 20, "1e-5 to 1e-7") for name in METHODS),
    Figure(
        where=WHERE,
        claim="blind to S + c I: c fixed by rank",
        printed="exact",
        setting=f"digits, n = 20, p = 3, 5 clients of {FEW} raw rows, C = 1, 13 participations",
        measurement=Measurement("fedpg/by rank", by_rank),
    ),
)
