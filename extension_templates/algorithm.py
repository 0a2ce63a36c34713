"""Template of an algorithm: the mean of the clients' rows, in one round.

A server needs only the SUM of what the clients send. So `contribute` returns named arrays, the message layer adds them
up over the clients, and `combine` receives the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed import Aggregate, Array, Layout, Public, Tensors, TensorSpec
from securefed.algorithms import Algorithm, AuditCase, ClientData, algorithms
from securefed.datasets import Dataset


@dataclass(frozen=True)
class MeanServer:
    """State of the server: frozen dataclasses of arrays, numbers, texts, tuples and dicts can be stored."""

    mean: Array


# TODO: the name under which users find it, `family/name`; one line on what it does; where it is published.
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

    # Small, quick settings for the published checks, and the audit's run of this algorithm.
    test_settings: ClassVar = {"scale": 2.0}
    audit_case: ClassVar = AuditCase(settings={}, secret="gram", rounds=3, utility="score")

    def layout(self, public: Public) -> Layout:
        """Names, shapes and bounds of a contribution. Bounds follow from public facts, never from data."""
        rows = max(public.rows)
        return Layout(
            (
                TensorSpec("sum", (public.features,), bound=rows * public.feature_bound, ring=64),
                TensorSpec("count", (), bound=float(rows)),
            )
        )

    def start(self, public: Public, rng: np.random.Generator) -> MeanServer:
        """The server's state before the first round. All randomness comes from `rng`."""
        return MeanServer(np.zeros(public.features))

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ClientData:
        """A client's state before its first round.

        `ClientData` holds the rows and remembers nothing. A client with a memory has a frozen dataclass of its own; its
        rows are a field `data: Dataset = securefed._persistence.packing.local()`, which is never stored.
        """
        return ClientData(data)

    def broadcast(self, server: MeanServer) -> Tensors:
        """What all clients receive."""
        return {"mean": server.mean}

    def contribute(
        self, client: ClientData, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[ClientData, Tensors]:
        """The next state (here the same) and the contribution, with the tensors of `layout`."""
        x = client.data.x
        return client, {"sum": x.sum(axis=0), "count": np.asarray(float(len(x)))}

    def combine(self, server: MeanServer, aggregate: Aggregate) -> MeanServer:
        """The server's next state from the sum over the clients that took part."""
        total = aggregate.total
        return MeanServer(self.scale * total["sum"] / total["count"])

    def utility(self, output: Tensors, test: Dataset) -> float:
        """Optional: a score of the result on held-out rows, higher is better; the audit case names it `score`."""
        return -float(np.linalg.norm(test.x.mean(axis=0) - output["mean"] / self.scale))

    # Optional, with defaults in `Algorithm`: commit, evaluation_layout, evaluate, personal, finished. See the
    # docstrings there. `securefed.algorithms._capabilities` lists further methods that an algorithm may have.
