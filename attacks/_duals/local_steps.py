"""Simulate the local steps of FedPG and FedPE as functions of a client's Gram matrix S, with their derivatives.

FedPG and FedPE are federated PCA by consensus ADMM. `local_steps_fit` (for one client's messages) and `joint_fit` (for
sums over clients) vary S until these steps lead where the observed ones do. With U the client's iterate, (features,
rank), Y and T its dual variables, Z the broadcast and eta the step size, a step is

    FedPG:  U <- QR(U - eta (I - U U^T) [-2 S U + Y - rho Z]),
    FedPE:  U <- U - eta [-4 S U + 2 S U A + 2 U (U^T S U) + Y + rho (U - Z) + U (G + G^T)],

with A = U^T U and G = 2 T*B + 2 rho B*B*B, B = max(0, A - I), entry by entry, rho the penalty parameter, and QR(N) the
orthonormal factor of N. FedPG needs no rho U beside -rho Z: I - U U^T maps U to 0. The derivatives of a (features,
rank) matrix by several directions of S are stored as an array (features, directions, rank), its tangents. When a whole
run is simulated, a round's start and its dual variables depend on S as well, so their tangents are arguments. left(M,
d) is M d, right(d, R) is d R and crossed(d, V) is d^T V, for all tangents d at once; complete(N, dN) returns QR(N) with
its tangents; off(U, M) is (I - U U^T) M.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.fedpe import FedPE, lagrangian_gradient
from securefed.algorithms._pca.fedpg import FedPG, local_step
from securefed.algorithms._pca.operators import off
from securefed.attacks._duals.observed_steps import excess
from securefed.attacks._gram.coordinates import GramDirections
from securefed.attacks._gram.tangents import complete, crossed, left, right


@dataclass(frozen=True)
class LocalStart:
    """Inputs of the local steps of a round.

    Attributes:
        U: iterate at the start, (features, rank).
        linear: Y - rho Z, the constant part of the gradient, (features, rank).
        constraint_dual: T, FedPE's multiplier of the constraint on U^T U, (rank, rank).
    """

    U: Array
    linear: Array
    constraint_dual: Array


@dataclass(frozen=True)
class StartTangents:
    """Derivatives of a `LocalStart` by directions of S.

    Attributes:
        d_start: dU, (features, directions, rank).
        d_linear: dY, (features, directions, rank).
        d_constraint_dual: dT, (rank, directions, rank).
    """

    d_start: Array
    d_linear: Array
    d_constraint_dual: Array

    @classmethod
    def zero(cls, start: LocalStart, directions: int) -> StartTangents:
        """Return zero derivatives, for a start that does not depend on S."""
        features, rank = start.U.shape
        zero = np.zeros((features, directions, rank))
        return cls(zero, zero, np.zeros((rank, directions, rank)))


class ConsensusLocalSteps(Protocol):
    """Local steps of a round as a function of S."""

    @property
    def blind(self) -> int:
        """Return the number of directions of S on which the steps do not depend."""
        ...

    def end(self, S: Array, start: LocalStart) -> Array:
        """Return U after the steps.

        Args:
            S: the client's Gram matrix, (features, features).
            start: the start of the round.
        """
        ...

    def end_and_tangents(
        self, S: Array, directions: GramDirections, start: LocalStart, tangents: StartTangents
    ) -> tuple[Array, Array]:
        """Return U after the steps, and its derivatives dU, (features, directions, rank).

        Args:
            S: the client's Gram matrix, (features, features).
            directions: the directions dS.
            start: the start of the round.
            tangents: the derivatives of the start by the same directions.
        """
        ...


@dataclass(frozen=True)
class RiemannianSteps:
    """Simulate FedPG's local steps U <- QR(U - eta (I - U U^T)(Y - rho Z - 2 S U)).

    They are the same for S and S + c I, so one direction of S cannot be observed.

    Attributes:
        step_size: eta.
        local_steps: number of local steps a round.
        blind: number of directions of S on which the steps do not depend.
    """

    step_size: float
    local_steps: int
    blind: int = 1

    def end(self, S: Array, start: LocalStart) -> Array:
        """Return U after the steps."""
        U = start.U
        for _ in range(self.local_steps):
            U = local_step(U, S @ U, start.linear, self.step_size)
        return U

    def end_and_tangents(
        self, S: Array, directions: GramDirections, start: LocalStart, tangents: StartTangents
    ) -> tuple[Array, Array]:
        """Return U after the steps, and dU."""
        U, dU = start.U, tangents.d_start
        for _ in range(self.local_steps):
            linear_part = start.linear - 2 * S @ U
            d_linear_part = tangents.d_linear - 2 * (left(S, dU) + directions.times(U))
            # of (I - U U^T) L with L = Y - rho Z - 2 S U: dL - U U^T dL - dU U^T L - U dU^T L
            d_gradient = (
                d_linear_part
                - left(U, left(U.T, d_linear_part))
                - right(dU, U.T @ linear_part)
                - left(U, crossed(dU, linear_part))
            )
            # The step, then the QR decomposition; both with their derivatives.
            U, dU = complete(U - self.step_size * off(U, linear_part), dU - self.step_size * d_gradient)
        return U, dU


@dataclass(frozen=True)
class EuclideanSteps:
    """Simulate FedPE's local steps U <- U - eta grad L(U), (6) and (7) of the paper of FedPE and FedPG.

    Where U^T U is near I they are nearly the same for S and S + c I.

    Attributes:
        step_size: eta.
        local_steps: number of local steps a round.
        rho: penalty parameter.
        blind: number of directions of S on which the steps do not depend.
    """

    step_size: float
    local_steps: int
    rho: float
    blind: int = 0

    def end(self, S: Array, start: LocalStart) -> Array:
        """Return U after the steps."""
        U = start.U
        for _ in range(self.local_steps):
            U = U - self.step_size * lagrangian_gradient(U, S @ U, start.linear, start.constraint_dual, self.rho)
        return U

    def end_and_tangents(
        self, S: Array, directions: GramDirections, start: LocalStart, tangents: StartTangents
    ) -> tuple[Array, Array]:
        """Return U after the steps, and dU."""
        U, dU = start.U, tangents.d_start
        for _ in range(self.local_steps):
            slope = self._gradient_tangents(S, directions, replace(start, U=U), replace(tangents, d_start=dU))
            gradient = lagrangian_gradient(U, S @ U, start.linear, start.constraint_dual, self.rho)
            U, dU = U - self.step_size * gradient, dU - self.step_size * slope
        return U, dU

    def _gradient_tangents(
        self, S: Array, directions: GramDirections, start: LocalStart, tangents: StartTangents
    ) -> Array:
        """Return d[-4 SU + 2 SU A + 2 U U^T SU + Y - rho Z + rho U + U (G + G^T)], A = U^T U, G = 2 T*B + 2 rho B^3."""
        U, dU, T = start.U, tangents.d_start, start.constraint_dual
        SU, dSU = S @ U, left(S, dU) + directions.times(U)
        A = U.T @ U
        dA = crossed(dU, U) + left(U.T, dU)
        # the terms of the docstring in order, each by the product rule
        out = 2 * right(dSU, A) - 4 * dSU + 2 * left(SU, dA)
        out += 2 * (right(dU, U.T @ SU) + left(U, crossed(dU, SU) + left(U.T, dSU)))
        out += tangents.d_linear + self.rho * dU
        B = excess(U)
        G = 2 * T * B + 2 * self.rho * B**3
        # dB = dA where B > 0, else 0
        dG_dA = np.where(B > 0, 2 * T + 6 * self.rho * B**2, 0.0)
        dG = dG_dA[:, None, :] * dA + 2 * B[:, None, :] * tangents.d_constraint_dual
        d_symmetric = dG + dG.transpose(2, 1, 0)  # d(G + G^T): the directions are the middle axis
        return np.asarray(out + right(dU, G + G.T) + left(U, d_symmetric))


def local_steps_of(algorithm: FedPG | FedPE) -> ConsensusLocalSteps:
    """Return the local steps of the algorithm's clients."""
    if isinstance(algorithm, FedPE):
        return EuclideanSteps(algorithm.step_size, algorithm.local_steps, algorithm.rho)
    return RiemannianSteps(algorithm.step_size, algorithm.local_steps)
