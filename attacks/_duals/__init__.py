"""Attacks that recover Gram matrices from the iterates and dual variables of consensus PCA (FedPG, FedPE).

FedPG and FedPE are federated PCA by consensus ADMM; equation numbers are those of their paper (`fedpca_grassmann`), and
norms of matrices are Frobenius norms. Client i has rows A_i^T and S_i = A_i A_i^T, over the number of rows where the
algorithm normalises. It keeps an iterate U_i and a dual variable Y_i of the constraint U_i = Z, both (features, rank),
with Z the server's consensus and rho a public penalty. It starts at U_i = orth(Z), Y_i = 0. In a round

    it receives Z, and makes local steps from U_i that decrease the augmented Lagrangian                        (6)
        f_i(U) + <Y_i, U - Z> + rho/2 ||U - Z||^2 + <T_i, h(U)> + rho/2 ||h(U)||^2,  f_i(U) = ||(I - U U^T) A_i||^2;
    it sends M_i = U_i + Y_i / rho, and the server sets Z+ = mean of the M_i                                     (8)
    it sets Y_i <- Y_i + rho (U_i - Z+) = rho (M_i - Z+)                                                        (9)
    it sets T_i <- T_i + rho h(U_i)                                                                            (10)

FedPE alone has the terms in h(U) = max(0, U^T U - I)^2, entry by entry (4); T_i, (rank, rank), is their multiplier and
starts at 0. FedPG keeps U_i orthonormal by a QR decomposition after each step, so that T_i = 0. Its messages are the
same for S_i and S_i + c I, since (I - U U^T) c U = 0; FedPE's are not. M and Z stand under the names `POINT` and
`BASIS`. Importing this package registers its attacks.
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
