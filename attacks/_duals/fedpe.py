"""Recover a client's Gram matrix S from its messages in FedPE.

The client's iterate U, dual variable Y and multiplier T follow from its messages (`observed_steps`). Its local step is

    U+ = U - eta [grad f(U) + Y + rho (U - Z) + U (G + G^T)],   grad f(U) = -4 S U + 2 S U A + 2 U (U^T S U),

with A = U^T U and, entry by entry, B = max(0, A - I) and G = 2 T B + 2 rho B^3. All but grad f is known, so one local
step gives grad f(U), which is linear in S. With U = Q R, Q orthonormal, its part outside the span of U gives (I - Q
Q^T) S Q exactly. The part inside gives equations for Q^T S Q, which become empty as A approaches I. S follows by
`elimination`. Several local steps are simulated, and S is fitted to them. The package's head has the other symbols.
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
from securefed.attacks._duals.local_steps_fit import fit_steps
from securefed.attacks._duals.observed_steps import ObservedStep, rounding_left
from securefed.attacks._gram.elimination import InnerEquations, eliminate, solve_shifted, symmetric_basis
from securefed.attacks._gram.linear import solve


@dataclass(frozen=True)
class FedPEDuals(DualAttack):
    """Compute one client's U, Y and T round by round, and solve the Euclidean steps between them for its S.

    The view must show one client alone, from its first participation on, since T accumulates from there.

    With one local step the result is exact once the observed subspaces span the features, after about
    features / rank participations. A shift of S by c I changes grad f by 4 c U (A - I): not at all where U^T U = I, as
    at the start, but at later steps, so that the trace of S need not be known. As long as the steps seen leave c open,
    the c is taken for which S + c I, completed to a positive semidefinite matrix, has the least trace, which favours a
    low rank. With several local steps S is fitted; the fit is proven if its residual is round-off and its Jacobian has
    full rank.
    """

    name: ClassVar[str] = "duals/fedpe"
    algorithm: ClassVar[type[ConsensusPCA]] = FedPE
    orthonormal: ClassVar[bool] = False  # U need not stay orthonormal, so that messages are not checked for it

    def solved(self, steps: Sequence[ObservedStep], rows: int, algorithm: ConsensusPCA) -> GramEstimate:
        """Solve for S, of rank at most `rows`, from rounds of one local step, as `DualAttack.solved`.

        Where the equations leave the shift c of S + c I open, `solve_shifted` chooses it.

        Args:
            steps: U before and after each round's local step, with the client's dual variables.
            rows: the client's number of rows.
            algorithm: FedPE with its settings.
        """
        parts = [gradient_parts(step, algorithm.step_size, algorithm.rho) for step in steps]
        eliminated = eliminate(
            [Q for Q, _, _ in parts], [block for _, block, _ in parts], [inner for _, _, inner in parts]
        )
        if eliminated.rank == eliminated.unknowns:
            solution = solve(eliminated.probes, eliminated.products, rows=rows)
        else:
            solution, _ = solve_shifted(eliminated, rows=rows)
        return GramEstimate(
            gram=solution.gram,
            method="solved",
            standardised=False,  # no use is made of z-scored columns
            residual=eliminated.residual,
            rank=eliminated.rank,
            unknowns=eliminated.unknowns,
            condition=eliminated.condition,
            rounding=rounding_left(steps, [block for _, block, _ in parts], algorithm.step_size),
        )

    def fitted(self, steps: Sequence[ObservedStep], rows: int, algorithm: ConsensusPCA) -> GramEstimate:
        """Fit S, of a client with `rows` rows, to rounds of several local steps."""
        gram, fit = fit_steps(steps, algorithm)
        return GramEstimate(
            gram=gram,
            method="fitted" if fit.proven else "fitted, not proven",
            standardised=False,
            residual=fit.residual,
            rank=fit.rank,
            unknowns=fit.unknowns,
            condition=fit.condition,
        )


def gradient_parts(step: ObservedStep, step_size: float, rho: float) -> tuple[Array, Array, InnerEquations]:
    """Return Q, (I - Q Q^T) S Q and equations for Theta = Q^T S Q, from one local step that starts at U = Q R.

    The step gives grad f = (U - U+) / eta less the known terms of the gradient. With A = U^T U, V = S U and
    M = U^T V = R^T Theta R,

        grad f = V (2 A - 4 I) + 2 U M,
        (I - Q Q^T) V = (I - Q Q^T) grad f (2 A - 4 I)^-1    outside the span of U,
        U^T grad f = -4 M + 2 M A + 2 A M                    inside it.

    Args:
        step: U and U+ of a round, and the client's dual variables in it.
        step_size: eta.
        rho: penalty parameter.
    """
    U, T = step.start, step.constraint_dual
    # `step.linear` is Y - rho Z, the part of the gradient that is constant in U
    other_terms = lagrangian_gradient(U, np.zeros_like(U), step.linear, T, rho)  # all of grad L except grad f
    gradient = (U - step.end) / step_size - other_terms
    Q = orth(U)
    R, A, identity = Q.T @ U, U.T @ U, np.eye(U.shape[1])
    block = off(Q, gradient) @ np.linalg.inv(2 * A - 4 * identity) @ np.linalg.inv(R)
    # the image of every basis matrix E_q of Theta: R^T E_q R for M
    M = R.T @ symmetric_basis(len(A)) @ R
    # the equations inside, divided by 4, so that their round-off is about that of the block
    return Q, block, InnerEquations((M @ A + A @ M - 2 * M) / 2, U.T @ gradient / 4)
