"""FedPE gives its iterates away, and with them its Gram matrices; more plainly than FedPG, since nothing is blind.

U_i, Y_i and T_i follow from the messages, so one local step gives grad f_i = -4 S U + 2 S U A + 2 U (U^T S U) with
A = U^T U, linear in S_i. With U = Q R, Q orthonormal, its part outside U gives (I - Q Q^T) S Q exactly, and its part
inside gives Q^T S Q so far as U is not orthonormal: for A = I that part vanishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.algorithms.pca.consensus import ConsensusPCA
from securefed.algorithms.pca.fedpe import FedPE, lagrangian_gradient
from securefed.algorithms.pca.operators import off, orth
from securefed.attacks.duals.fit import fit_steps
from securefed.attacks.duals.motion import Euclidean
from securefed.attacks.duals.opened import Duals, Found
from securefed.attacks.duals.steps import Step
from securefed.attacks.gram.elimination import InnerEquations, eliminate, solve_shifted, symmetric_basis
from securefed.attacks.gram.linear import solve
from securefed.tensors import Array


@dataclass(frozen=True)
class FedPEDuals(Duals):
    """Open U_i, Y_i and T_i round by round, and solve the Euclidean steps between them for S_i.

    Works where the view shows ONE client, from its first participation on (T_i adds up from there).

    With one local step exact once the observed subspaces span the features: about features / rank participations.
    No trace needs to be known: U_i^T U_i = I only at the start, and S + c I shows afterwards. Where it does not show
    yet, the shift of least rank is taken. With several steps a fit is proven as for FedPG.
    """

    name: ClassVar[str] = "duals/fedpe"
    algorithm: ClassVar[type[ConsensusPCA]] = FedPE
    orthonormal: ClassVar[bool] = False

    def solved(self, steps: Sequence[Step], rows: int, algorithm: ConsensusPCA) -> Found:
        parts = [gradient_parts(step, algorithm.step_size, algorithm.rho) for step in steps]
        seen = eliminate([Q for Q, _, _ in parts], [block for _, block, _ in parts], [inner for _, _, inner in parts])
        if seen.rank == seen.unknowns:
            solution = solve(seen.probes, seen.products, rows=rows)
        else:
            solution, _ = solve_shifted(seen, rows=rows)
        return Found(solution.gram, "solved", False, seen.residual, seen.rank, seen.unknowns, seen.condition)

    def fitted(self, steps: Sequence[Step], algorithm: ConsensusPCA) -> Found:
        motion = Euclidean(algorithm.step_size, algorithm.local_steps, algorithm.rho)
        found = fit_steps(steps, len(steps[0].start), motion, self.jacobians)
        method = "fitted" if found.proven else "fitted, not proven"
        return Found(found.gram, method, False, found.misfit, found.rank, found.unknowns, found.condition)


def gradient_parts(step: Step, step_size: float, rho: float) -> tuple[Array, Array, InnerEquations]:
    """Q, (I - Q Q^T) S Q, and equations of Theta = Q^T S Q, from one step U+ = U - eta grad L(U), U = Q R.

    With V = S U and M = U^T V = R^T Theta R: grad f = -2 V (2 I - A) + 2 U M, so (I - Q Q^T) V = (I - Q Q^T) grad f
    (2 A - 4 I)^-1 and U^T grad f = -4 M + 2 M A + 2 A M.
    """
    U, T = step.start, step.constraint_dual
    known = lagrangian_gradient(U, np.zeros_like(U), step.linear, T, rho)  # all of grad L but grad f
    gradient = (U - step.end) / step_size - known
    Q = orth(U)
    R, A, one = Q.T @ U, U.T @ U, np.eye(U.shape[1])
    block = off(Q, gradient) @ np.linalg.inv(2 * A - 4 * one) @ np.linalg.inv(R)
    M = R.T @ symmetric_basis(len(A)) @ R
    # a quarter, so that round-off in these equations is about that of the block
    return Q, block, InnerEquations((M @ A + A @ M - 2 * M) / 2, U.T @ gradient / 4)
