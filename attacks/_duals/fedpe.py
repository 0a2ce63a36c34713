"""Recover a client's Gram matrix from its messages in FedPE.

U_i, Y_i and T_i follow from the messages. One local step therefore gives grad f_i = -4 S U + 2 S U A + 2 U (U^T S U)
with A = U^T U, which is linear in S_i. With U = Q R, Q orthonormal, the part of the gradient outside the span of U
gives (I - Q Q^T) S Q exactly. The part inside gives Q^T S Q only as far as U is not orthonormal: for A = I it vanishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.consensus import ConsensusPCA
from securefed.algorithms._pca.fedpe import FedPE, lagrangian_gradient
from securefed.algorithms._pca.operators import off, orth
from securefed.attacks._duals.dual_attack import DualAttack, GramEstimate
from securefed.attacks._duals.local_steps import EuclideanSteps
from securefed.attacks._duals.local_steps_fit import fit_steps
from securefed.attacks._duals.observed_steps import ObservedStep
from securefed.attacks._gram.elimination import InnerEquations, eliminate, solve_shifted, symmetric_basis
from securefed.attacks._gram.linear import solve


@dataclass(frozen=True)
class FedPEDuals(DualAttack):
    """Compute U_i, Y_i and T_i round by round, and solve the Euclidean steps between them for S_i.

    The view must show one client alone, from its first participation on, since T_i accumulates from there.

    With one local step the result is exact once the observed subspaces span the features, after about
    features / rank participations. The trace need not be known: U_i^T U_i = I holds at the start only, and later steps
    tell S + c I from S. As long as they do not, the shift of least rank is taken. With several local steps S_i is
    fitted, and a fit is proven in the same way as for FedPG.
    """

    name: ClassVar[str] = "duals/fedpe"
    algorithm: ClassVar[type[ConsensusPCA]] = FedPE
    orthonormal: ClassVar[bool] = False

    def solved(self, steps: Sequence[ObservedStep], rows: int, algorithm: ConsensusPCA) -> GramEstimate:
        """Solve for S from rounds of one local step."""
        parts = [gradient_parts(step, algorithm.step_size, algorithm.rho) for step in steps]
        seen = eliminate([Q for Q, _, _ in parts], [block for _, block, _ in parts], [inner for _, _, inner in parts])
        if seen.rank == seen.unknowns:
            solution = solve(seen.probes, seen.products, rows=rows)
        else:
            solution, _ = solve_shifted(seen, rows=rows)
        return GramEstimate(solution.gram, "solved", False, seen.residual, seen.rank, seen.unknowns, seen.condition)

    def fitted(self, steps: Sequence[ObservedStep], algorithm: ConsensusPCA) -> GramEstimate:
        """Fit S to rounds of several local steps."""
        motion = EuclideanSteps(algorithm.step_size, algorithm.local_steps, algorithm.rho)
        found = fit_steps(steps, len(steps[0].start), motion, self.jacobians)
        method = "fitted" if found.proven else "fitted, not proven"
        return GramEstimate(found.gram, method, False, found.residual, found.rank, found.unknowns, found.condition)


def gradient_parts(step: ObservedStep, step_size: float, rho: float) -> tuple[Array, Array, InnerEquations]:
    """Return Q, (I - Q Q^T) S Q and equations for Theta = Q^T S Q, from one step U+ = U - eta grad L(U), U = Q R.

    With V = S U and M = U^T V = R^T Theta R: grad f = -2 V (2 I - A) + 2 U M, so (I - Q Q^T) V = (I - Q Q^T) grad f
    (2 A - 4 I)^-1 and U^T grad f = -4 M + 2 M A + 2 A M.
    """
    U, T = step.start, step.constraint_dual
    known = lagrangian_gradient(U, np.zeros_like(U), step.linear, T, rho)  # all of grad L except grad f
    gradient = (U - step.end) / step_size - known
    Q = orth(U)
    R, A, one = Q.T @ U, U.T @ U, np.eye(U.shape[1])
    block = off(Q, gradient) @ np.linalg.inv(2 * A - 4 * one) @ np.linalg.inv(R)
    M = R.T @ symmetric_basis(len(A)) @ R
    # a quarter, so that round-off in these equations is about that of the block
    return Q, block, InnerEquations((M @ A + A @ M - 2 * M) / 2, U.T @ gradient / 4)
