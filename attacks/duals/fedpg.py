"""FedPG gives its iterates away, and with them its Gram matrices, though neither U_i nor Y_i is sent.

With one local step the Riemannian gradient follows from two iterates, and it is linear in S_i; with several, the
steps are simulated and S_i is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms.pca.consensus import ConsensusPCA
from securefed.algorithms.pca.fedpg import FedPG
from securefed.algorithms.pca.operators import off
from securefed.attacks.duals.fit import fit_steps
from securefed.attacks.duals.motion import Riemannian
from securefed.attacks.duals.opened import Duals, Found
from securefed.attacks.duals.standardised import with_unit_diagonal
from securefed.attacks.duals.steps import Step
from securefed.attacks.gram.elimination import eliminate, solve_shifted
from securefed.public import require
from securefed.tensors import Array

_LEVEL = 0.02


@dataclass(frozen=True)
class FedPGDuals(Duals):
    """Open U_i and Y_i round by round, and solve the Riemannian steps between them for S_i.

    Works where the view shows ONE client; `duals/joint` is for sums.

    Attributes:
        trace: trace of the (normalised, if the algorithm normalises) Gram matrix, if publicly known; it fixes the
            shift S + c I to which FedPG is blind. Without it, data that look standardised (a constant diagonal)
            get the unit diagonal of standardised data, and any other the shift of least rank.

    With one local step exact once the observed subspaces span the features: about features / rank participations, and
    fewer where a unit diagonal shows (up to `fit_features`): 5 of rank 3 for 20 features.
    With several, a fit is proven only at a misfit of round-off with a Jacobian of full rank; otherwise
    `diagnostics["method"]` says "fitted, not proven", and the estimate may be far off at any `residual`.
    """

    trace: float | None = None
    name: ClassVar[str] = "duals/fedpg"
    algorithm: ClassVar[type[ConsensusPCA]] = FedPG
    orthonormal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.trace is None or self.trace > 0, f"trace must be positive, or None, not {self.trace}")

    def solved(self, steps: Sequence[Step], rows: int, algorithm: ConsensusPCA) -> Found:
        blocks = [gradient_block(step, algorithm.step_size) for step in steps]
        if self.trace is None and len(steps[0].start) <= self.fit_features:
            unit = with_unit_diagonal(steps, blocks, algorithm.step_size)
            if unit is not None:
                counts = unit.rank, unit.unknowns, unit.condition
                return Found(unit.gram, "solved", True, unit.residual, *counts, unit.error)
        seen = eliminate([step.start for step in steps], blocks)
        solution, _ = solve_shifted(seen, rows=rows, trace=self.trace)
        standardised = self._looks_standardised(solution.gram) and solution.rank == len(solution.gram)
        if standardised:
            solution, _ = solve_shifted(seen, trace=float(len(solution.gram)))
        return Found(solution.gram, "solved", standardised, seen.residual, seen.rank, seen.unknowns, seen.condition)

    def fitted(self, steps: Sequence[Step], algorithm: ConsensusPCA) -> Found:
        features = len(steps[0].start)
        found = fit_steps(steps, features, Riemannian(algorithm.step_size, algorithm.local_steps), self.jacobians)
        gram = found.gram
        standardised = found.proven and self._looks_standardised(gram)
        trace = float(features) if standardised else self.trace
        shift = -float(np.linalg.eigvalsh(gram)[0]) if trace is None else (trace - float(np.trace(gram))) / features
        gram = gram + shift * np.eye(features)
        method = "fitted" if found.proven else "fitted, not proven"
        return Found(gram, method, standardised, found.misfit, found.rank, found.unknowns, found.condition)

    def _looks_standardised(self, gram: Array) -> bool:
        """Whether every feature has the same variance, up to the blind shift; it is 1 then."""
        return self.trace is None and float(np.ptp(np.diag(gram))) <= _LEVEL


def gradient_block(step: Step, step_size: float) -> Array:
    """(I - U U^T) S U from one step U+ = QR(U - eta g): g = (U - U+ (U^T U+)^-1) / eta.

    g = (I - U U^T)[-2 S U + Y - rho Z].
    """
    U, end = step.start, step.end
    gradient = (U - end @ np.linalg.inv(U.T @ end)) / step_size
    return np.asarray(-0.5 * off(U, gradient - step.linear))
