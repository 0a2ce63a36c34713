"""Fit a client's Gram matrix S to rounds of several local steps of FedPG or FedPE, by Levenberg-Marquardt.

FedPG and FedPE are federated PCA by consensus ADMM; their attacks on single clients (`fedpg`, `fedpe`) call this. A
client's local steps are gradient steps on an augmented Lagrangian in its iterate U, (features, rank). Of the gradient
only S is unknown: the dual variables are known (Y of the constraint that U is the consensus Z, and in FedPE T of the
constraint on U^T U), and so is the U before and after each round's steps (`observed_steps`). The steps are simulated as
a function of S (`local_steps`, which states them); the residuals are the simulated less the observed ends, round by
round independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.attacks._duals.local_steps import ConsensusLocalSteps, LocalStart, StartTangents
from securefed.attacks._duals.observed_steps import ObservedStep
from securefed.attacks._fitting.levenberg_marquardt import GeodesicAcceleration, levenberg_marquardt
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.fitted_gram import FittedGram
from securefed.errors import DivergenceError

GOAL, _JACOBIANS = 1e-12, 60
"""Norm of the residuals at which the fit stops, and its most Jacobians."""
_REDUNDANCY = 3
"""Number of equations that are fitted, in multiples of the number of unknowns. More rounds cost time and add little."""
_FULL_RANK = 1e-11
"""Singular values of the Jacobian below this share of the largest count as zero."""


def fit_steps(steps: Sequence[ObservedStep], features: int, motion: ConsensusLocalSteps) -> FittedGram:
    """Fit S to the first rounds: as many as give `_REDUNDANCY` equations for each unknown, and one or two more.

    The search starts at S = 0, and damped steps leave near 0 what the messages do not determine, so that a fit that is
    not `FittedGram.proven` is still a cautious estimate.

    Args:
        steps: rounds whose start and end are known.
        features: width of S.
        motion: the local steps as a function of S.

    Returns:
        S, and how many directions of S the messages determine. Messages of FedPG are the same for S + c I, so that one
        direction can never be determined there (`motion.blind` is the number of such directions).
    """
    coordinates = SymmetricMatrices.of(features)
    fitted = steps[: _REDUNDANCY * coordinates.count // steps[0].start.size + 2]
    problem = LocalStepsProblem(fitted, coordinates, motion)
    result = levenberg_marquardt(
        problem.linearised,
        np.zeros(coordinates.count),
        steps=_JACOBIANS,
        goal=GOAL,
        residual=problem.residual,
        stepper=GeodesicAcceleration(problem.residual),
    )
    triangle = np.linalg.qr(result.jacobian, mode="r")
    s = np.linalg.svd(triangle, compute_uv=False)
    unknowns = coordinates.count - motion.blind
    rank = min(int(np.sum(s > _FULL_RANK * s[0])), unknowns)
    gram = coordinates.matrix(result.point)
    return FittedGram(
        gram=gram, residual=result.norm, rank=rank, unknowns=unknowns, condition=float(s[0] / s[rank - 1])
    )


@dataclass(frozen=True)
class LocalStepsProblem:
    """Differences between simulated and observed iterates, as functions of the coordinates of S.

    Attributes:
        steps: rounds whose start and end are known.
        coordinates: parametrisation of S.
        motion: the local steps as a function of S.
    """

    steps: Sequence[ObservedStep]
    coordinates: SymmetricMatrices
    motion: ConsensusLocalSteps

    def residual(self, x: Array) -> Array:
        """Return all differences, (equations,); NaN where the steps diverge."""
        S = self.coordinates.matrix(x)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                ends = [self.motion.end(S, _start_of(step)) for step in self.steps]
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        return np.concatenate([(U - step.end).reshape(-1) for U, step in zip(ends, self.steps, strict=True)])

    def linearised(self, x: Array) -> tuple[Array, Array]:
        """Return all differences and their Jacobian, (equations, coordinates)."""
        S = self.coordinates.matrix(x)
        pairs = [self._tangents(S, _start_of(step)) for step in self.steps]
        residual = np.concatenate([(U - step.end).reshape(-1) for (U, _), step in zip(pairs, self.steps, strict=True)])
        # dU, (features, coordinates, rank), becomes one row for each entry of U
        return residual, np.vstack([dU.transpose(0, 2, 1).reshape(-1, len(x)) for _, dU in pairs])

    def _tangents(self, S: Array, start: LocalStart) -> tuple[Array, Array]:
        """Return the end of a round and its derivatives by the coordinates of S, (features, coordinates, rank)."""
        known_start = StartTangents.zero(start, self.coordinates.count)  # observed, so that it does not vary with S
        return self.motion.end_and_tangents(S, self.coordinates, start, known_start)


def _start_of(step: ObservedStep) -> LocalStart:
    """Return the inputs of a round's steps; `linear` is Y - rho Z, the part of the gradient that is constant in U."""
    return LocalStart(step.start, step.linear, step.constraint_dual)
