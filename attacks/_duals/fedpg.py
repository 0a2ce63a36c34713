"""Recover a client's Gram matrix S from its messages in FedPG.

The client's iterate U and dual variable Y follow from its messages (`observed_steps`). Its local step is the Riemannian
one, U+ = QR(U - eta g) with g = (I - U U^T) [-2 S U + Y - rho Z]. With one local step, U and U+ give g, and so (I - U
U^T) S U, which is linear in S. `elimination` finds the rest of S U, which is U (U^T S U), from many rounds together, as
S is symmetric: for two rounds k and l, U_k^T S U_l is the transpose of U_l^T S U_k. Then S follows. With several steps,
the steps are simulated and S is fitted to them. The multiple of I that the messages leave open follows from a constant
diagonal; else it is the least at which S is positive semidefinite, which gives a low rank. The package's head has the
symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.consensus import ConsensusPCA
from securefed.algorithms._pca.fedpg import FedPG
from securefed.algorithms._pca.operators import off
from securefed.attacks._duals.dual_attack import CONSTANT_DIAGONAL, DualAttack, GramEstimate, z_scored_diagonal
from securefed.attacks._duals.local_steps_fit import fit_steps
from securefed.attacks._duals.observed_steps import ObservedStep, rounding_left
from securefed.attacks._duals.unit_diagonal import with_unit_diagonal
from securefed.attacks._gram.elimination import eliminate, solve_shifted

_SHIFT = "a multiple of the identity, on which FedPG's messages do not depend (taken {})"
_Z_SCORED = _SHIFT.format("for the diagonal of z-scored columns")
_LEAST_RANK = _SHIFT.format("for the least rank")


@dataclass(frozen=True)
class FedPGDuals(DualAttack):
    """Compute one client's U and Y round by round, and solve the Riemannian steps between them for its S.

    The view must show one client alone; `duals/joint` is for sums.

    With one local step S is determined once the observed subspaces span the features, after features / rank
    participations, up to the rounding of the messages. At rank 3 and 20 features (z-scored digits, four seeds) the
    relative error is 7e-2 after 6 participations, 5e-5 or less after 7, and 3e-7 or less after 13. Fewer are enough
    where the messages show a unit diagonal (up to `fit_features` features): 5, with an error below 1e-6. With several
    local steps S is fitted. The fit is proven only if its residual is round-off and its Jacobian has full rank;
    otherwise `diagnostics["method"]` says "fitted, not proven", and the estimate may be far off at any `residual`.

    FedPG's messages are the same for S + c I. An S whose diagonal is constant gets the diagonal of z-scored columns (1
    if the algorithm normalises, else the number of rows), and any other S the least c at which it is positive
    semidefinite.
    """

    name: ClassVar[str] = "duals/fedpg"
    algorithm: ClassVar[type[ConsensusPCA]] = FedPG
    orthonormal: ClassVar[bool] = True

    def solved(self, steps: Sequence[ObservedStep], rows: int, algorithm: ConsensusPCA) -> GramEstimate:
        """Solve for S from rounds of one local step.

        A constant diagonal, as z-scored columns have, is looked for first, since it saves rounds. Where there is none,
        or too few messages show it, S is solved for without it.

        Args:
            steps: U before and after each round's local step, with the client's dual variables.
            rows: the client's number of rows, which bounds the rank of S.
            algorithm: FedPG with its settings.
        """
        blocks = [gradient_block(step, algorithm.step_size) for step in steps]
        unit = z_scored_diagonal(algorithm, rows)
        if len(steps[0].start) <= self.fit_features:
            # `with_unit_diagonal` looks for a diagonal of 1, so it gets S / unit: blocks divided by unit. A block is a
            # difference of messages over the step size, so that its rounding is that at the step size unit * eta.
            found = with_unit_diagonal(steps, [block / unit for block in blocks], unit * algorithm.step_size)
            if found is not None:
                left = rounding_left(steps, blocks, algorithm.step_size)
                return replace(found, gram=unit * found.gram, open=(_Z_SCORED,), rounding=left)
        eliminated = eliminate([step.start for step in steps], blocks)
        solution, _ = solve_shifted(eliminated, rows=rows)  # the second result is c
        # `solution.rank` is the dimension of the span of all the U; only if it is `features` is the diagonal observed
        standardised = _looks_standardised(solution.gram / unit) and solution.rank == len(solution.gram)
        if standardised:  # the U span all features, so that a bound on the rank of S adds nothing
            solution, _ = solve_shifted(eliminated, trace=unit * len(solution.gram))
        return GramEstimate(
            gram=solution.gram,
            method="solved",
            standardised=standardised,
            residual=eliminated.residual,
            rank=eliminated.rank,
            unknowns=eliminated.unknowns,
            condition=eliminated.condition,
            open=(_Z_SCORED if standardised else _LEAST_RANK,),
            rounding=rounding_left(steps, blocks, algorithm.step_size),
        )

    def fitted(self, steps: Sequence[ObservedStep], rows: int, algorithm: ConsensusPCA) -> GramEstimate:
        """Fit S, of a client with `rows` rows, to rounds of several local steps; arguments are those of `solved`."""
        features, unit = len(steps[0].start), z_scored_diagonal(algorithm, rows)  # unit: 1 or the number of rows
        gram, fit = fit_steps(steps, algorithm)
        standardised = fit.proven and _looks_standardised(gram / unit)
        # c: that of the diagonal of z-scored columns, or the one that makes the least eigenvalue 0, for the least rank
        shift = unit - float(np.trace(gram)) / features if standardised else -float(np.linalg.eigvalsh(gram)[0])
        gram = gram + shift * np.eye(features)
        return GramEstimate(
            gram=gram,
            method="fitted" if fit.proven else "fitted, not proven",
            standardised=standardised,
            residual=fit.residual,
            rank=fit.rank,
            unknowns=fit.unknowns,
            condition=fit.condition,
            open=(_Z_SCORED if standardised else _LEAST_RANK,),
        )


def _looks_standardised(gram: Array) -> bool:
    """Return whether the diagonal of S, given over that of z-scored columns, is constant; it is then taken to be 1.

    The unknown c does not change whether it is constant.
    """
    return float(np.ptp(np.diag(gram))) <= CONSTANT_DIAGONAL


def gradient_block(step: ObservedStep, step_size: float) -> Array:
    """Return (I - U U^T) S U, (features, rank), from one step U+ = QR(U - eta g), g = (I - U U^T) [-2 S U + Y - rho Z].

    U+ R = U - eta g and U^T g = 0 give U^T U+ R = I, so that g = (U - U+ (U^T U+)^-1) / eta.
    """
    U, end = step.start, step.end
    gradient = (U - end @ np.linalg.inv(U.T @ end)) / step_size
    return np.asarray(-0.5 * off(U, gradient - step.linear))
