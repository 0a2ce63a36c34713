"""Federated PCA: subspace iteration, LocalPower, FAPS, FedPG."""

from __future__ import annotations

from securefed.algorithms.base import algorithms
from securefed.algorithms.pca.faps import FAPS
from securefed.algorithms.pca.fedpg import FedPG
from securefed.algorithms.pca.localpower import LocalPower
from securefed.algorithms.pca.ssi import SSI

__all__ = ["FAPS", "SSI", "FedPG", "LocalPower"]

algorithms.register(
    "pca/ssi",
    SSI,
    summary="simultaneous subspace iteration: the centralised iteration, summed",
    source="faps eq. (2)",
    transmits="S_i Z (features x rank), ||A_i^T Z||_F^2",
)
algorithms.register(
    "pca/localpower",
    LocalPower,
    summary="subspace iteration with several local products a round",
    source="Li et al. 2021; faps section 5.3",
    transmits="S_i V with V from q - 1 local products (features x rank), ||A_i^T Z||_F^2",
)
algorithms.register(
    "pca/faps",
    FAPS,
    summary="projection splitting: local subspaces driven to consensus by masked products",
    source="faps Algorithm 1, eqs. (12)-(27)",
    transmits="Q_i Z (features x rank), ||A_i^T Z||_F^2",
)
algorithms.register(
    "pca/fedpg",
    FedPG,
    summary="consensus ADMM with Riemannian gradient steps on the Grassmann manifold",
    source="fedpca_grassmann Algorithm 2, eq. (8)",
    transmits="U_i + Y_i / rho (features x rank)",
)
