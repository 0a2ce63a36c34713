"""Template of an algorithm: the mean of the clients' rows, in one round.

Copy this file, rename the classes, and change the lines marked EDIT.

The server needs only the SUM of what the clients send. So each client's `contribute` returns named arrays, the package
adds them up over the clients under the chosen defence, and the server's `combine` receives the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed import Aggregate, Algorithm, Array, Dataset, Layout, Public, Tensors, TensorSpec
from securefed.algorithms import AuditCase, ClientData, algorithms


@dataclass(frozen=True)
class MeanServer:
    """State of the server. To be stored, a state is a frozen dataclass of arrays, numbers, texts, tuples and dicts."""

    mean: Array


# EDIT: the name by which users find it, `family/name`; one line on what it does; where it is published; what clients
# send.
@algorithms.register(
    "statistics/mean", summary="Mean of all rows", source="textbook", transmits="sum of the rows, number of rows"
)
@dataclass(frozen=True)
class FederatedMean(Algorithm[MeanServer, ClientData]):
    """The mean of all clients' rows. Hyper-parameters are fields of this dataclass.

    Attributes:
        scale: factor on the result.
    """

    scale: float = 1.0

    # EDIT: small, quick settings for the published checks (see README.md), and the audit's run of this algorithm. There
    # `secret` names what attacks try to reconstruct, and `utility` what the quality of the result is called.
    test_settings: ClassVar = {"scale": 2.0}
    audit_case: ClassVar = AuditCase(settings={}, secret="samples", rounds=3, utility="score")

    def layout(self, public: Public) -> Layout:
        """Return the names, shapes and bounds of a contribution. Bounds follow from public facts, never from data.

        An entry may have at most the absolute value `bound`. `ring` is the number of bits in which secure aggregation
        sums the tensor.
        """
        rows = max(public.rows)
        return Layout(
            (
                TensorSpec("sum", (public.features,), bound=rows * public.feature_bound, ring=64),
                TensorSpec("count", (), bound=float(rows)),
            )
        )

    def start(self, public: Public, rng: np.random.Generator) -> MeanServer:
        """Return the server's state before the first round. All randomness comes from `rng`."""
        return MeanServer(np.zeros(public.features))

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ClientData:
        """Return a client's state before its first round.

        `ClientData` holds only the rows. If clients have to remember something from round to round, write a frozen
        dataclass for their state. Declare its rows as a field `data: Dataset = local()`, so that they are never stored
        (`from securefed._persistence.packing import local`).
        """
        return ClientData(data)

    def broadcast(self, server: MeanServer) -> Tensors:
        """Return the arrays that all clients receive, from the server's state."""
        return {"mean": server.mean}

    def contribute(
        self, client: ClientData, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[ClientData, Tensors]:
        """Return the client's next state (here the same) and its contribution, with the tensors of `layout`."""
        x = client.data.x
        return client, {"sum": x.sum(axis=0), "count": np.asarray(float(len(x)))}

    def combine(self, server: MeanServer, aggregate: Aggregate) -> MeanServer:
        """Return the server's next state, from the sum over the clients that took part."""
        total = aggregate.total
        return MeanServer(self.scale * total["sum"] / total["count"])

    def utility(self, output: Tensors, test: Dataset) -> float:
        """Return a score of the result on held-out rows (optional); higher is better. `audit_case` names it `score`."""
        return -float(np.linalg.norm(test.x.mean(axis=0) - output["mean"] / self.scale))

    # Optional, with defaults in `Algorithm`: commit, evaluation_layout, evaluate, personal, finished. See the
    # docstrings there. `securefed.algorithms._capabilities` lists further methods that an algorithm may have.
