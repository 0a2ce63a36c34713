"""FedPG and FedPE: duals, iterates and Gram matrices."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.pages.references.figures import Cell, Figure, Measurement
from benchmarks.pages.references.registered import strongest
from benchmarks.pages.references.scenes import Scene, digits, scene
from securefed.algorithms._pca import FedPE, FedPG
from securefed.algorithms._pca.consensus import ConsensusPCA
from securefed.algorithms._pca.operators import off
from securefed.attacks._duals.fedpe import gradient_parts
from securefed.attacks._duals.fedpg import gradient_block
from securefed.attacks._duals.observed_steps import observed_steps
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks.scores import relative_error
from securefed.datasets._base import Dataset

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
    cell = strongest("gram", run.view, run.target, run.truth, seed).cell
    if local_steps > 1:
        return cell
    left = _left(name, run, penalty)
    return cell | {"left": left, "over": float(cell["error"]) / left}


def _left(name: str, run: Scene, penalty: tuple[float, float]) -> float:
    """How far least squares lead away from the TRUE matrix of one local step a round, relative: what the rounding of
    the messages leaves of it, whoever solves. The shift S + c I counts as known, and FedPG's unit diagonal."""
    rho, eta = penalty
    S, coordinates = run.truth / run.clients[run.client].rows, SymmetricMatrices.of(len(run.truth))
    probes, blocks = [], []
    for step in observed_steps(run.view.rounds, rho, orthonormal=name == "FedPG"):
        if name == "FedPG":
            probe, block = step.start, gradient_block(step, eta)
        else:
            probe, block, _ = gradient_parts(step, eta, rho)
        probes.append(probe)
        blocks.append(block)
    unit = name == "FedPG"
    free = np.flatnonzero(coordinates.i != coordinates.j) if unit else np.arange(coordinates.count)
    columns = [
        np.concatenate([off(Q, coordinates.matrix(e) @ Q).ravel() for Q in probes])
        for e in np.eye(coordinates.count)[free]
    ]
    gap = np.concatenate([(off(Q, S @ Q) - block).ravel() for Q, block in zip(probes, blocks, strict=True)])
    U, s, Vt = np.linalg.svd(np.stack(columns, axis=1), full_matrices=False)
    seen = len(s) if unit else len(s) - 1  # the last direction is the shift
    x = np.zeros(coordinates.count)
    x[free] = Vt[:seen].T @ (U.T @ gap / s)[:seen]
    away = coordinates.matrix(x)
    away -= np.trace(away) / len(away) * np.eye(len(away))
    return float(np.linalg.norm(away) / np.linalg.norm(S))


def by_rank(seed: int) -> Cell:
    """A client of 10 raw rows: no trace is known, and S + c I would have full rank."""
    clients = [Dataset(data.x[:FEW]) for data in digits(20, seed)]
    run = scene(_method("FedPG", 1), clients, 13, seed)
    return strongest("gram", run.view, run.target, run.truth, seed).cell


def iterates(seed: int) -> Cell:
    """U_i after eight rounds, read off the messages."""
    run = scene(_method("FedPG", 5), digits(20, seed, standardised=True), 8, seed)
    basis = run.federation.nodes[run.client].state.committed.basis
    return {"error": relative_error(observed_steps(run.view.rounds, CONVERGES[0])[-1].end, np.asarray(basis))}


_SETTING = "digits, n = 20, p = 3, 5 clients, z-scored, rho = {:g}, eta = {:g}, {}, one client in the clear"


def _measured(name: str, steps: int, rounds: int, penalty: tuple[float, float]) -> Measurement:
    text = f"C = {steps}, {rounds} participations"
    return Measurement(f"{name.lower()}/{text}, rho = {penalty[0]:g}", partial(recovered, name, steps, rounds, penalty))


def _figure(name: str, steps: int, rounds: int, printed: str, penalty: tuple[float, float] = CONVERGES) -> Figure:
    exact = f"{name}, C = 1: after {rounds} participations"
    return Figure(
        where=WHERE,
        claim=exact if steps == 1 else f"{name}, C > 1: steps simulated, S fitted",
        printed=printed,
        setting=_SETTING.format(*penalty, f"C = {steps}, {rounds} participations"),
        measurement=_measured(name, steps, rounds, penalty),
    )


def _limit(name: str) -> Figure:
    return Figure(
        where=WHERE,
        claim=f"{name}, C = 1, small steps: error after 8 participations over what rounding leaves of S",
        printed="",
        setting=_SETTING.format(*AUDIT, "C = 1, 8 participations")
        + "; how far least squares lead away from the TRUE matrix (the reference states neither rho nor eta)",
        measurement=_measured(name, 1, 8, AUDIT),
        key="over",
        unit="x",
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
    *(_limit(name) for name in METHODS),
    *(_figure(name, 1, 20, "1e-8", AUDIT) for name in METHODS),
    *(_figure(name, 5, 20, "1e-5 to 1e-7") for name in METHODS),
    Figure(
        where=WHERE,
        claim="blind to S + c I: c fixed by rank",
        printed="exact",
        setting=f"digits, n = 20, p = 3, 5 clients of {FEW} raw rows, C = 1, 13 participations",
        measurement=Measurement("fedpg/by rank", by_rank),
    ),
)
