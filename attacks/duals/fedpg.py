"""FedPG gives its iterates away: Y_i = rho (M_i - Z+), so U_i = M_i - Y_i / rho, with no start value missing.

With one local step the Riemannian gradient follows from two iterates, and it is linear in S_i. (FedPG's own
argument for privacy is that neither U_i nor Y_i is sent.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from securefed.algorithms.base import require
from securefed.algorithms.pca.fedpg import POINT, FedPG
from securefed.algorithms.pca.operators import off, orth
from securefed.algorithms.pca.server import BASIS
from securefed.attacks.base import Observation, Observed, Reconstruction, Target
from securefed.attacks.gram.elimination import Products, eliminate, solve_shifted
from securefed.errors import TranscriptError
from securefed.tensors import Array

_ORTHONORMAL = 1e-6
_LEVEL = 0.02
_STANDARDISED = 1.0


@dataclass(frozen=True)
class Step:
    """One participation, opened.

    Attributes:
        start, end: U_i before and after the local steps, (features, rank).
        linear: Y_i - rho Z, the known part of the gradient.
    """

    start: Array
    end: Array
    linear: Array


@dataclass(frozen=True)
class FedPGDuals:
    """Open U_i and Y_i round by round, read (I - U U^T) S_i U off the steps, and solve for S_i.

    Works where the view shows ONE client. A sum over several clients is not linear in their Gram matrices.

    Attributes:
        trace: trace of the (normalised, if the algorithm normalises) Gram matrix, if publicly known; it fixes the
            shift S + c I to which FedPG is blind. Without it, data that look standardised (a constant diagonal)
            get the trace of standardised data, and any other the shift of least rank.

    Exact once the observed subspaces span the features: about features / rank participations.
    """

    trace: float | None = None
    name: ClassVar[str] = "duals/fedpg"
    secret: ClassVar[str] = "gram"

    def __post_init__(self) -> None:
        require(self.trace is None or self.trace > 0, f"trace must be positive, or None, not {self.trace}")

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not isinstance(target.algorithm, FedPG):
            return "The messages hold no dual variables of FedPG."
        if target.algorithm.local_steps != 1:
            return "Several local steps lie between two messages; this attack inverts one."
        if len(observed.members) != 1:
            return "Not attacked: a sum over several clients is not linear in their Gram matrices."
        if len(observed.rounds) < 2:
            return "Two participations are the least that show a gradient and its subspace."
        return None

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        algorithm = cast(FedPG, target.algorithm)
        (client,) = observed.members
        rows = target.public.rows[client]
        steps = opened(observed.rounds, algorithm.rho)
        if len(steps) < 2:
            raise TranscriptError("The broadcasts that followed do not fit the messages: fewer than two steps open.")
        seen = eliminate([step.start for step in steps], [gradient_block(s, algorithm.step_size) for s in steps])
        gram, shift, standardised = self._gram(seen, rows)
        return Reconstruction(
            secret=self.secret,
            value=gram * rows if algorithm.normalise else gram,
            residual=seen.residual,
            rank=seen.rank,
            unknowns=seen.unknowns,
            condition=seen.condition,
            diagnostics={"steps": len(steps), "shift": shift, "standardised": standardised},
            members=observed.members,
        )

    def _gram(self, seen: Products, rows: int) -> tuple[Array, float, bool]:
        solution, shift = solve_shifted(seen, rows=rows, trace=self.trace)
        features = len(solution.gram)
        if self.trace is not None or solution.rank < features:
            return solution.gram, shift, False
        diagonal = np.diag(solution.gram)
        if np.ptp(diagonal) > _LEVEL * _STANDARDISED:
            return solution.gram, shift, False
        # Every feature has the same variance up to the blind shift: standardised data, of variance 1.
        solution, shift = solve_shifted(seen, trace=_STANDARDISED * features)
        return solution.gram, shift, True


def opened(rounds: Sequence[Observation], rho: float) -> list[Step]:
    """The steps of one client, from its first participation on.

    Y_i after a participation is rho (M_i - Z+), with Z+ the broadcast that followed from that round. A step whose
    U_i does not come out orthonormal (its Z+ was not seen) is left out, and so is the one after it.
    """
    steps = []
    start: Array | None = orth(rounds[0].broadcast[BASIS])  # U_i^0 = Z^0
    dual = np.zeros_like(rounds[0].broadcast[BASIS])  # Y_i^0 = 0
    for index, observation in enumerate(rounds):
        point = observation.message[POINT]
        end = point - dual / rho  # U_i = M_i - Y_i / rho
        if not _is_orthonormal(end):
            start = None
        elif start is not None:
            steps.append(Step(start, end, dual - rho * observation.broadcast[BASIS]))
            start = end
        else:
            start = end
        followed = observation.followed or (rounds[index + 1].broadcast if index + 1 < len(rounds) else {})
        if not followed:
            break
        dual = rho * (point - followed[BASIS])
    return steps


def gradient_block(step: Step, step_size: float) -> Array:
    """(I - U U^T) S U from one step U+ = QR(U - eta g): g = (U - U+ (U^T U+)^-1) / eta.

    g = (I - U U^T)[-2 S U + Y - rho Z].
    """
    U, end = step.start, step.end
    gradient = (U - end @ np.linalg.inv(U.T @ end)) / step_size
    return np.asarray(-0.5 * off(U, gradient - step.linear))


def _is_orthonormal(basis: Array) -> bool:
    return bool(np.linalg.norm(basis.T @ basis - np.eye(basis.shape[1])) < _ORTHONORMAL)
