"""Recover the pooled Gram matrix from sums of FedPG's messages, by treating their mean as the message of one client.

The mean of the M_i is nearly the message of one client that holds S, the mean of the S_i: exactly to first order in the
first step, later up to terms of the size of the differences of the U_i times those of the S_i. Its U and Y follow from
the mean messages and the broadcasts (`observed_steps`), each of its steps gives the block (I - U U^T) S U, and S is
solved for from the blocks of all rounds, as from a single client's (`fedpg`); of the matrices S + c I, whose blocks are
the same, the one of least rank is taken. The attack runs on views that show sums only, as under secure aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.consensus import POINT
from securefed.algorithms._pca.fedpg import FedPG
from securefed.algorithms._pca.operators import orth
from securefed.attacks._base import Reconstruction, RoundView, Target, View
from securefed.attacks._duals.clip_reversal import undo_clipping
from securefed.attacks._duals.dual_attack import elimination_too_large
from securefed.attacks._duals.fedpg import gradient_block
from securefed.attacks._duals.observed_steps import ObservedStep, observed_steps
from securefed.attacks._gram.elimination import EliminatedProducts, eliminate, solve_shifted
from securefed.attacks._gram.faps.projected_equations import ProjectedEquations
from securefed.attacks._gram.linear import nearest_psd
from securefed.attacks._gram.observed_rounds import rows_of
from securefed.attacks._requirements import MEMORY, check_applies, why_incomplete
from securefed.errors import TranscriptError

_UNDONE_WITHIN = 0.05
"""Largest ||I - U^T U|| of a mean iterate at which its clipping counts as undone. Measured on clipped sums of four
clients: .01 at most where it was undone; .5 and more where it was not, but for one step of .1. Half and twice the value
give the same answer at all other steps.
"""
_EXPLAINED = 1.5
"""Misfit, in units of the known error, above which the misfit counts as the error."""
_ALTERNATIONS = 40
"""Alternations between posterior and projection: 100 change the error by .003 at most (digits, 20 features, and tables
of 10, noise from 1e-5 to 1e-2 of a message's clip)."""
_FAINT = 1e-3
"""Least variance of an entry of S under its prior, relative to that of a block's error."""


@dataclass(frozen=True)
class PooledDuals:
    """Compute the mean U and Y of all clients round by round, and solve the steps between them for the mean of S_i.

    It needs one local step a round and the same clients in every sum. The result is exact if the clients are equal;
    otherwise it is an estimate, and `diagnostics["apart"]`, the distance of the mean iterate from orthonormality,
    tells how much the clients differ. About single clients it says nothing beyond their share of the rows; the attack
    `duals/joint` fits each of them.

    Where the algorithm normalises, the mean of S_i / rows_i is multiplied by the number of all rows.

    Clipping is undone first (`clip_reversal`); the first step where that fails, and all steps after it, are left out.
    After clipping, or with noise of known size, S is the most likely matrix under a normal prior.

    Attributes:
        memory: largest number of bytes for the solve; more is refused before anything is allocated.
    """

    memory: int = MEMORY
    name: ClassVar[str] = "duals/pooled"
    secret: ClassVar[str] = "gram"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None` if it can."""
        algorithm = target.algorithm
        if not isinstance(algorithm, FedPG):
            return "The messages hold no dual variables of FedPG."
        if algorithm.local_steps > 1:
            return "The mean of several local steps is not solved, only that of one."
        if len(observed.rounds) < 2:
            return "Two sums are the least that show a gradient and its subspace."
        members = observed.rounds[0].members
        if len(members) < 2:
            return "The view shows one client, which `duals/fedpg` opens."
        if any(o.members != members for o in observed.rounds):
            return "The clients of the sums change, so their mean is no client."
        return why_incomplete(observed.rounds) or elimination_too_large(
            algorithm.rank, target.public.features, len(observed.rounds), self.memory
        )

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the sum of the S_i of the view's members.

        Raises:
            TranscriptError: the view lacks what the attack needs, or noise hides the largest entries.
        """
        check_applies(self.applies(target, observed))
        algorithm = cast(FedPG, target.algorithm)
        members = observed.rounds[0].members
        rounds, clipped = undo_clipping(observed.rounds)
        steps = mean_steps(rounds, algorithm)
        if clipped:
            steps = _before_a_failure(steps)
        rows = rows_of(members, target.public)
        error = _error(observed.rounds, algorithm)
        # of the mean S_i, features lying within the public bound
        largest_entry = target.public.feature_bound**2 * (1 if algorithm.normalise else rows / len(members))
        if error > largest_entry:
            raise TranscriptError(
                f"Noise of {error:.1g} hides an entry of the mean Gram matrix, which is {largest_entry:.1g} at most."
            )
        eliminated, gram = mean_gram(steps, algorithm, rows, error, disturbed=clipped or error > 0)
        return Reconstruction(
            secret=self.secret,
            value=gram * (rows if algorithm.normalise else len(members)),
            residual=eliminated.residual,
            rank=eliminated.rank,
            unknowns=eliminated.unknowns,
            condition=eliminated.condition,
            diagnostics={"steps": len(steps), "apart": max(_distance_from_orthonormal(step) for step in steps)},
            members=members,
        )


def mean_steps(rounds: Sequence[RoundView], algorithm: FedPG) -> list[ObservedStep]:
    """Return the steps of the mean client, whose U is a mean and not orthonormal."""
    count = len(rounds[0].members)
    means = [replace(o, message={POINT: o.message[POINT] / count}) for o in rounds]
    return observed_steps(means, algorithm.rho, orthonormal=False)


def mean_gram(
    steps: Sequence[ObservedStep], algorithm: FedPG, rows: int, error: float = 0.0, *, disturbed: bool = False
) -> tuple[EliminatedProducts, Array]:
    """Solve for the mean of S_i, of rank at most `rows`, or of S_i / rows_i where the algorithm normalises.

    Args:
        steps: steps of the mean client.
        algorithm: FedPG with one local step.
        rows: largest rank.
        error: standard deviation of an entry of a block (I - U U^T) S U; 0 if unknown.
        disturbed: whether the blocks have errors, of size `error` or, if that is 0, of the size of their residual.

    Returns:
        The products of S that the messages show, and S.
    """
    orthonormal = [replace(step, start=orth(step.start)) for step in steps]
    blocks = [gradient_block(step, algorithm.step_size) for step in orthonormal]
    eliminated = eliminate([step.start for step in orthonormal], blocks)
    if not disturbed:
        return eliminated, solve_shifted(eliminated, rows=rows)[0].gram
    estimated_error = eliminated.residual * float(np.sqrt(np.mean(np.square(blocks))))
    starts = np.stack([step.start for step in orthonormal])
    error = error or max(estimated_error, np.finfo(float).tiny)
    gram = _posterior_mode(starts, np.stack(blocks), error, rows)
    misfit = _misfit(starts, np.stack(blocks), gram)
    return eliminated, gram if misfit <= _EXPLAINED * error else _posterior_mode(starts, np.stack(blocks), misfit, rows)


def _error(rounds: Sequence[RoundView], algorithm: FedPG) -> float:
    """Return the standard deviation of the noise in an entry of a block (I - U U^T) S U.

    A block is about (U+ - U) / (2 eta) plus terms without S. With Y / rho = M_before - Z, M_before the mean message of
    the round before, U = M - M_before + Z. So a block holds half the second difference M+ - 2 M + M_before over eta,
    and noise of size s in each mean message becomes sqrt(1 + 4 + 1) s / (2 eta).
    """
    noise = max(o.noise.get(POINT, 0.0) / len(o.members) for o in rounds)
    return float(np.sqrt(6) * noise / (2 * algorithm.step_size))


def _before_a_failure(steps: Sequence[ObservedStep]) -> list[ObservedStep]:
    """Return the steps before the first whose clipping was not undone; the duals of all later ones are wrong.

    The mean of clients that differ is not quite one client, so that the factor of a clipped mean may come out wrong.
    One such step has a block a hundred times too large, which would spoil the estimate.

    Raises:
        TranscriptError: fewer than two steps are left.
    """
    apart = [_distance_from_orthonormal(step) > _UNDONE_WITHIN for step in steps]
    kept = list(steps[: apart.index(True)] if any(apart) else steps)
    if len(kept) < 2:
        raise TranscriptError(
            "The clipping of the mean could be undone for fewer than two steps, since the clients differ too much."
        )
    return kept


def _distance_from_orthonormal(step: ObservedStep) -> float:
    """Return ||I - U^T U|| of the mean U, which is about the mean of ||U_i - U||^2."""
    return float(np.linalg.norm(step.end.T @ step.end - np.eye(step.end.shape[1])))


def _posterior_mode(bases: Array, observed: Array, error: float, rows: int) -> Array:
    """Return the most likely positive semidefinite S of rank at most `rows`, given blocks (I - U U^T) S U with errors.

    An entry of S has a normal prior of mean 0, and the variance that the blocks show beyond their errors. ADMM (the
    alternating direction method of multipliers) alternates between the posterior without the constraint, a linear
    system, and the projection on positive semidefinite matrices.

    Args:
        bases: U_k, orthonormal, (steps, features, rank).
        observed: (I - U_k U_k^T) S U_k with errors, (steps, features, rank).
        error: standard deviation of the error of a block's entry, positive.
        rows: largest rank of S.
    """
    _, features, rank = bases.shape
    signal = max(float(np.mean(observed**2)) - error**2, _FAINT * error**2) * features / (features - rank)
    pulled = np.tensordot(observed, bases, ((0, 2), (0, 2))) / error**2
    # half of the ridge is the prior, half the penalty of ADMM on the distance from the projection
    system = ProjectedEquations.of(bases, np.full(len(bases), error**-2), 0.0, 2 / signal)
    projection = dual = np.zeros((features, features))
    for _ in range(_ALTERNATIONS):
        S = system.solve((pulled + pulled.T) / 2 + (projection - dual) / signal)[0]
        projection = nearest_psd(S + dual, rows)
        dual = dual + S - projection
    return projection


def _misfit(bases: Array, observed: Array, gram: Array) -> float:
    """Return the standard deviation of the blocks' errors, as what S leaves shows it; arguments as `_posterior_mode`.

    It is larger than the noise where the clients differ, so that their mean is no client.
    """
    steps, features, rank = bases.shape
    images = gram @ bases
    left = float(np.sum((images - bases @ (bases.mT @ images) - observed) ** 2))
    equations, unknowns = steps * rank * (features - rank), features * (features + 1) // 2 - 1
    return float(np.sqrt(left / max(equations - unknowns, equations / 4)))
