"""FedPG under secure aggregation: the pooled Gram matrix, from the mean of the clients read as one client.

Clients that see the same Z move alike, so the mean of their M_i is nearly the message of a client with the mean of
their matrices: nearly exactly in its first step, later but for how far their subspaces are apart, times how far their
matrices are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from securefed.algorithms.pca.consensus import POINT
from securefed.algorithms.pca.fedpg import FedPG
from securefed.algorithms.pca.operators import orth
from securefed.attacks.base import Observation, Observed, Reconstruction, Target
from securefed.attacks.duals.fedpg import gradient_block
from securefed.attacks.duals.opened import no_room
from securefed.attacks.duals.shrunk import from_blocks
from securefed.attacks.duals.steps import Step, opened
from securefed.attacks.duals.unclipped import unclipped
from securefed.attacks.gram.elimination import EliminatedProducts, eliminate, solve_shifted
from securefed.attacks.gram.observed_rounds import rows_of
from securefed.attacks.requirements import MEMORY, untold
from securefed.errors import TranscriptError
from securefed.tensors import Array


@dataclass(frozen=True)
class PooledDuals:
    """Open the mean U and Y of all clients round by round, and solve the steps between them for the mean of their S_i.

    For one local step, the same clients in every sum. Exact where they are alike; otherwise an estimate, and how far
    the mean subspace is from orthonormal (`diagnostics["apart"]`) says how much they differ. It says nothing about a
    single client beyond its share: that is what `duals/joint` is for.

    Where the algorithm normalises, the mean of S_i / rows_i is taken times all rows.

    Sums that a defence clipped are put back first (`unclipped`), and where that or noise of known size is in the steps
    the estimate is shrunk (`shrunk`).

    Attributes:
        memory: bytes that the solve may take; more is refused before anything is allocated.
    """

    memory: int = MEMORY
    name: ClassVar[str] = "duals/pooled"
    secret: ClassVar[str] = "gram"

    def applies(self, target: Target, observed: Observed) -> str | None:
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
        return untold(observed.rounds) or no_room(
            algorithm.rank, target.public.features, len(observed.rounds), self.memory
        )

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        algorithm = cast(FedPG, target.algorithm)
        members = observed.rounds[0].members
        rounds, clipped = unclipped(observed.rounds)
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
            diagnostics={"steps": len(steps), "apart": max(_apart(step) for step in steps)},
            members=members,
        )


def mean_steps(rounds: Sequence[Observation], algorithm: FedPG) -> list[Step]:
    """The mean client's steps."""
    count = len(rounds[0].members)
    means = [replace(o, message={POINT: o.message[POINT] / count}) for o in rounds]
    return opened(means, algorithm.rho, orthonormal=False)


def mean_gram(
    steps: Sequence[Step], algorithm: FedPG, rows: int, error: float = 0.0, *, disturbed: bool = False
) -> tuple[EliminatedProducts, Array]:
    """The mean of S_i (over the rows, where the algorithm normalises), of rank at most `rows`, and what it follows
    from.

    Args:
        error: of an entry of its blocks.      disturbed: whether there is any, known or to be told from their misfit.
    """
    near = [replace(step, start=orth(step.start)) for step in steps]
    blocks = [gradient_block(step, algorithm.step_size) for step in near]
    seen = eliminate([step.start for step in near], blocks)
    if not disturbed:
        return seen, solve_shifted(seen, rows=rows)[0].gram
    told = seen.residual * float(np.sqrt(np.mean(np.square(blocks))))
    return seen, from_blocks([step.start for step in near], blocks, error or max(told, np.finfo(float).tiny), rows)


def _error(rounds: Sequence[Observation], algorithm: FedPG) -> float:
    """Standard deviation of a block's entry: half a second difference of means over the step size."""
    noise = max(o.noise.get(POINT, 0.0) / len(o.members) for o in rounds)
    return float(np.sqrt(6) * noise / (2 * algorithm.step_size))


def _apart(step: Step) -> float:
    """||I - U^T U|| of the mean U: the mean of ||U_i - U||^2, about."""
    return float(np.linalg.norm(step.end.T @ step.end - np.eye(step.end.shape[1])))
