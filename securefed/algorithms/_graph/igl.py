"""IGL: independent graph learning; each client learns a graph from its own signals (ppgl section V-A, baseline i).

It shows what a client reaches without the others. A graph is the vector w (edges,) of the weights of all pairs of
vertices, and g_i(w) client i's objective, small where its signals vary little over heavy edges. `GraphMethod`
(method.py) runs the rounds: it calls `steps` for each client, and `update` at the server, with the sum over the
survivors, the clients whose contributions it counts.

Source: "ppgl" is Zhang and Wang, Graph Learning Across Data Silos, here eqs. (7), (18); the model is Kalofolias 2016.
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
    """Learn a graph from each client's own signals, without a term that couples the clients.

    In each round a client takes K gradient steps on its own objective g_i (7). Its graph never leaves it: a client
    sends only the value of its objective, so that the server can follow the convergence of the mean.
    """

    def specs(self, public: Public) -> tuple[TensorSpec, ...]:
        """Describe the one tensor of a contribution, the objective's value: its bound, and 64 bits for its sum."""
        return (TensorSpec(OBJECTIVE, (), self.largest_objective(public), 64),)

    def start(self, public: Public, rng: np.random.Generator) -> GraphServer:
        """Return the server's state before the first round: a mean objective of 0."""
        return GraphServer(np.zeros(()), public)

    def broadcast(self, server: GraphServer) -> Tensors:
        """Return the clients' mean objective in the last round, 0 before the first; the clients do not use it."""
        return {OBJECTIVE: server.consensus}

    def read(self, broadcast: Tensors) -> Array:
        """Return the mean objective of a broadcast, which takes the place of a consensus graph."""
        return np.asarray(broadcast[OBJECTIVE])

    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one round.

        Args:
            consensus: the mean objective, unused.
            memory: the client's graph and the iterate before it, for the momentum of its steps.
            own: the client's own distances and objective.

        Returns:
            The objective at the new graph, and the new memory.
        """
        graph, previous = self.descend(own, *memory)
        return {OBJECTIVE: own.problem.objective(graph, own.distances)}, (graph, previous)

    def update(self, total: Tensors, survivors: Sequence[int], public: Public) -> Array:
        """Return the mean of the survivors' objectives."""
        return np.asarray(total[OBJECTIVE] / len(survivors))

    def broadcast_bound(self, public: Public) -> float:
        """Bound the entries of a broadcast."""
        return self.largest_objective(public)
