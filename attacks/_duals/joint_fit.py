"""Recover each client's Gram matrix S_i from sums of FedPG's or FedPE's messages, by one fit of all clients.

Client i sends M_i = U_i + Y_i / rho, its iterate after the local steps plus its scaled dual variable, and on receiving
the next consensus Z sets Y_i = rho (M_i - Z). It starts at U_i = Z, Y_i = 0. A local step moves U_i against the
gradient of ||(I - U_i U_i^T) A_i||^2 + <Y_i, U_i - Z> + rho/2 ||U_i - Z||^2, with S_i = A_i A_i^T (`local_steps`). A
sum of messages gives no single iterate. But each client's messages are a known function of S_i and of the broadcasts,
and a non-linear one, so that the sums depend on every S_i. All clients are therefore simulated from the start, and
their S_i fitted to the sums together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.consensus import POINT
from securefed.algorithms._pca.fedpe import FedPE
from securefed.algorithms._pca.fedpg import FedPG
from securefed.algorithms._pca.operators import orth
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks._duals.dual_attack import CONSTANT_DIAGONAL
from securefed.attacks._duals.local_steps import ConsensusLocalSteps, LocalStart, StartTangents, local_steps_of
from securefed.attacks._duals.observed_steps import excess
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.joint_attack import JointAttack, JointFitProblem
from securefed.attacks._gram.tangents import crossed, left
from securefed.errors import DivergenceError


@dataclass(frozen=True)
class JointDuals(JointAttack):
    """Fit the Gram matrices of all clients of a sum, for FedPG and FedPE with any number of local steps.

    Where the algorithm normalises, each single matrix is divided by its client's number of rows, and the sum is formed
    with the mean number of rows for each. FedPG's messages do not depend on multiples of I added to S_i; these are
    chosen for least rank or, where the diagonal is constant, for the trace of z-scored columns.
    """

    name: ClassVar[str] = "duals/joint"

    def why_other_algorithm(self, algorithm: object) -> str | None:
        """Return why the algorithm is none that this attack reads, or `None`."""
        return None if isinstance(algorithm, FedPG | FedPE) else "The messages hold no points of FedPG or FedPE."

    def size(self, target: Target, rounds: int) -> tuple[int, int]:
        """Return the number of unknowns of a client and of equations."""
        algorithm, features = cast("FedPG | FedPE", target.algorithm), target.public.features
        return features * (features + 1) // 2 - local_steps_of(algorithm).blind, rounds * features * algorithm.rank

    def fit_problem(self, observed: View, target: Target) -> JointFitProblem:
        """Return the observed sums and the simulated client."""
        sender = SimulatedConsensusClient.of(observed, target)
        observed_sums = np.concatenate([o.message[POINT].reshape(-1) for o in observed.rounds])
        return JointFitProblem(sender, observed_sums, np.zeros(sender.count))

    def rescaled(self, grams: Array, target: Target, members: Sequence[int]) -> tuple[Array, float]:
        """Choose FedPG's unknown multiples of I; return the matrices, and the factor from their sum to the value."""
        algorithm = cast("FedPG | FedPE", target.algorithm)
        shifted = np.stack([_shifted(gram) for gram in grams]) if local_steps_of(algorithm).blind else grams
        return shifted, float(
            np.mean([target.public.rows[client] for client in members])
        ) if algorithm.normalise else 1.0


def _shifted(gram: Array) -> Array:
    """Add the multiple of I that FedPG does not show: for a unit diagonal if that is constant, else for least rank."""
    diagonal = np.diag(gram)
    shift = 1 - diagonal.mean() if np.ptp(diagonal) <= CONSTANT_DIAGONAL else -np.linalg.eigvalsh(gram)[0]
    return np.asarray(gram + shift * np.eye(len(gram)))


@dataclass(frozen=True)
class SimulatedConsensusClient:
    """Messages of one client of FedPG or FedPE over all rounds, as a function of the coordinates of its S.

    Attributes:
        rounds: observed rounds, with the broadcasts.
        followed: consensus Z that followed from each round.
        rho: penalty parameter.
        motion: the local steps as a function of S.
        coordinates: parametrisation of S.
    """

    rounds: Sequence[RoundView]
    followed: Sequence[Array]
    rho: float
    motion: ConsensusLocalSteps
    coordinates: SymmetricMatrices

    @classmethod
    def of(cls, observed: View, target: Target) -> SimulatedConsensusClient:
        """Read the broadcasts that the client receives; after the last round that is the run's output."""
        algorithm = cast("FedPG | FedPE", target.algorithm)
        rounds = observed.rounds
        following = [o.broadcast[BASIS] for o in rounds[1:]] + [observed.output.get(BASIS, rounds[-1].broadcast[BASIS])]
        return cls(
            rounds, following, algorithm.rho, local_steps_of(algorithm), SymmetricMatrices.of(target.public.features)
        )

    @property
    def count(self) -> int:
        """Number of coordinates of S."""
        return self.coordinates.count

    @property
    def determined(self) -> int:
        """Number of coordinates that the messages depend on."""
        return self.count - self.motion.blind

    def gram(self, x: Array) -> Array:
        """Return S, given its coordinates."""
        return self.coordinates.matrix(x)

    def sent(self, x: Array) -> Array:
        """Return all messages of the client, (equations,); NaN where the steps diverge."""
        S = self.gram(x)
        U, dual, T = self._first
        points = []
        try:
            for observation, following in zip(self.rounds, self.followed, strict=True):
                U = self.motion.end(S, LocalStart(U, dual - self.rho * observation.broadcast[BASIS], T))
                points.append(U + dual / self.rho)
                dual, T = self.rho * (points[-1] - following), T + self.rho * excess(U) ** 2
        except (LinAlgError, DivergenceError):
            return np.full(sum(o.message[POINT].size for o in self.rounds), np.nan)
        return np.concatenate([point.reshape(-1) for point in points])

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """Return all messages and their derivatives by the coordinates of S."""
        S = self.gram(x)
        U, dual, T = self._first
        start_tangents = StartTangents.zero(LocalStart(U, dual, T), self.count)
        points, tangents = [], []
        for observation, following in zip(self.rounds, self.followed, strict=True):
            start = LocalStart(U, dual - self.rho * observation.broadcast[BASIS], T)
            U, dU = self.motion.end_and_tangents(S, self.coordinates, start, start_tangents)
            points.append(U + dual / self.rho)
            tangents.append(dU + start_tangents.d_linear / self.rho)
            B = excess(U)
            dT = start_tangents.d_constraint_dual + 2 * self.rho * B[:, None, :] * (crossed(dU, U) + left(U.T, dU))
            start_tangents = StartTangents(dU, self.rho * tangents[-1], dT)
            dual, T = self.rho * (points[-1] - following), T + self.rho * B**2
        flat = [tangent.transpose(0, 2, 1).reshape(-1, self.count) for tangent in tangents]
        return np.concatenate([point.reshape(-1) for point in points]), np.vstack(flat)

    @cached_property
    def _first(self) -> tuple[Array, Array, Array]:
        """Return U, Y and T at the start."""
        Z = self.rounds[0].broadcast[BASIS]
        return orth(Z), np.zeros_like(Z), np.zeros((Z.shape[1], Z.shape[1]))
