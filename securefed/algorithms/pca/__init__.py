"""Federated PCA: subspace iteration, LocalPower, FAPS, FedPG, FedPE; each client alone; the pooled optimum."""

from __future__ import annotations

# In the order of `securefed list` and of the audit's report.
# isort: off
from securefed.algorithms.pca.centralised import PrincipalComponents, centralised, reconstruction_loss
from securefed.algorithms.pca.ssi import SSI
from securefed.algorithms.pca.localpower import LocalPower
from securefed.algorithms.pca.faps import FAPS
from securefed.algorithms.pca.guarded_faps import GuardedFAPS
from securefed.algorithms.pca.self_learning import SelfLearningPCA
from securefed.algorithms.pca.fedpg import FedPG
from securefed.algorithms.pca.fedpe import FedPE
# isort: on

__all__ = [
    "FAPS",
    "SSI",
    "FedPE",
    "FedPG",
    "GuardedFAPS",
    "LocalPower",
    "PrincipalComponents",
    "SelfLearningPCA",
    "centralised",
    "reconstruction_loss",
]
