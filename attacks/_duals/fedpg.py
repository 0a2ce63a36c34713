"""Recover a client's Gram matrix from its messages in FedPG, although it sends neither U_i nor Y_i.

With one local step, two successive iterates give the Riemannian gradient, which is linear in S_i. With several steps,
the steps are simulated and S_i is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.algorithms._pca.consensus import ConsensusPCA
from securefed.algorithms._pca.fedpg import FedPG
from securefed.algorithms._pca.operators import off
from securefed.attacks._duals.dual_attack import CONSTANT_DIAGONAL, DualAttack, GramEstimate
from securefed.attacks._duals.local_steps import RiemannianSteps
from securefed.attacks._duals.local_steps_fit import fit_steps
from securefed.attacks._duals.observed_steps import ObservedStep
from securefed.attacks._duals.unit_diagonal import with_unit_diagonal
from securefed.attacks._gram.elimination import eliminate, solve_shifted


@dataclass(frozen=True)
class FedPGDuals(DualAttack):
    """Compute U_i and Y_i round by round, and solve the Riemannian steps between them for S_i.

    The view must show one client alone; `duals/joint` is for sums.

    With one local step the result is exact once the observed subspaces span the features, after about
    features / rank participations. Fewer are enough where the messages show a unit diagonal (up to `fit_features`
    features): 5 participations at rank 3 and 20 features. With several local steps S_i is fitted. The fit is proven
    only if its residual is round-off and its Jacobian has full rank; otherwise `diagnostics["method"]` says "fitted,
    not proven", and the estimate may be far off at any `residual`.

    Attributes:
        trace: trace of the Gram matrix (normalised, if the algorithm normalises), if it is publicly known. It fixes
            the shift S + c I, on which FedPG's messages do not depend. Without it, data whose diagonal is constant get
            the unit diagonal of z-scored columns, and other data the shift of least rank.
    """

    trace: float | None = None
    name: ClassVar[str] = "duals/fedpg"
    algorithm: ClassVar[type[ConsensusPCA]] = FedPG
    orthonormal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.trace is None or self.trace > 0, f"trace must be positive, or None, not {self.trace}")

    def solved(self, steps: Sequence[ObservedStep], rows: int, algorithm: ConsensusPCA) -> GramEstimate:
        """Solve for S from rounds of one local step."""
        blocks = [gradient_block(step, algorithm.step_size) for step in steps]
        if self.trace is None and len(steps[0].start) <= self.fit_features:
            unit = with_unit_diagonal(steps, blocks, algorithm.step_size)
            if unit is not None:
                return unit
        seen = eliminate([step.start for step in steps], blocks)
        solution, _ = solve_shifted(seen, rows=rows, trace=self.trace)
        standardised = self._looks_standardised(solution.gram) and solution.rank == len(solution.gram)
        if standardised:
            solution, _ = solve_shifted(seen, trace=float(len(solution.gram)))
        return GramEstimate(
            solution.gram, "solved", standardised, seen.residual, seen.rank, seen.unknowns, seen.condition
        )

    def fitted(self, steps: Sequence[ObservedStep], algorithm: ConsensusPCA) -> GramEstimate:
        """Fit S to rounds of several local steps."""
        features = len(steps[0].start)
        found = fit_steps(steps, features, RiemannianSteps(algorithm.step_size, algorithm.local_steps), self.jacobians)
        gram = found.gram
        standardised = found.proven and self._looks_standardised(gram)
        trace = float(features) if standardised else self.trace
        shift = -float(np.linalg.eigvalsh(gram)[0]) if trace is None else (trace - float(np.trace(gram))) / features
        gram = gram + shift * np.eye(features)
        method = "fitted" if found.proven else "fitted, not proven"
        return GramEstimate(gram, method, standardised, found.residual, found.rank, found.unknowns, found.condition)

    def _looks_standardised(self, gram: Array) -> bool:
        """Return whether every feature has the same variance, up to the unknown shift; the variance is then 1."""
        return self.trace is None and float(np.ptp(np.diag(gram))) <= CONSTANT_DIAGONAL


def gradient_block(step: ObservedStep, step_size: float) -> Array:
    """Return (I - U U^T) S U from one step U+ = QR(U - eta g): g = (U - U+ (U^T U+)^-1) / eta.

    g = (I - U U^T)[-2 S U + Y - rho Z].
    """
    U, end = step.start, step.end
    gradient = (U - end @ np.linalg.inv(U.T @ end)) / step_size
    return np.asarray(-0.5 * off(U, gradient - step.linear))
