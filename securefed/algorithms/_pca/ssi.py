"""SSI: simultaneous subspace iteration on the sum of the clients' products S_i Z  (faps eq. 2).

Client i holds rows A_i^T (rows, features) and their Gram matrix S_i = A_i A_i^T, the server an orthonormal basis Z
(features, rank). In a round each client sends Y_i = S_i Z, and the server sets Z <- orth(sum_i Y_i), orth being the Q
of a QR decomposition. The server's part is in server.py, shared with LocalPower and FAPS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._persistence.packing import local
from securefed._public import Public
from securefed._tensors import Layout, Tensors
from securefed.algorithms._audit_case import GRAM_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._pca.operators import Gram, check_rank, product_bound
from securefed.algorithms._pca.server import BASIS, SubspaceMethod
from securefed.datasets._base import Dataset


@dataclass(frozen=True)
class GramClient:
    """State of a client that remembers nothing but the Gram matrix of its rows.

    Attributes:
        gram: S_i; it never goes into a checkpoint.
    """

    gram: Gram = local()


@algorithms.register(
    "pca/ssi",
    summary="simultaneous subspace iteration: the centralised iteration, summed",
    source="faps eqs. (2), (27)",
    transmits="S_i Z (features x rank), ||A_i^T Z||_F^2",
)
@dataclass(frozen=True)
class SSI(SubspaceMethod):
    """Run the centralised subspace iteration on the sum of the clients' products.

    Y_i = S_i Z, Z+ = orth(sum Y_i): the centralised iteration on the pooled rows, term by term.

    Where the same clients survive in every round (the clients that the sum counts), it converges to the subspace of the
    p = `rank` leading eigenvectors of sum_i S_i over them, at the rate lambda_{p+1} / lambda_p of its eigenvalues.
    NOT private: the contributions are linear in S_i (faps proposition 2; attack `gram/power`).
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(GRAM_CASE, default=True)

    @property
    def contributes_gram_product(self) -> bool:
        """Return whether `product` itself is S_i Z in every round."""
        return True

    def layout(self, public: Public) -> Layout:
        """Name the tensors of one contribution, Y_i and ||A_i^T Z||_F^2, with bounds from public facts."""
        return self.contribution_layout(public, product_bound(public))

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> GramClient:
        """Return a client's state before its first round."""
        check_rank(self.rank, public)
        return GramClient(Gram.of(data.x))

    def contribute(
        self, client: GramClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[GramClient, Tensors]:
        """Compute one client's contribution, S_i Z and ||A_i^T Z||_F^2; its state does not change."""
        basis = broadcast[BASIS]
        product = client.gram.times(basis)  # Y_i = A_i A_i^T Z  (2)
        return client, self.contribution(product, basis, gram_product=product)  # Y_i is S_i Z itself here
