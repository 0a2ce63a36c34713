"""What the attacks on consensus PCA have in common: which views they read, and what they report."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from securefed.algorithms.pca.consensus import ConsensusPCA
from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.duals.steps import Step, opened
from securefed.attacks.duals.unclipped import unclipped
from securefed.attacks.requirements import MEMORY, too_large, untold
from securefed.errors import TranscriptError
from securefed.public import require
from securefed.tensors import Array


@dataclass(frozen=True)
class Found:
    """S over the algorithm's scale (the rows, where it normalises), and how it was found.

    Attributes:
        error: relative, to be expected of S from the precision of the messages; NaN where it is not known.
    """

    gram: Array
    method: str
    standardised: bool
    residual: float
    rank: int
    unknowns: int
    condition: float
    error: float = math.nan


@dataclass(frozen=True)
class Duals(ABC):
    """Open U_i and Y_i round by round, and solve the steps between them for S_i.

    Attributes:
        fit_features: largest number of features at which several local steps are fitted, and one is solved entry by
            entry; the cost grows with the sixth power (20 features: a second for several; 64: minutes, and the
            default `jacobians` end at an error of .2).
        jacobians: largest number of linearisations of that fit.
        memory: bytes that the solve may take; more is refused before anything is allocated.
    """

    fit_features: int = 40
    jacobians: int = 60
    memory: int = MEMORY
    secret: ClassVar[str] = "gram"
    algorithm: ClassVar[type[ConsensusPCA]]
    orthonormal: ClassVar[bool]

    def __post_init__(self) -> None:
        require(self.jacobians >= 1, f"jacobians must be at least 1, not {self.jacobians}")
        require(self.fit_features >= 0, f"fit_features must be at least 0, not {self.fit_features}")

    @abstractmethod
    def solved(self, steps: Sequence[Step], rows: int, algorithm: ConsensusPCA) -> Found:
        """From one local step a round."""

    @abstractmethod
    def fitted(self, steps: Sequence[Step], algorithm: ConsensusPCA) -> Found:
        """From several."""

    def applies(self, target: Target, observed: Observed) -> str | None:
        if not isinstance(target.algorithm, self.algorithm):
            return f"The messages hold no dual variables of {self.algorithm.__name__}."
        if len(observed.members) > 1:
            return "A sum over several clients is not linear in their Gram matrices: no step of a client opens."
        if target.algorithm.local_steps > 1 and target.public.features > self.fit_features:
            return f"Fitting several local steps is limited to {self.fit_features} features here (`fit_features`)."
        if len(observed.rounds) < 2:
            return "Two participations are the least that show a gradient and its subspace."
        return untold(observed.rounds) or no_room(
            target.algorithm.rank, target.public.features, len(observed.rounds), self.memory
        )

    def run(self, observed: Observed, target: Target, rng: np.random.Generator) -> Reconstruction:
        reason = self.applies(target, observed)
        if reason is not None:
            raise TranscriptError(reason)
        algorithm = cast(ConsensusPCA, target.algorithm)
        (client,) = observed.members
        rows = target.public.rows[client]
        rounds = unclipped(observed.rounds)[0] if self.orthonormal else observed.rounds
        steps = opened(rounds, algorithm.rho, orthonormal=self.orthonormal)
        if len(steps) < 2:
            raise TranscriptError(
                "The broadcasts that followed do not fit the messages, or these have fewer than six digits: fewer than "
                "two steps open."
            )
        found = self.solved(steps, rows, algorithm) if algorithm.local_steps == 1 else self.fitted(steps, algorithm)
        return Reconstruction(
            secret=self.secret,
            value=found.gram * (rows if algorithm.normalise else 1),
            residual=found.residual,
            rank=found.rank,
            unknowns=found.unknowns,
            condition=found.condition,
            diagnostics={
                "steps": len(steps),
                "method": found.method,
                "standardised": found.standardised,
                "hidden error": found.error,
            },
            members=observed.members,
        )


def no_room(rank: int, features: int, rounds: int, memory: int) -> str | None:
    """Why an elimination does not fit into `memory` bytes: of blocks that are each other's transposes, combinations
    that vanish, and S itself."""
    columns = rounds * rank * (rank + 1) // 2
    equations = (rounds * rank) ** 2 // 2 + rounds * rank * features
    return too_large(
        8 * (3 * columns * equations + 8 * features**2),
        memory,
        f"Eliminating {features} x {features} entries from {rounds} rounds of rank {rank}",
    )
