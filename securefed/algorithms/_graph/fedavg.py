"""FedAvg on graphs: one global graph from all clients' signals (ppgl eq. 28; McMahan et al. 2017, Algorithm 1)."""

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

    Clients keep nothing between rounds; the momentum starts anew each round.
    """

    result: ClassVar[str | None] = None

    def memory(self, edges: Edges) -> Memory:
        """Return what a client remembers before its first round."""
        return ()

    def specs(self, public: Public) -> tuple[TensorSpec, ...]:
        """Name the tensors of one contribution, with bounds."""
        return (TensorSpec(GRAPH, (edges_of(public.features).count,), self.largest_weight(public), 64),)

    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one round."""
        graph, _ = self.descend(own, consensus, consensus, self.pull, consensus)
        return {GRAPH: own.share * graph}, ()

    @property
    def pull(self) -> float:
        """Strength of the pull towards the global graph."""
        return 0.0

    def update(self, total: Tensors, survivors: Sequence[int], public: Public) -> Array:
        """Compute the server's next vectors from the sum."""
        return mean_of_shares(total[GRAPH], survivors, public)
