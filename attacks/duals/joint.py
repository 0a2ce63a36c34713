"""FedPG and FedPE under secure aggregation: the single Gram matrices from sums of M_i alone.

No iterate opens: of several clients only the sum of the U_i follows. But each client's run is a function of its S_i and
of the broadcasts, which are known, so all of them are simulated from the start and fitted to the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.pca.consensus import POINT
from securefed.algorithms.pca.fedpe import FedPE
from securefed.algorithms.pca.fedpg import FedPG
from securefed.algorithms.pca.operators import orth
from securefed.algorithms.pca.server import BASIS
from securefed.attacks.base import Observation, Observed, Target
from securefed.attacks.duals.motion import Motion, Moved, Place, motion_of
from securefed.attacks.duals.steps import excess
from securefed.attacks.gram.coordinates import SymmetricMatrices
from securefed.attacks.gram.joint_attack import JointAttack, JointFitProblem
from securefed.attacks.gram.tangents import crossed, left
from securefed.errors import DivergenceError
from securefed.tensors import Array

_LEVEL = 0.02


@dataclass(frozen=True)
class JointDuals(JointAttack):
    """FedPG and FedPE, any number of local steps.

    Where the algorithm normalises, the matrices one by one are each over its client's rows, and their sum is taken
    with the mean of the rows for each. FedPG leaves each S_i + c_i I open, which is fixed by least rank or, where the
    data look standardised, by their trace.
    """

    name: ClassVar[str] = "duals/joint"

    def foreign(self, algorithm: object) -> str | None:
        return None if isinstance(algorithm, FedPG | FedPE) else "The messages hold no points of FedPG or FedPE."

    def size(self, target: Target, rounds: int) -> tuple[int, int]:
        algorithm, features = cast("FedPG | FedPE", target.algorithm), target.public.features
        return features * (features + 1) // 2 - motion_of(algorithm).blind, rounds * features * algorithm.rank

    def sums(self, observed: Observed, target: Target) -> JointFitProblem:
        sender = ConsensusSender.of(observed, target)
        seen = np.concatenate([o.message[POINT].reshape(-1) for o in observed.rounds])
        return JointFitProblem(sender, seen, np.zeros(sender.count))

    def finished(self, grams: Array, target: Target, members: Sequence[int]) -> tuple[Array, float]:
        algorithm = cast("FedPG | FedPE", target.algorithm)
        shifted = np.stack([_shifted(gram) for gram in grams]) if motion_of(algorithm).blind else grams
        return shifted, float(
            np.mean([target.public.rows[client] for client in members])
        ) if algorithm.normalise else 1.0


def _shifted(gram: Array) -> Array:
    """FedPG's blind shift: that of standardised data where the diagonal is constant, else of least rank."""
    diagonal = np.diag(gram)
    shift = 1 - diagonal.mean() if np.ptp(diagonal) <= _LEVEL else -np.linalg.eigvalsh(gram)[0]
    return np.asarray(gram + shift * np.eye(len(gram)))


@dataclass(frozen=True)
class ConsensusSender:
    """One client of FedPG or FedPE over all rounds, as a function of the coordinates of its S."""

    rounds: Sequence[Observation]
    followed: Sequence[Array]
    rho: float
    motion: Motion
    coordinates: SymmetricMatrices

    @classmethod
    def of(cls, observed: Observed, target: Target) -> ConsensusSender:
        algorithm = cast("FedPG | FedPE", target.algorithm)
        rounds = observed.rounds
        later = [o.broadcast[BASIS] for o in rounds[1:]] + [observed.output.get(BASIS, rounds[-1].broadcast[BASIS])]
        return cls(rounds, later, algorithm.rho, motion_of(algorithm), SymmetricMatrices.of(target.public.features))

    @property
    def count(self) -> int:
        return self.coordinates.count

    @property
    def determined(self) -> int:
        return self.count - self.motion.blind

    def gram(self, x: Array) -> Array:
        return self.coordinates.matrix(x)

    def sent(self, x: Array) -> Array:
        S = self.gram(x)
        U, dual, T = self._first
        points = []
        try:
            for observation, after in zip(self.rounds, self.followed, strict=True):
                U = self.motion.end(S, Place(U, dual - self.rho * observation.broadcast[BASIS], T))
                points.append(U + dual / self.rho)
                dual, T = self.rho * (points[-1] - after), T + self.rho * excess(U) ** 2
        except (LinAlgError, DivergenceError):
            return np.full(sum(o.message[POINT].size for o in self.rounds), np.nan)
        return np.concatenate([point.reshape(-1) for point in points])

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        S = self.gram(x)
        U, dual, T = self._first
        moved = Moved.still(Place(U, dual, T), self.count)
        points, tangents = [], []
        for observation, after in zip(self.rounds, self.followed, strict=True):
            place = Place(U, dual - self.rho * observation.broadcast[BASIS], T)
            U, dU = self.motion.end_and_tangents(S, self.coordinates, place, moved)
            points.append(U + dual / self.rho)
            tangents.append(dU + moved.d_linear / self.rho)
            B = excess(U)
            dT = moved.d_constraint_dual + 2 * self.rho * B[:, None, :] * (crossed(dU, U) + left(U.T, dU))
            moved = Moved(dU, self.rho * tangents[-1], dT)
            dual, T = self.rho * (points[-1] - after), T + self.rho * B**2
        flat = [tangent.transpose(0, 2, 1).reshape(-1, self.count) for tangent in tangents]
        return np.concatenate([point.reshape(-1) for point in points]), np.vstack(flat)

    @cached_property
    def _first(self) -> tuple[Array, Array, Array]:
        Z = self.rounds[0].broadcast[BASIS]
        return orth(Z), np.zeros_like(Z), np.zeros((Z.shape[1], Z.shape[1]))
