"""Federated algorithms: each is a frozen dataclass of hyper-parameters that one server and its clients run.

    from securefed.algorithms import FedPG, LoSAC

To write one of your own, derive from `Algorithm`; `extension_templates/algorithm.py` is a commented example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import lazy_exports

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
    from securefed.algorithms._pca.guarded_faps import GuardedFAPS
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
    "GuardedFAPS",
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
    "Algorithm": (
        "securefed.algorithms._base",
        "A federated algorithm whose server step is a function of the SUM of the contributions.",
    ),
    "AuditCase": (
        "securefed.algorithms._audit_case",
        "The audit's run of one algorithm. Functions are named; securefed._auditing.cases holds them.",
    ),
    "ClientData": ("securefed.algorithms._base", "State of a client that remembers nothing but its data."),
    "RoundOutcome": ("securefed.algorithms._base", "Result of a round, as a client that contributed to it learns it."),
    "algorithms": (
        "securefed.algorithms._base",
        "All algorithms by name. An algorithm is registered where its class is defined, with.",
    ),
    "SupportsBatches": (
        "securefed.algorithms._capabilities",
        "Computes the contributions of several simulated clients at once.",
    ),
    "SupportsBroadcastCheck": (
        "securefed.algorithms._capabilities",
        "States which broadcasts the bounds of its contributions assume.",
    ),
    "SupportsClientSelection": (
        "securefed.algorithms._capabilities",
        "Chooses the cohort by scalars that single clients REVEAL.",
    ),
    "SupportsPrivacyCost": (
        "securefed.algorithms._capabilities",
        "Makes records private by noise of its own, so that a computed contribution costs privacy even if it is not.",
    ),
    "SSI": (
        "securefed.algorithms._pca.ssi",
        "Run the centralised subspace iteration on the sum of the clients' products.",
    ),
    "LocalPower": (
        "securefed.algorithms._pca.localpower",
        "Run subspace iteration with several local products a round.",
    ),
    "FAPS": (
        "securefed.algorithms._pca.faps",
        "Clients move their own subspace X_i towards Z, and send Q_i Z with the mask matrix Q_i of (18).",
    ),
    "GuardedFAPS": (
        "securefed.algorithms._pca.guarded_faps",
        "Alternate rounds of SSI with blocks of rounds of FAPS; block in the broadcast is 0 for SSI.",
    ),
    "FedPG": ("securefed.algorithms._pca.fedpg", "Solve consensus PCA by ADMM with Riemannian gradient steps."),
    "FedPE": ("securefed.algorithms._pca.fedpe", "Solve consensus PCA by ADMM with Euclidean gradient steps."),
    "SelfLearningPCA": (
        "securefed.algorithms._pca.self_learning",
        "Each client keeps the leading components of its own rows; nothing is learned from the others.",
    ),
    "PrincipalComponents": ("securefed.algorithms._pca.centralised", "The leading components of a Gram matrix S."),
    "centralised": (
        "securefed.algorithms._pca.centralised",
        "PCA of all clients' rows pooled; with normalise every client counts alike: S = sum_i S_i / n_i.",
    ),
    "reconstruction_loss": (
        "securefed.algorithms._pca.centralised",
        "Return sum_i ||(I - U U^T) A_i||_F^2 for U = orth(basis) (3), with terms divided by n_i if normalise.",
    ),
    "DSGD": (
        "securefed.algorithms._optimization.dsgd",
        "Sum the clients' gradients at the server's model; the server makes the step.",
    ),
    "FedAvg": (
        "securefed.algorithms._optimization.fedavg",
        "Average the models that clients train by local gradient steps.",
    ),
    "FedProx": (
        "securefed.algorithms._optimization.fedprox",
        "Average models that clients train by local steps with a penalty on the distance from the global model.",
    ),
    "Scaffold": (
        "securefed.algorithms._optimization.scaffold",
        "Train with local steps that control variates correct against client drift.",
    ),
    "LoSAC": (
        "securefed.algorithms._optimization.losac",
        "Train with local steps that a stored average of all clients' gradients corrects.",
    ),
    "FedSaga": ("securefed.algorithms._optimization.fedsaga", "Average models that clients train by local SAGA steps."),
    "MimeSVRG": (
        "securefed.algorithms._optimization.mimesvrg",
        "Train with local SVRG steps around the mean gradient of the round's clients.",
    ),
    "FedCM": (
        "securefed.algorithms._optimization.fedcm",
        "Mix every local gradient with the mean direction of the last round.",
    ),
    "CompositeFedADMM": (
        "securefed.algorithms._optimization.fedadmm",
        "Solve a sum of losses plus a regulariser by linearised consensus ADMM.",
    ),
    "LoSACProx": (
        "securefed.algorithms._optimization.losac_prox",
        "Train by LoSAC with a proximal step after each local gradient step.",
    ),
    "ScaffoldProx": (
        "securefed.algorithms._optimization.scaffold_prox",
        "Train by SCAFFOLD with a proximal step after each local gradient step.",
    ),
    "Regulariser": ("securefed.algorithms._optimization.proximal", "A convex regulariser Psi of the parameters."),
    "L1": (
        "securefed.algorithms._optimization.proximal",
        "Psi = weight * sum |v_k| over all parameters, biases included; its proximal operator is soft thresholding.",
    ),
    "Nuclear": (
        "securefed.algorithms._optimization.proximal",
        "Psi = weight * sum of the singular values of every parameter that is a matrix; other parameters do not count.",
    ),
    "NoRegulariser": (
        "securefed.algorithms._optimization.proximal",
        "No regulariser: Psi = 0, and the proximal step returns its argument unchanged.",
    ),
    "FLAME": ("securefed.algorithms._personalized.flame", "Train personal models by ADMM on Moreau envelopes."),
    "PFedMe": (
        "securefed.algorithms._personalized.pfedme",
        "Train personal models by Moreau envelopes, and one model by gradient steps on their mean.",
    ),
    "FedADMM": (
        "securefed.algorithms._personalized.fedadmm",
        "Train one model by consensus ADMM with inexact local solves.",
    ),
    "Ditto": (
        "securefed.algorithms._personalized.ditto",
        "Train a personal model beside FedAvg, drawn towards the averaged model.",
    ),
    "PPGL": (
        "securefed.algorithms._graph.ppgl",
        "Learn a personal graph for every client, and a sparse consensus of them.",
    ),
    "IGL": (
        "securefed.algorithms._graph.igl",
        "Learn a graph from each client's own signals, without a term that couples the clients.",
    ),
    "MRMTL": (
        "securefed.algorithms._graph.mrmtl",
        "Learn a personal graph for every client, drawn towards the mean of the clients' graphs.",
    ),
    "GraphFedAvg": (
        "securefed.algorithms._graph.fedavg",
        "Learn one global graph by averaging graphs that clients improve by local steps.",
    ),
    "GraphFedProx": (
        "securefed.algorithms._graph.fedprox",
        "Learn one global graph as FedAvg does, with local steps on g_i(w) + mu / 2 ||w - w_global||^2.",
    ),
    "GraphDitto": (
        "securefed.algorithms._graph.ditto",
        "Learn a personal graph for every client beside FedAvg, drawn towards the global graph.",
    ),
    "edge_scores": (
        "securefed.algorithms._graph.metrics",
        "Score the weights learned (edges,) against truth (edges,), whose edges are its positive weights.",
    ),
    "community_scores": (
        "securefed.algorithms._graph.metrics",
        "Score the labels found (vertices,) against the groups truth (vertices,); label names need not match.",
    ),
    "PrivateFedAvg": (
        "securefed.algorithms._private.dp_fedavg",
        "FedAvg whose local steps are opacus' DP-SGD: y <- y - eta ((clipped row gradients + noise) / (q n) + l2 y).",
    ),
    "record_level": (
        "securefed.algorithms._private.record_level",
        "Clip the records of algorithm to norm, and declare the sensitivity of its messages to one record.",
    ),
    "clip_records": (
        "securefed.algorithms._private.record_level",
        "Scale each row longer than norm to an L2 norm of at most norm, rounding included; keep shorter rows.",
    ),
}
__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
