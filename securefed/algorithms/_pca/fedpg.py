"""FedPG: federated PCA on the Grassmann manifold by consensus ADMM (fedpca_grassmann, Algorithm 2).

Client i has the Gram matrix S_i = A_i A_i^T of its rows A_i^T, a basis U_i (features, rank) and dual variables Y_i; the
server has the consensus Z. The common part of FedPG and FedPE, everything but the local step, is in consensus.py: a
client takes C local steps, sends U_i + Y_i / rho, and the server sets Z to the mean of what the clients sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from securefed._tensors import Array
from securefed.algorithms._base import algorithms
from securefed.algorithms._pca.consensus import ConsensusPCA
from securefed.algorithms._pca.operators import off, orth


@algorithms.register(
    "pca/fedpg",
    summary="consensus ADMM with Riemannian gradient steps on the Grassmann manifold",
    source="fedpca_grassmann Algorithm 2, eqs. (8), (9), (15)-(17)",
    transmits="U_i + Y_i / rho (features x rank)",
)
@dataclass(frozen=True)
class FedPG(ConsensusPCA):
    """Solve consensus PCA by ADMM with Riemannian gradient steps.

    A local step is U <- QR(U - eta g) with g = (I - U U^T) grad F_i(U), so every U_i is orthonormal. Here
    F_i(U) = f_i(U) + <Y_i, U - Z> + rho/2 ||U - Z||^2 with the reconstruction error f_i(U) = ||(I - U U^T) A_i||_F^2.
    For orthonormal U, grad f_i = -2 (I - U U^T) S_i U.

    To converge, rho must be well above 2 lambda_1(S_i), and eta (2 lambda_1 + rho) below about 1. With the latter above
    2 the iterates stay orthonormal but may oscillate between subspaces, which no client can detect. Such settings are
    NOT refused, because a client that the others outvote may exceed any bound on lambda_1 without harm.
    NOT private: the attack `duals/fedpg` computes U_i and Y_i from the messages.
    """

    # How audits run the method: `wide_` is a second, harder run on data of more columns, attacked after each of these
    # numbers of rounds; `default` puts FedPG into audits that name no algorithm.
    audit_case: ClassVar = replace(
        ConsensusPCA.audit_case, wide_split="standardised", wide_rounds=(13, 25, 40, 60), default=True
    )

    def step(self, U: Array, SU: Array, linear: Array, constraint_dual: Array) -> Array:
        """Return U after one local step, (..., features, rank); FedPG has no `constraint_dual`."""
        return local_step(U, SU, linear, self.step_size)


def local_step(U: Array, SU: Array, linear: Array, step_size: float) -> Array:
    """Make one step: g = (I - U U^T)[-2 S U + Y + rho (U - Z)]  (17), U <- QR(U - eta g)  (16).

    (17) and line 7 of the algorithm print F where grad F is meant.

    Args:
        U: (..., features, rank), orthonormal.
        SU: S U.
        linear: Y - rho Z; the term rho U vanishes under the projection.
        step_size: eta.

    Returns:
        The next U, orthonormal, of the same shape.
    """
    return orth(U - step_size * off(U, linear - 2 * SU))
