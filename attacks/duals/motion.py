"""The local steps of FedPG and FedPE as functions of S, with their derivatives: what an attacker simulates.

Tangents are (features, directions, rank) arrays (`gram/tangents`); a direction of S need not be the only thing that
moves: where a whole run is simulated, the start and the duals depend on S too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from securefed.algorithms.pca.fedpe import FedPE, lagrangian_gradient
from securefed.algorithms.pca.fedpg import FedPG, local_step
from securefed.algorithms.pca.operators import off
from securefed.attacks.duals.steps import excess
from securefed.attacks.gram.coordinates import GramDirections
from securefed.attacks.gram.tangents import complete, crossed, left, right
from securefed.tensors import Array


@dataclass(frozen=True)
class Place:
    """Where local steps start: U, Y - rho Z and T."""

    U: Array
    linear: Array
    constraint_dual: Array


@dataclass(frozen=True)
class Moved:
    """Its tangents: dU, dY, (features, directions, rank), and dT, (rank, directions, rank)."""

    d_start: Array
    d_linear: Array
    d_constraint_dual: Array

    @classmethod
    def still(cls, place: Place, directions: int) -> Moved:
        """Nothing moves but S."""
        features, rank = place.U.shape
        none = np.zeros((features, directions, rank))
        return cls(none, none, np.zeros((rank, directions, rank)))


class Motion(Protocol):
    """The local steps of a round."""

    @property
    def blind(self) -> int:
        """Directions of S that change nothing."""
        ...

    def end(self, S: Array, place: Place) -> Array:
        """U after the steps."""
        ...

    def end_and_tangents(self, S: Array, directions: GramDirections, place: Place, moved: Moved) -> tuple[Array, Array]:
        """U after the steps, and dU."""
        ...


@dataclass(frozen=True)
class Riemannian:
    """FedPG's: U <- QR(U - eta (I - U U^T)(Y - rho Z - 2 S U)); blind to S + c I."""

    step_size: float
    local_steps: int
    blind: int = 1

    def end(self, S: Array, place: Place) -> Array:
        U = place.U
        for _ in range(self.local_steps):
            U = local_step(U, S @ U, place.linear, self.step_size)
        return U

    def end_and_tangents(self, S: Array, directions: GramDirections, place: Place, moved: Moved) -> tuple[Array, Array]:
        U, dU = place.U, moved.d_start
        for _ in range(self.local_steps):
            pull = place.linear - 2 * S @ U
            d_pull = moved.d_linear - 2 * (left(S, dU) + directions.times(U))
            d_gradient = d_pull - left(U, left(U.T, d_pull)) - right(dU, U.T @ pull) - left(U, crossed(dU, pull))
            U, dU = complete(U - self.step_size * off(U, pull), dU - self.step_size * d_gradient)
        return U, dU


@dataclass(frozen=True)
class Euclidean:
    """FedPE's: U <- U - eta grad L(U)  (6), (7). Blind to nothing, but nearly so to S + c I where U^T U is near I."""

    step_size: float
    local_steps: int
    rho: float
    blind: int = 0

    def end(self, S: Array, place: Place) -> Array:
        U = place.U
        for _ in range(self.local_steps):
            U = U - self.step_size * lagrangian_gradient(U, S @ U, place.linear, place.constraint_dual, self.rho)
        return U

    def end_and_tangents(self, S: Array, directions: GramDirections, place: Place, moved: Moved) -> tuple[Array, Array]:
        U, dU = place.U, moved.d_start
        for _ in range(self.local_steps):
            slope = self._gradient_tangents(S, directions, replace(place, U=U), replace(moved, d_start=dU))
            gradient = lagrangian_gradient(U, S @ U, place.linear, place.constraint_dual, self.rho)
            U, dU = U - self.step_size * gradient, dU - self.step_size * slope
        return U, dU

    def _gradient_tangents(self, S: Array, directions: GramDirections, place: Place, moved: Moved) -> Array:
        """d[-4 SU + 2 SU A + 2 U U^T SU + Y - rho Z + rho U + U (G + G^T)], A = U^T U, G = 2 T*B + 2 rho B^3."""
        U, dU, T = place.U, moved.d_start, place.constraint_dual
        SU, dSU = S @ U, left(S, dU) + directions.times(U)
        A = U.T @ U
        dA = crossed(dU, U) + left(U.T, dU)
        out = 2 * right(dSU, A) - 4 * dSU + 2 * left(SU, dA)
        out += 2 * (right(dU, U.T @ SU) + left(U, crossed(dU, SU) + left(U.T, dSU)))
        out += moved.d_linear + self.rho * dU
        B = excess(U)
        G = 2 * T * B + 2 * self.rho * B**3
        bend = np.where(B > 0, 2 * T + 6 * self.rho * B**2, 0.0)
        dG = bend[:, None, :] * dA + 2 * B[:, None, :] * moved.d_constraint_dual
        return np.asarray(out + right(dU, G + G.T) + left(U, dG + dG.transpose(2, 1, 0)))


def motion_of(algorithm: FedPG | FedPE) -> Motion:
    """How its clients move."""
    if isinstance(algorithm, FedPE):
        return Euclidean(algorithm.step_size, algorithm.local_steps, algorithm.rho)
    return Riemannian(algorithm.step_size, algorithm.local_steps)
