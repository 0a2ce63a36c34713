"""Gradient methods. Importing this registers them; `problem` may be a registered name or a `Problem`."""

from __future__ import annotations

# In the order of `securefed list` and of the audit's report.
# isort: off
from securefed.algorithms.optimization.proximal import L1, NoRegulariser, Nuclear, Regulariser
from securefed.algorithms.optimization.method import GradientMethod
from securefed.algorithms.optimization.dsgd import DSGD
from securefed.algorithms.optimization.fedavg import FedAvg
from securefed.algorithms.optimization.scaffold import Scaffold
from securefed.algorithms.optimization.losac import LoSAC
from securefed.algorithms.optimization.fedprox import FedProx
from securefed.algorithms.optimization.fedsaga import FedSaga
from securefed.algorithms.optimization.mimesvrg import MimeSVRG
from securefed.algorithms.optimization.fedcm import FedCM
from securefed.algorithms.optimization.fedadmm import CompositeFedADMM
from securefed.algorithms.optimization.losac_prox import LoSACProx
from securefed.algorithms.optimization.scaffold_prox import ScaffoldProx
# isort: on

__all__ = [
    "DSGD",
    "L1",
    "CompositeFedADMM",
    "FedAvg",
    "FedCM",
    "FedProx",
    "FedSaga",
    "GradientMethod",
    "LoSAC",
    "LoSACProx",
    "MimeSVRG",
    "NoRegulariser",
    "Nuclear",
    "Regulariser",
    "Scaffold",
    "ScaffoldProx",
]
