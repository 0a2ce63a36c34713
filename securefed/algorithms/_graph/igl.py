"""IGL: independent graph learning, each client alone (ppgl section V-A, baseline i).

Source: ppgl eqs. (7), (18); the model is Kalofolias 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._public import Public
from securefed._tensors import Array, Tensors, TensorSpec
from securefed.algorithms._base import algorithms
from securefed.algorithms._graph.method import OBJECTIVE, GraphMethod, GraphServer, LocalGraphData, Memory


@algorithms.register(
    "graph/igl",
    summary="independent graph learning: each client alone",
    source="ppgl section V-A baseline (i), eq. (7)",
    transmits="the local objective, one scalar",
)
@dataclass(frozen=True, kw_only=True)
class IGL(GraphMethod):
    """K steps a round on g_i alone. No graph leaves its client; the sum holds the objectives, to watch convergence."""

    def specs(self, public: Public) -> tuple[TensorSpec, ...]:
        """Name the tensors of one contribution, with bounds."""
        return (TensorSpec(OBJECTIVE, (), self.largest_objective(public), 64),)

    def start(self, public: Public, rng: np.random.Generator) -> GraphServer:
        """Return the server's state before the first round."""
        return GraphServer(np.zeros(()), public)

    def broadcast(self, server: GraphServer) -> Tensors:
        """`objective`: the mean of the last round's, 0 before the first. Clients make no use of it."""
        return {OBJECTIVE: server.consensus}

    def read(self, broadcast: Tensors) -> Array:
        """Return the part of a broadcast that the local steps use."""
        return np.asarray(broadcast[OBJECTIVE])

    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one round."""
        graph, previous = self.descend(own, *memory)
        return {OBJECTIVE: own.problem.objective(graph, own.distances)}, (graph, previous)

    def update(self, total: Tensors, survivors: Sequence[int], public: Public) -> Array:
        """Compute the server's next vectors from the sum."""
        return np.asarray(total[OBJECTIVE] / len(survivors))

    def usual(self, public: Public) -> float:
        """Bound the entries of a broadcast."""
        return self.largest_objective(public)
