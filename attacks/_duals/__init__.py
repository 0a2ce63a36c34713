"""Attacks that recover Gram matrices from the iterates and dual variables of consensus PCA (FedPG, FedPE).

In consensus PCA (federated PCA by ADMM) client i with rows A_i^T and Gram matrix S_i = A_i A_i^T keeps a basis U_i,
(features, rank), and a dual variable Y_i of the constraint U_i = Z (in FedPE also T_i, of the constraint that U_i is
orthonormal). It sends U_i + Y_i / rho, where rho is a public penalty, and the server broadcasts the mean Z of these
messages. Importing this package registers its attacks.
"""

from __future__ import annotations

from securefed.attacks._base import attacks
from securefed.attacks._duals.fedpe import FedPEDuals
from securefed.attacks._duals.fedpg import FedPGDuals
from securefed.attacks._duals.joint_fit import JointDuals
from securefed.attacks._duals.pooled_client import PooledDuals

__all__ = ["FedPEDuals", "FedPGDuals", "JointDuals", "PooledDuals"]

attacks.register(
    "duals/fedpg",
    FedPGDuals,
    summary="computes U_i and Y_i from the messages and solves the local steps for S_i",
    source="fedpca_grassmann Algorithm 2; elimination of U^T S U by symmetry",
    applies_to="pca/fedpg, single clients",
    reads="U + Y / rho of every round the client took part in, beside the Z that was sent",
)
attacks.register(
    "duals/fedpe",
    FedPEDuals,
    summary="computes U_i, Y_i and T_i from the messages and solves the Euclidean local steps for S_i",
    source="fedpca_grassmann Algorithm 1; elimination of U^T S U by symmetry",
    applies_to="pca/fedpe, single clients",
    reads="U + Y / rho of every round the client took part in, beside the Z that was sent",
)
attacks.register(
    "duals/joint",
    JointDuals,
    summary="fits all clients of a sum at once; since local steps are not linear, the sum determines each matrix",
    source="this package; fedpca_grassmann Algorithms 1 and 2 simulated, Levenberg-Marquardt",
    applies_to="pca/fedpg, pca/fedpe, sums of few clients with few features",
    reads="the sums of U_i + Y_i / rho of every round, the same clients in each, beside the Z that was sent",
)
attacks.register(
    "duals/pooled",
    PooledDuals,
    summary="treats the mean of the clients as one client, which gives about the pooled Gram matrix",
    source="this package; fedpca_grassmann Algorithm 2, its steps to first order",
    applies_to="pca/fedpg with one local step, sums over the same clients",
    reads="the sums of U_i + Y_i / rho of every round, beside the Z that was sent",
)
