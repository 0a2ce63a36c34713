"""FedAvg on graphs: one global graph from all clients' signals (McMahan et al. 2017, Algorithm 1).

Equation numbers are those of the PPGL paper, which has this method as a baseline (28).

Client i has N_i signals (rows) on d vertices. A graph is the vector w (edges,) of its d (d - 1) / 2 edge weights, and
g_i(w) is the client's objective: small where its signals vary little over heavy edges. `GraphMethod` (method.py) runs
the rounds: it calls `steps` for each client, which takes K projected gradient steps with momentum, and `update` at the
server, with the sum over the survivors, the clients whose contributions it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from securefed._public import Public
from securefed._tensors import Array, Tensors, TensorSpec
from securefed.algorithms._base import algorithms
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.method import GRAPH, GraphMethod, LocalGraphData, Memory, edges_of, mean_of_shares


@algorithms.register(
    "graph/fedavg",
    summary="one global graph by federated averaging",
    source="ppgl eq. (28); McMahan et al. 2017, Algorithm 1",
    transmits="N_i w_i (one entry an edge)",
)
@dataclass(frozen=True, kw_only=True)
class GraphFedAvg(GraphMethod):
    """Learn one global graph by averaging graphs that clients improve by local steps.

    A client takes K steps on its objective g_i from the global graph. The server averages the results with weights N_i,
    with which the g_i add up to the objective (28).

    A client sends w_i N_i / (largest N_j). Clients keep nothing between rounds, so that the momentum of their steps
    starts anew each round.
    """

    result: ClassVar[str | None] = None  # no personal graph stays with a client

    def memory(self, edges: Edges) -> Memory:
        """Return what a client remembers: nothing."""
        return ()

    def specs(self, public: Public) -> tuple[TensorSpec, ...]:
        """Describe the one tensor of a contribution, the scaled graph (edges,): its bound, and 64 bits a weight."""
        return (TensorSpec(GRAPH, (edges_of(public.features).count,), self.largest_weight(public), 64),)

    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Return `graph`, the client's graph times its share of rows, and the memory, which stays empty."""
        # start, iterate before it (the same: no momentum at first) and anchor of the pull are all the global graph
        graph, _ = self.descend(own, consensus, consensus, self.pull, consensus)
        return {GRAPH: own.share * graph}, ()

    @property
    def pull(self) -> float:
        """Strength of the pull towards the global graph during the steps: none here; FedProx, a subclass, has one."""
        return 0.0

    def update(self, total: Tensors, survivors: Sequence[int], public: Public) -> Array:
        """Return the next global graph, the survivors' mean weighted by N_i."""
        return mean_of_shares(total[GRAPH], survivors, public)
