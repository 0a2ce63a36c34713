"""Federated algorithms: each is a frozen dataclass of hyper-parameters that one server and its clients run.

    from securefed.algorithms import FedPG, LoSAC

    Federation(LoSAC(problem=SoftmaxRegression()), clients).run(rounds=50)

A class is imported when it is first asked for.

To write one of your own, derive from `Algorithm`; `extension_templates/algorithm.py` is a commented example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.algorithms._audit_case import AuditCase
    from securefed.algorithms._base import Algorithm, ClientData, RoundOutcome, algorithms
    from securefed.algorithms._capabilities import (
        SupportsBatches,
        SupportsBroadcastCheck,
        SupportsClientSelection,
        SupportsPrivacyCost,
    )
    from securefed.algorithms._graph.ditto import GraphDitto
    from securefed.algorithms._graph.fedavg import GraphFedAvg
    from securefed.algorithms._graph.fedprox import GraphFedProx
    from securefed.algorithms._graph.igl import IGL
    from securefed.algorithms._graph.metrics import community_scores, edge_scores
    from securefed.algorithms._graph.mrmtl import MRMTL
    from securefed.algorithms._graph.ppgl import PPGL
    from securefed.algorithms._optimization.dsgd import DSGD
    from securefed.algorithms._optimization.fedadmm import CompositeFedADMM
    from securefed.algorithms._optimization.fedavg import FedAvg
    from securefed.algorithms._optimization.fedcm import FedCM
    from securefed.algorithms._optimization.fedprox import FedProx
    from securefed.algorithms._optimization.fedsaga import FedSaga
    from securefed.algorithms._optimization.losac import LoSAC
    from securefed.algorithms._optimization.losac_prox import LoSACProx
    from securefed.algorithms._optimization.mimesvrg import MimeSVRG
    from securefed.algorithms._optimization.proximal import L1, NoRegulariser, Nuclear, Regulariser
    from securefed.algorithms._optimization.scaffold import Scaffold
    from securefed.algorithms._optimization.scaffold_prox import ScaffoldProx
    from securefed.algorithms._pca.centralised import PrincipalComponents, centralised, reconstruction_loss
    from securefed.algorithms._pca.faps import FAPS
    from securefed.algorithms._pca.fedpe import FedPE
    from securefed.algorithms._pca.fedpg import FedPG
    from securefed.algorithms._pca.localpower import LocalPower
    from securefed.algorithms._pca.self_learning import SelfLearningPCA
    from securefed.algorithms._pca.ssi import SSI
    from securefed.algorithms._personalized.ditto import Ditto
    from securefed.algorithms._personalized.fedadmm import FedADMM
    from securefed.algorithms._personalized.flame import FLAME
    from securefed.algorithms._personalized.pfedme import PFedMe
    from securefed.algorithms._private.dp_fedavg import PrivateFedAvg
    from securefed.algorithms._private.record_level import clip_records, record_level

__all__ = [
    "DSGD",
    "FAPS",
    "FLAME",
    "IGL",
    "L1",
    "MRMTL",
    "PPGL",
    "SSI",
    "Algorithm",
    "AuditCase",
    "ClientData",
    "CompositeFedADMM",
    "Ditto",
    "FedADMM",
    "FedAvg",
    "FedCM",
    "FedPE",
    "FedPG",
    "FedProx",
    "FedSaga",
    "GraphDitto",
    "GraphFedAvg",
    "GraphFedProx",
    "LoSAC",
    "LoSACProx",
    "LocalPower",
    "MimeSVRG",
    "NoRegulariser",
    "Nuclear",
    "PFedMe",
    "PrincipalComponents",
    "PrivateFedAvg",
    "Regulariser",
    "RoundOutcome",
    "Scaffold",
    "ScaffoldProx",
    "SelfLearningPCA",
    "SupportsBatches",
    "SupportsBroadcastCheck",
    "SupportsClientSelection",
    "SupportsPrivacyCost",
    "algorithms",
    "centralised",
    "clip_records",
    "community_scores",
    "edge_scores",
    "reconstruction_loss",
    "record_level",
]

EXPORTS = {
    "securefed.algorithms._base": "Algorithm ClientData RoundOutcome algorithms",
    "securefed.algorithms._audit_case": "AuditCase",
    "securefed.algorithms._capabilities": (
        "SupportsBatches SupportsBroadcastCheck SupportsClientSelection SupportsPrivacyCost"
    ),
    "securefed.algorithms._pca.ssi": "SSI",
    "securefed.algorithms._pca.localpower": "LocalPower",
    "securefed.algorithms._pca.faps": "FAPS",
    "securefed.algorithms._pca.fedpg": "FedPG",
    "securefed.algorithms._pca.fedpe": "FedPE",
    "securefed.algorithms._pca.self_learning": "SelfLearningPCA",
    "securefed.algorithms._pca.centralised": "PrincipalComponents centralised reconstruction_loss",
    "securefed.algorithms._optimization.dsgd": "DSGD",
    "securefed.algorithms._optimization.fedavg": "FedAvg",
    "securefed.algorithms._optimization.fedprox": "FedProx",
    "securefed.algorithms._optimization.scaffold": "Scaffold",
    "securefed.algorithms._optimization.losac": "LoSAC",
    "securefed.algorithms._optimization.fedsaga": "FedSaga",
    "securefed.algorithms._optimization.mimesvrg": "MimeSVRG",
    "securefed.algorithms._optimization.fedcm": "FedCM",
    "securefed.algorithms._optimization.fedadmm": "CompositeFedADMM",
    "securefed.algorithms._optimization.losac_prox": "LoSACProx",
    "securefed.algorithms._optimization.scaffold_prox": "ScaffoldProx",
    "securefed.algorithms._optimization.proximal": "Regulariser L1 Nuclear NoRegulariser",
    "securefed.algorithms._personalized.flame": "FLAME",
    "securefed.algorithms._personalized.pfedme": "PFedMe",
    "securefed.algorithms._personalized.fedadmm": "FedADMM",
    "securefed.algorithms._personalized.ditto": "Ditto",
    "securefed.algorithms._graph.ppgl": "PPGL",
    "securefed.algorithms._graph.igl": "IGL",
    "securefed.algorithms._graph.mrmtl": "MRMTL",
    "securefed.algorithms._graph.fedavg": "GraphFedAvg",
    "securefed.algorithms._graph.fedprox": "GraphFedProx",
    "securefed.algorithms._graph.ditto": "GraphDitto",
    "securefed.algorithms._graph.metrics": "edge_scores community_scores",
    "securefed.algorithms._private.dp_fedavg": "PrivateFedAvg",
    "securefed.algorithms._private.record_level": "record_level clip_records",
}
export_lazily(__name__, EXPORTS, needs={"PrivateFedAvg": "opacus"})
