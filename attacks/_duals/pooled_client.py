"""Recover the pooled Gram matrix from sums of FedPG's messages, by treating their mean as the message of one client.

Clients that receive the same Z move alike, so that the mean of their M_i is nearly the message of a client with the
mean of their matrices. This is nearly exact in the first step. Later it is off by how much their subspaces differ
times how much their matrices differ.
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
from securefed.attacks._gram.observed_rounds import rows_of
from securefed.attacks._gram.shrinkage import NoisyProducts, shrunk
from securefed.attacks._requirements import MEMORY, why_incomplete
from securefed.errors import TranscriptError

_ITERATIONS, _STEPS = 30, 3
"""Iterations between S and U^T S U, and steps of the shrinkage in each."""
_RELAXATION = 0.5
"""Overrelaxation of U^T S U, as a share of its change in an iteration."""
_NONE = np.zeros(0)


@dataclass(frozen=True)
class PooledDuals:
    """Compute the mean U and Y of all clients round by round, and solve the steps between them for the mean of S_i.

    It needs one local step a round and the same clients in every sum. The result is exact if the clients are equal;
    otherwise it is an estimate, and `diagnostics["apart"]`, the distance of the mean subspace from orthonormality,
    tells how much the clients differ. It says nothing about a single client beyond its share; `duals/joint` does.

    Where the algorithm normalises, the mean of S_i / rows_i is multiplied by the number of all rows.

    Clipping is undone first (`clip_reversal`). After clipping, or with noise of known size, the estimate is shrunk.

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
        """Reconstruct the secret of the view's members.

        Raises:
            TranscriptError: the view lacks what the attack needs.
        """
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        algorithm = cast(FedPG, target.algorithm)
        members = observed.rounds[0].members
        rounds, clipped = undo_clipping(observed.rounds)
        steps = mean_steps(rounds, algorithm)
        rows = rows_of(members, target.public)
        error = _error(observed.rounds, algorithm)
        largest = target.public.feature_bound**2 * (1 if algorithm.normalise else rows / len(members))
        if error > largest:
            raise TranscriptError(
                f"Noise of {error:.1g} hides an entry of the mean Gram matrix, which is {largest:.1g} at most."
            )
        seen, gram = mean_gram(steps, algorithm, rows, error, disturbed=clipped or error > 0)
        return Reconstruction(
            secret=self.secret,
            value=gram * (rows if algorithm.normalise else len(members)),
            residual=seen.residual,
            rank=seen.rank,
            unknowns=seen.unknowns,
            condition=seen.condition,
            diagnostics={"steps": len(steps), "apart": max(_departure(step) for step in steps)},
            members=members,
        )


def mean_steps(rounds: Sequence[RoundView], algorithm: FedPG) -> list[ObservedStep]:
    """Return the steps of the mean client."""
    count = len(rounds[0].members)
    means = [replace(o, message={POINT: o.message[POINT] / count}) for o in rounds]
    return observed_steps(means, algorithm.rho, orthonormal=False)


def mean_gram(
    steps: Sequence[ObservedStep], algorithm: FedPG, rows: int, error: float = 0.0, *, disturbed: bool = False
) -> tuple[EliminatedProducts, Array]:
    """Solve for the mean of S_i, of rank at most `rows`; divided by the rows, where the algorithm normalises.

    Args:
        steps: steps of the mean client.
        algorithm: FedPG with one local step.
        rows: largest rank.
        error: standard deviation of an entry of a block, if known.
        disturbed: whether the blocks hold errors, of the size `error` or, without it, of that of their residual.

    Returns:
        The products that the messages show, and the matrix.
    """
    near = [replace(step, start=orth(step.start)) for step in steps]
    blocks = [gradient_block(step, algorithm.step_size) for step in near]
    seen = eliminate([step.start for step in near], blocks)
    if not disturbed:
        return seen, solve_shifted(seen, rows=rows)[0].gram
    estimated = seen.residual * float(np.sqrt(np.mean(np.square(blocks))))
    return seen, _shrunk_gram(
        [step.start for step in near], blocks, error or max(estimated, np.finfo(float).tiny), rows
    )


def _error(rounds: Sequence[RoundView], algorithm: FedPG) -> float:
    """Return the standard deviation of a block's entry: half a second difference of means over the step size."""
    noise = max(o.noise.get(POINT, 0.0) / len(o.members) for o in rounds)
    return float(np.sqrt(6) * noise / (2 * algorithm.step_size))


def _departure(step: ObservedStep) -> float:
    """Return ||I - U^T U|| of the mean U, which is about the mean of ||U_i - U||^2."""
    return float(np.linalg.norm(step.end.T @ step.end - np.eye(step.end.shape[1])))


def _shrunk_gram(starts: Sequence[Array], blocks: Sequence[Array], error: float, rows: int) -> Array:
    """Return S of rank at most `rows` from disturbed blocks (I - U U^T) S U.

    The blocks hold S U except for U^T S U, which is taken from the estimate itself, iteration by iteration, while S is
    shrunk according to the size of the error (`gram/shrinkage`). What no block shows, a multiple of I above all,
    becomes as small as S >= 0 allows.

    Args:
        starts: U_k, orthonormal.
        blocks: (I - U_k U_k^T) S U_k, with errors.
        error: standard deviation of the error of a block's entry, positive.
        rows: largest rank of S.
    """
    bases, seen = np.stack(starts), np.stack(blocks)
    errors = np.full(len(bases), error)
    inner, found = np.zeros((len(bases), bases.shape[2], bases.shape[2])), None
    for _ in range(_ITERATIONS):
        completed = NoisyProducts(bases, seen + bases @ inner, errors, _NONE, _NONE)
        found = shrunk(completed, rows, start=found, steps=_STEPS, relax=False)
        now = bases.mT @ (found.gram @ bases)
        inner = now + _RELAXATION * (now - inner)
    assert found is not None
    return found.gram
