"""LocalPower: subspace iteration in which clients multiply several times with their Gram matrix between two sums.

Client i holds the Gram matrix S_i = A_i A_i^T of its rows A_i^T, the server an orthonormal basis Z (features, rank).
One product S_i Z between two sums is SSI, simultaneous subspace iteration. The server's part and its stop rules are in
server.py.

Source: Li et al. 2021, as described in faps section 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_integer, checked_integers
from securefed._public import Public
from securefed._tensors import Tensors
from securefed.algorithms._audit_case import GRAM_CASE
from securefed.algorithms._base import algorithms
from securefed.algorithms._pca.operators import orth
from securefed.algorithms._pca.server import BASIS, SubspaceServer
from securefed.algorithms._pca.ssi import SSI, GramClient
from securefed.errors import DataError

LOCAL_STEPS = "local_steps"
"""Name of the number q of local products in a broadcast."""


@algorithms.register(
    "pca/localpower",
    summary="subspace iteration with several local products a round",
    source="Li et al. 2021; faps section 5.3, eq. (27)",
    transmits="S_i V with V from q - 1 local products (features x rank), ||A_i^T Z||_F^2; with a KKT stop also S_i Z",
)
@dataclass(frozen=True)
class LocalPower(SSI):
    """Run subspace iteration with several local products a round.

    A client starts at V = Z and computes q products V <- S_i V, orthonormalising between them but not after the last.
    The server sets Z+ = orth(sum V_i), orth being the Q of a QR decomposition.

    Attributes:
        local_steps: q of the first rounds; the last one holds for all later rounds. The default is the schedule
            8, 4, 2, 1, 1, ... of faps; `(4,)` is a constant q = 4.
        rounds_each: for how many rounds each entry holds; faps halves q every round, but its printed round counts
            come out only where q is halved about every 20 rounds.

    With q = 1 it is SSI. With q > 1 for ever it does NOT converge to the pooled subspace where clients differ.
    The broadcast names q, so a client that joins late does what the others do.
    """

    # Settings with which audits run the method.
    audit_case: ClassVar = replace(GRAM_CASE, default=True)

    local_steps: tuple[int, ...] = (8, 4, 2, 1)
    rounds_each: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "local_steps", checked_integers("local_steps", self.local_steps))
        check_integer("rounds_each", self.rounds_each, 1)

    @property
    def contributes_gram_product(self) -> bool:
        """Return whether `product` itself is S_i Z in every round."""
        return max(self.local_steps) == 1

    def broadcast(self, server: SubspaceServer) -> Tensors:
        """Return what the server sends to the clients of the next round: Z, and the number q of local products."""
        steps = self.local_steps[min(server.round // self.rounds_each, len(self.local_steps) - 1)]
        return {BASIS: server.basis, LOCAL_STEPS: np.asarray(steps, np.int64)}

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse a broadcast that no server sends.

        Raises:
            DataError: the basis is not orthonormal, or the number of local steps is not in the schedule.
        """
        super().check_broadcast(broadcast, public)
        if int(broadcast[LOCAL_STEPS]) not in self.local_steps:
            raise DataError(f"{int(broadcast[LOCAL_STEPS])} local steps; the method takes {self.local_steps}")

    def contribute(
        self, client: GramClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[GramClient, Tensors]:
        """Compute one client's contribution, V_i after q products and ||A_i^T Z||_F^2; its state does not change."""
        basis = broadcast[BASIS]
        first = product = client.gram.times(basis)  # S_i Z, which the stop rule needs too
        for _ in range(int(broadcast[LOCAL_STEPS]) - 1):
            product = client.gram.times(orth(product))
        return client, self.contribution(product, basis, first)
