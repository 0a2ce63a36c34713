"""FedPE: federated PCA in Euclidean space by consensus ADMM (fedpca_grassmann, Algorithm 1).

Client i has the Gram matrix S_i = A_i A_i^T of its rows A_i^T, a basis U_i (features, rank) and dual variables Y_i; the
server has the consensus Z. A client takes C local steps and sends U_i + Y_i / rho; the server sets Z to the mean of
what the clients sent. This file holds the local step; consensus.py holds the rest, which FedPG shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._base import algorithms
from securefed.algorithms._pca.consensus import ConsensusClient, ConsensusPCA


@algorithms.register(
    "pca/fedpe",
    summary="consensus ADMM with Euclidean gradient steps and a one-sided surrogate of orthonormality",
    source="fedpca_grassmann Algorithm 1, eqs. (4)-(10)",
    transmits="U_i + Y_i / rho (features x rank)",
)
@dataclass(frozen=True)
class FedPE(ConsensusPCA):
    """Solve consensus PCA by ADMM with Euclidean gradient steps.

    The clients take gradient steps U <- U - eta grad L_i(U) on the augmented Lagrangian (6). The constraint
    U^T U = I is replaced by h(U) <= 0, with h(U) = max(0, U^T U - I)^2 entry by entry (4):

    L_i(U) = f_i(U) + <Y_i, U - Z> + <T_i, h(U)> + rho/2 ||U - Z||^2 + rho/2 ||h(U)||^2

    with the reconstruction error f_i(U) = ||(I - U U^T) A_i||_F^2, and T_i the multipliers of the constraint.

    As in the paper, h is one-sided: it penalises columns that are longer than 1 or at an acute angle to each other, but
    not columns that are too short. The reconstruction error f_i keeps the columns from becoming too short.

    The U_i are therefore only nearly orthonormal. The curvature of f_i is largest along its own leading component,
    where its second derivative is 8 lambda_1(S_i): choose eta (8 lambda_1 + rho) < 2, a bound four times lower than
    FedPG's. With larger steps the iterates may overflow; the client then raises `DivergenceError`.
    """

    def step(self, U: Array, SU: Array, linear: Array, constraint_dual: Array) -> Array:
        """Return U after one gradient step on L_i; the arguments are those of `lagrangian_gradient`."""
        return U - self.step_size * lagrangian_gradient(U, SU, linear, constraint_dual, self.rho)

    def next_constraint_dual(self, client: ConsensusClient) -> Array:
        """Return the multiplier of h after a round: T_i <- T_i + rho h(U_i^{k+1})  (10)."""
        assert client.basis is not None  # set by the contribution that is being committed
        excess = _excess(client.basis)
        dual: Array = client.constraint_dual + self.rho * excess * excess
        return dual


def lagrangian_gradient(U: Array, SU: Array, linear: Array, constraint_dual: Array, rho: float) -> Array:
    """Return the gradient of L_i with respect to U_i  (6), (7).

    Args:
        U: the iterate, (..., features, rank); it need not be orthonormal.
        SU: S U, with S the client's Gram matrix.
        linear: Y - rho Z, the constant part of the gradient; Y is the dual variable, Z the consensus.
        constraint_dual: T, the multiplier of the constraint h(U) <= 0, (..., rank, rank).
        rho: penalty parameter.
    """
    Ut = np.swapaxes(U, -1, -2)
    # grad f = -4 S U + 2 S U (U^T U) + 2 U (U^T S U), for U that need not be orthonormal
    gradient = -4 * SU + 2 * SU @ (Ut @ U) + 2 * U @ (Ut @ SU)
    B = _excess(U)
    # G is the derivative of <T, B*B> + rho/2 ||B*B||^2 by B; by the chain rule through U^T U it adds U (G + G^T)
    G = 2 * constraint_dual * B + 2 * rho * B**3
    total: Array = gradient + linear + rho * U + U @ (G + np.swapaxes(G, -1, -2))
    return total


def _excess(U: Array) -> Array:
    """Return B = max(0, U^T U - I), entry by entry; h = B * B  (4)."""
    excess: Array = np.maximum(0.0, np.swapaxes(U, -1, -2) @ U - np.eye(U.shape[-1]))
    return excess
