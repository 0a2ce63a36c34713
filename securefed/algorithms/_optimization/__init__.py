"""Gradient methods: LoSAC, SCAFFOLD, federated averaging, and their proximal forms."""

from __future__ import annotations

# Importing a module registers its algorithms, in the order of `securefed list` and of the audit's report.
# ruff: noqa: F401
# isort: off
from securefed.algorithms._optimization.proximal import L1, NoRegulariser, Nuclear, Regulariser
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.dsgd import DSGD
from securefed.algorithms._optimization.fedavg import FedAvg
from securefed.algorithms._optimization.scaffold import Scaffold
from securefed.algorithms._optimization.losac import LoSAC
from securefed.algorithms._optimization.fedprox import FedProx
from securefed.algorithms._optimization.fedsaga import FedSaga
from securefed.algorithms._optimization.mimesvrg import MimeSVRG
from securefed.algorithms._optimization.fedcm import FedCM
from securefed.algorithms._optimization.fedadmm import CompositeFedADMM
from securefed.algorithms._optimization.losac_prox import LoSACProx
from securefed.algorithms._optimization.scaffold_prox import ScaffoldProx
# isort: on
