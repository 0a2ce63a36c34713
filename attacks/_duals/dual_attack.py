"""Recover one client's Gram matrix S from its messages in FedPG or FedPE: the common base class of the two attacks.

The client's iterates and duals follow from its messages and the broadcasts (`observed_steps`). A subclass solves the
local steps from one U to the next for S, or fits S to them; this class decides whether a view (the messages that the
attacker observes) allows that and reports the result. A client starts at U = Z and Y = 0, which the attacker knows, so
that k rounds in which it takes part give k steps. One step says nothing about U^T S U (`elimination_too_large`), so the
attack needs two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.algorithms._pca.consensus import ConsensusPCA
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._diagnosis import ROUNDING
from securefed.attacks._duals.clip_reversal import undo_clipping
from securefed.attacks._duals.observed_steps import ObservedStep, observed_steps
from securefed.attacks._requirements import MEMORY, check_applies, too_large, why_incomplete
from securefed.errors import TranscriptError

CONSTANT_DIAGONAL = 0.02
"""Largest range of the diagonal of S / rows that counts as constant, that is, as that of z-scored columns, whose exact
value is 1.
"""


def z_scored_diagonal(algorithm: ConsensusPCA, rows: float) -> float:
    """Return the diagonal of a client's S, in the algorithm's scale, where the client z-scored its columns.

    A column of mean 0 and variance 1 has the squared length `rows`; algorithms that normalise use S / rows.
    """
    return 1.0 if algorithm.normalise else float(rows)


@dataclass(frozen=True)
class GramEstimate:
    """An estimate of a client's S, and how it was found.

    Attributes:
        gram: S, (features, features), in the algorithm's scale: over the number of rows where the algorithm normalises.
        method: `solved`, `fitted` or `fitted, not proven`. A fit is proven to be S if its residual is round-off, its
            Jacobian has full rank and no direction can hide a large error (`FittedGram.proven`); one that is not
            proven may be far from S at any residual.
        standardised: whether the diagonal was recognised as that of z-scored columns, and set to `z_scored_diagonal`.
        residual: relative residual of the equations, or the norm of the fit's residual.
        rank: rank of the equations.
        unknowns: number of unknowns.
        condition: condition number of the equations: largest over smallest of the singular values counted in `rank`.
        error: expected relative error of S from the precision of the messages; NaN if unknown.
        open: what the messages do not tell, as `Reconstruction.open`.
        rounding: relative residual that the rounding of the messages leaves in the equations; 0 if unknown.
    """

    gram: Array
    method: str
    standardised: bool
    residual: float
    rank: int
    unknowns: int
    condition: float
    error: float = math.nan
    open: tuple[str, ...] = ()
    rounding: float = 0.0


@dataclass(frozen=True)
class DualAttack(ABC):
    """Attack that computes one client's U and Y round by round, and solves the local steps between them for its S.

    Attributes:
        fit_features: largest number of features for which several local steps are fitted; views of more are
            refused. With one local step it is the largest for which a subclass may check whether S has the diagonal of
            z-scored columns; where the messages show that, fewer rounds determine S. The cost grows with the sixth
            power of the features: a second for several steps at 20, minutes at 64, where the fit has not converged
            when it ends (error .2).
        memory: largest number of bytes for the solve of one local step a round; more is refused before anything is
            allocated. `fit_features` bounds the fit of several.

    A subclass sets the class variables `algorithm`, the class whose messages it reads, and `orthonormal`, whether that
    algorithm keeps U orthonormal.
    """

    fit_features: int = 40
    memory: int = MEMORY
    secret: ClassVar[str] = "gram"
    algorithm: ClassVar[type[ConsensusPCA]]
    orthonormal: ClassVar[bool]

    def __post_init__(self) -> None:
        require(self.fit_features >= 0, f"fit_features must be at least 0, not {self.fit_features}")

    @abstractmethod
    def solved(self, steps: Sequence[ObservedStep], rows: int, algorithm: ConsensusPCA) -> GramEstimate:
        """Solve for S from rounds of one local step.

        Args:
            steps: the client's U before and after each round's local step, and its dual variables.
            rows: the client's number of rows, which bounds the rank of S.
            algorithm: the algorithm with its settings.
        """

    @abstractmethod
    def fitted(self, steps: Sequence[ObservedStep], rows: int, algorithm: ConsensusPCA) -> GramEstimate:
        """Fit S, of a client with `rows` rows, to rounds of several local steps; arguments are those of `solved`."""

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None` if it can."""
        if not isinstance(target.algorithm, self.algorithm):
            return f"The messages hold no dual variables of {self.algorithm.__name__}."
        if len(observed.members) > 1:
            return "A sum over several clients is not linear in their Gram matrices; `duals/joint` fits sums."
        if target.algorithm.local_steps > 1 and target.public.features > self.fit_features:
            return f"Fitting several local steps is limited to {self.fit_features} features here (`fit_features`)."
        # One step gives no equation for U^T S U: those of `elimination_too_large` compare two rounds. A step of FedPE
        # adds equations for it, but these are empty where U^T U = I, as at a client's start.
        if len(observed.rounds) < 2:
            return "Two participations are the least that show a gradient and its subspace."
        reason = why_incomplete(observed.rounds)
        if reason is None and target.algorithm.local_steps == 1:  # several are fitted to the first rounds only
            reason = elimination_too_large(
                target.algorithm.rank, target.public.features, len(observed.rounds), self.memory
            )
        return reason

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the Gram matrix A_i A_i^T of the one client in the view.

        Raises:
            TranscriptError: the view lacks what the attack needs.
        """
        check_applies(self.applies(target, observed))
        algorithm = cast(ConsensusPCA, target.algorithm)
        (client,) = observed.members
        rows = target.public.rows[client]
        # A defence may have clipped the messages. ||U||_F^2 = rank gives the factor back, so U has to be orthonormal;
        # the second result says whether any message was clipped, which is not needed here.
        rounds = undo_clipping(observed.rounds)[0] if self.orthonormal else observed.rounds
        steps = observed_steps(rounds, algorithm.rho, orthonormal=self.orthonormal)
        # `observed_steps` leaves out a step of FedPG whose U is not orthonormal to 1e-6. The rounding of fewer than six
        # digits exceeds that; so does a wrong broadcast.
        if len(steps) < 2:
            raise TranscriptError(
                "The broadcasts that followed do not fit the messages, or these have fewer than six digits: fewer than "
                "two local steps can be computed."
            )
        estimate = (self.solved if algorithm.local_steps == 1 else self.fitted)(steps, rows, algorithm)
        return Reconstruction(
            secret=self.secret,
            value=estimate.gram * (rows if algorithm.normalise else 1),
            residual=estimate.residual,
            rank=estimate.rank,
            unknowns=estimate.unknowns,
            condition=estimate.condition,
            diagnostics={
                "steps": len(steps),
                "method": estimate.method,
                "standardised": estimate.standardised,
                "hidden error": estimate.error,
                ROUNDING: estimate.rounding,
            },
            members=observed.members,
            open=estimate.open,
        )


def elimination_too_large(rank: int, features: int, rounds: int, memory: int) -> str | None:
    """Return why the linear system of `_gram/elimination` does not fit into `memory` bytes, or `None` if it does.

    Each round k gives the block (I - U_k U_k^T) S U_k of S U_k. The rest of it, Theta_k = U_k^T S U_k, symmetric, is
    unknown: rank (rank + 1) / 2 unknowns a round. The equations for them are, with K rounds:

        U_j^T (S U_k) = (U_k^T (S U_j))^T for every pair of rounds      rank^2 each, K (K - 1) / 2 pairs
        sum_k (S U_k) N_k = 0 where sum_k U_k N_k = 0                   `features` each, fewer than K rank such N

    U_k has orthonormal columns in FedPG. In FedPE it has not, and Q_k of U_k = Q_k R_k takes its place, of the same
    span and size, so that unknowns and equations are as many. There each step adds rank^2 equations for its own
    Theta_k, which make the system larger by a share of 2 / K at most and are not counted.

    Args:
        rank: number of columns of U.
        features: number of rows and columns of S.
        rounds: number of observed rounds.
        memory: largest number of bytes.
    """
    columns = rounds * rank * (rank + 1) // 2  # unknowns; three copies of the system are held at a time
    equations = (rounds * rank) ** 2 // 2 + rounds * rank * features
    return too_large(
        8 * (3 * columns * equations + 8 * features**2),
        memory,
        f"Eliminating {features} x {features} entries from {rounds} rounds of rank {rank}",
    )
