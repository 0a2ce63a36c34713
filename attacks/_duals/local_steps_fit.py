"""Fit a client's Gram matrix S to rounds of several local steps of FedPG or FedPE.

FedPG and FedPE are federated PCA by consensus ADMM; their attacks on single clients (`fedpg`, `fedpe`) call this. A
client's local steps are gradient steps on an augmented Lagrangian in its iterate U, (features, rank). Of the gradient
only S is unknown: the dual variables are known (Y of the constraint that U is the consensus Z, and in FedPE T of the
constraint on U^T U), and so is the U before and after each round's steps (`observed_steps`). The client's own step is
run from each known start as a function of S; the residuals are the simulated less the observed ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.consensus import POINT, ConsensusClient, ConsensusPCA
from securefed.algorithms._pca.fedpg import FedPG
from securefed.algorithms._pca.operators import Gram
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._duals.observed_steps import ObservedStep
from securefed.attacks._engine.fit import Fit, ForwardSimulation, SearchLimits, fit
from securefed.attacks._gram.coordinates import SymmetricMatrices

SEARCH = SearchLimits(jacobians=60, goal=1e-12)
"""Limits of the fit; the residual is in units of the entries of U."""
_REDUNDANCY = 3
"""Number of equations that are fitted, in multiples of the number of unknowns. More rounds cost time and add little."""
NO_DRAWS = np.random.default_rng(0)
"""Stands for the client's random generator, from which clients of FedPG and FedPE draw nothing."""


def fit_steps(steps: Sequence[ObservedStep], algorithm: ConsensusPCA) -> tuple[Array, Fit]:
    """Fit S to the first rounds: as many as give `_REDUNDANCY` equations for each unknown, and one or two more.

    The search starts at S = 0, and damped steps leave near 0 what the messages do not determine, so that a fit that is
    not proven is still a cautious estimate.

    Args:
        steps: rounds whose start and end are known.
        algorithm: the algorithm with its settings.

    Returns:
        S, and the fit, which tells how many directions of S the messages determine.
    """
    coordinates = SymmetricMatrices.of(len(steps[0].start))
    fitted = steps[: _REDUNDANCY * coordinates.count // steps[0].start.size + 2]
    points = np.concatenate([(step.end + step.linear / algorithm.rho).reshape(-1) for step in fitted])
    found = fit([simulation(fitted, algorithm)], points, [np.zeros(coordinates.count)], SEARCH, unit=1.0)
    return coordinates.matrix(found.points[0]), found


def simulation(steps: Sequence[ObservedStep], algorithm: ConsensusPCA) -> ForwardSimulation:
    """Return the client of these rounds: its messages from the known starts as a function of the coordinates of S."""
    coordinates = SymmetricMatrices.of(len(steps[0].start))

    def sent(x: Any) -> Any:
        S, points = coordinates.matrix(x), []
        for step in steps:  # `linear` is Y - rho Z, all that the step depends on of both: Y stands for it, and Z is 0
            client = client_with(S, step.constraint_dual, step.start, step.linear)
            points.append(algorithm.contribute(client, {BASIS: np.zeros_like(step.start)}, NO_DRAWS)[1][POINT])
        return np.concatenate([point.reshape(-1) for point in points])

    return ForwardSimulation(sent, coordinates.count, blind(algorithm))


def client_with(
    S: Any, constraint_dual: Array, basis: Array | None = None, dual: Array | None = None
) -> ConsensusClient:
    """Return the state of a client with the Gram matrix S, divided by its rows where the algorithm normalises."""
    return ConsensusClient(basis, dual, constraint_dual, None, 1.0, Gram(S, S))


def blind(algorithm: object) -> int:
    """Return the number of directions of S on which the messages do not depend: FedPG's are those of S + c I."""
    return int(isinstance(algorithm, FedPG))
