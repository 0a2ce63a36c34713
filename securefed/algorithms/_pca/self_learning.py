"""Self-learning PCA: every client computes the leading components of its own rows, and keeps them.

This is the baseline of fedpca_grassmann (section V-A2) that shows what a client reaches without the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_integer
from securefed._messages import Aggregate
from securefed._persistence.packing import local
from securefed._public import Public
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.algorithms._audit_case import GRAM_CASE
from securefed.algorithms._base import Algorithm, algorithms
from securefed.algorithms._pca import server as common
from securefed.algorithms._pca.centralised import leading
from securefed.algorithms._pca.operators import SLACK, Gram, check_rank
from securefed.algorithms._pca.server import BASIS, CAPTURED, TOTAL
from securefed.datasets._base import Dataset

SHARE = "share"
"""The share of a client's energy ||A||_F^2, with A its rows, that its own basis captures."""


@dataclass(frozen=True)
class SelfLearningServer:
    """State of the server: the mean share over the clients of the last round, zero before the first."""

    share: float


@dataclass(frozen=True)
class SelfLearningClient:
    """State of one client: its own components, made at enrolment.

    Attributes:
        basis: (features, rank), orthonormal.
        captured: energy of the client's rows that the basis captures.
        total: energy of the client's rows.
    """

    basis: Array = local()
    captured: float = local()
    total: float = local()


@algorithms.register(
    "pca/self",
    summary="each client alone: the components of its own rows, which it keeps",
    source="fedpca_grassmann section V-A2, eq. (2)",
    transmits="the share of its energy that its own basis captures: one scalar, no basis",
)
@dataclass(frozen=True)
class SelfLearningPCA(Algorithm[SelfLearningServer, SelfLearningClient]):
    """Compute each client's leading components from its own rows; nothing is learned from the others.

    No basis is ever sent. A client sends one number: the share of its energy that its own basis captures, in
    [0, 1] (1 for rows of zeros). The output is the mean over the round's clients, as in the paper. One round is enough:
    later rounds average over other clients, and change no client's result.
    The result of a client is `personal`: its basis. Where a client has fewer rows than `rank`, some of its directions
    are arbitrary.

    Attributes:
        rank: the number of components.
    """

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"rank": 2}
    audit_case: ClassVar = replace(GRAM_CASE, rounds=1, clip=1.0, utility="mean_share")

    rank: int

    def __post_init__(self) -> None:
        check_integer("rank", self.rank, 1, note="(and at most the number of features)")

    def layout(self, public: Public) -> Layout:
        """Name the tensor of one contribution, the client's share, at most 1 up to rounding."""
        check_rank(self.rank, public)
        return Layout((TensorSpec(SHARE, (), SLACK),))

    def start(self, public: Public, rng: np.random.Generator) -> SelfLearningServer:
        """Return the server's state before the first round: a share of 0."""
        check_rank(self.rank, public)
        return SelfLearningServer(0.0)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> SelfLearningClient:
        """Compute the client's components, and return them as its state."""
        check_rank(self.rank, public)
        components = leading(Gram.of(data.x), self.rank)
        return SelfLearningClient(components.basis, components.captured, components.total)

    def broadcast(self, server: SelfLearningServer) -> Tensors:
        """Return what the server sends to the clients of the next round: the mean share. Clients do not use it."""
        return {SHARE: np.asarray(server.share)}

    def contribute(
        self, client: SelfLearningClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[SelfLearningClient, Tensors]:
        """Compute one client's contribution, the share of its energy; its state does not change."""
        share = client.captured / client.total if client.total else 1.0
        return client, {SHARE: np.asarray(share)}

    def combine(self, server: SelfLearningServer, aggregate: Aggregate) -> SelfLearningServer:
        """Return the mean share over the clients that the sum counts."""
        return SelfLearningServer(float(aggregate.total[SHARE]) / aggregate.count)

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        return common.evaluation_layout(public)

    def evaluate(self, client: SelfLearningClient, broadcast: Tensors) -> Tensors:
        """Return the energy of the client's rows, `captured` by its own basis and in `total`."""
        return {CAPTURED: np.asarray(client.captured), TOTAL: np.asarray(client.total)}

    def personal(self, client: SelfLearningClient) -> Tensors:
        """Return the result that stays with the client, its basis (features, rank)."""
        return {BASIS: client.basis}
