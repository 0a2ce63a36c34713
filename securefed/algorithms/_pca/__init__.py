"""Federated PCA: subspace iteration, LocalPower, FAPS, FedPG, FedPE, and the pooled optimum."""

from __future__ import annotations

# Importing a module registers its algorithms, in the order of `securefed list` and of the audit's report.
# ruff: noqa: F401
# isort: off
from securefed.algorithms._pca.centralised import PrincipalComponents, centralised, reconstruction_loss
from securefed.algorithms._pca.ssi import SSI
from securefed.algorithms._pca.localpower import LocalPower
from securefed.algorithms._pca.faps import FAPS
from securefed.algorithms._pca.self_learning import SelfLearningPCA
from securefed.algorithms._pca.fedpg import FedPG
from securefed.algorithms._pca.fedpe import FedPE
# isort: on
