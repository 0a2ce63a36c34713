"""S from messages of several local steps: the steps are simulated between known iterates, and S fitted.

The steps of one round start at a known U_i with known duals, so rounds are independent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError

from securefed.attacks.duals.motion import Motion, Moved, Place
from securefed.attacks.duals.steps import Step
from securefed.attacks.gram.coordinates import SymmetricMatrices
from securefed.attacks.levenberg import Geodesic, levenberg
from securefed.errors import DivergenceError
from securefed.tensors import Array

GOAL, PROOF = 1e-12, 1e-9
"""The fit stops at the one misfit, and counts as proven below the other (norm of all differences of iterates)."""
_REDUNDANCY = 3
_FULL_RANK = 1e-11
_HIDDEN = 1e-3


@dataclass(frozen=True)
class FittedSteps:
    """A fit.

    Attributes:
        gram: S, up to the shift where the motion is blind to it.
        misfit: norm of all differences between simulated and seen iterates.
        rank, unknowns, condition: of the Jacobian without the blind shift.
    """

    gram: Array
    misfit: float
    rank: int
    unknowns: int
    condition: float

    @property
    def proven(self) -> bool:
        """Whether the misfit is round-off, leaves no direction open, and bounds what the weakest one can hide."""
        return self.misfit < PROOF and self.rank == self.unknowns and self.misfit * self.condition < _HIDDEN


def fit_steps(steps: Sequence[Step], features: int, motion: Motion, jacobians: int) -> FittedSteps:
    """Fit S from zero to as many steps as determine it three times over.

    Damped steps from zero leave what the messages do not show at zero: a fit that is not `proven` is still the
    cautious estimate.
    """
    coordinates = SymmetricMatrices.of(features)
    used = steps[: _REDUNDANCY * coordinates.count // steps[0].start.size + 2]
    problem = StepsProblem(used, coordinates, motion)
    result = levenberg(
        problem.linearised,
        np.zeros(coordinates.count),
        steps=jacobians,
        goal=GOAL,
        residual=problem.residual,
        stepper=Geodesic(problem.residual),
    )
    triangle = np.linalg.qr(result.jacobian, mode="r")
    s = np.linalg.svd(triangle, compute_uv=False)
    unknowns = coordinates.count - motion.blind
    rank = min(int(np.sum(s > _FULL_RANK * s[0])), unknowns)
    gram = coordinates.matrix(result.point)
    return FittedSteps(gram, result.norm, rank, unknowns, float(s[0] / s[rank - 1]))


@dataclass(frozen=True)
class StepsProblem:
    """The differences between simulated and seen iterates, as functions of the coordinates of S."""

    steps: Sequence[Step]
    coordinates: SymmetricMatrices
    motion: Motion

    def residual(self, x: Array) -> Array:
        S = self.coordinates.matrix(x)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                ends = [self.motion.end(S, _place(step)) for step in self.steps]
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)
        return np.concatenate([(U - step.end).reshape(-1) for U, step in zip(ends, self.steps, strict=True)])

    def linearised(self, x: Array) -> tuple[Array, Array]:
        S = self.coordinates.matrix(x)
        pairs = [self._tangents(S, _place(step)) for step in self.steps]
        residual = np.concatenate([(U - step.end).reshape(-1) for (U, _), step in zip(pairs, self.steps, strict=True)])
        return residual, np.vstack([dU.transpose(0, 2, 1).reshape(-1, len(x)) for _, dU in pairs])

    def _tangents(self, S: Array, place: Place) -> tuple[Array, Array]:
        """The end of a round and its derivative by the coordinates of S, (features, coordinates, rank)."""
        return self.motion.end_and_tangents(S, self.coordinates, place, Moved.still(place, self.coordinates.count))


def _place(step: Step) -> Place:
    return Place(step.start, step.linear, step.constraint_dual)
