"""Ditto on graphs: clients train a global graph by FedAvg, and beside it personal graphs that are pulled towards it.

A graph is the vector of its edge weights, and g_i client i's objective, small where its signals vary little over heavy
edges. `GraphMethod` (method.py) runs the rounds and calls `steps` for each client; the server's part is FedAvg's.

Source: Li et al. 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from securefed._hyperparameters import check_number
from securefed._tensors import Array
from securefed.algorithms._base import algorithms
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.fedavg import GraphFedAvg
from securefed.algorithms._graph.method import GRAPH, GraphMethod, LocalGraphData, Memory


@algorithms.register(
    "graph/ditto",
    summary="personal graphs pulled towards the global graph of FedAvg",
    source="ppgl section V-A baseline (iii); Li et al. 2021, Algorithm 1",
    transmits="N_i w_i of the global graph (one entry an edge)",
)
@dataclass(frozen=True, kw_only=True)
class GraphDitto(GraphFedAvg):
    """Learn a personal graph for every client beside FedAvg, drawn towards the global graph.

    A client takes K steps of FedAvg on the global graph w, and K steps on g_i(v) + strength / 2 ||v - w||^2 from its
    own v. It never sends v.

    Attributes:
        strength: lambda, the strength of the pull, at least 0; 0 makes the personal graphs those of IGL, by
            which each client learns alone.
    """

    strength: float = 1.0

    result: ClassVar[str | None] = GRAPH  # name of the result that stays with a client, its graph v

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("strength", self.strength, 0)
        self.refuse_oscillation(self.strength)  # of a step size too large for g_i with the pull

    def memory(self, edges: Edges) -> Memory:
        """Return what a client remembers before its first round: its graph v and the iterate before it, (edges,)."""
        return GraphMethod.memory(self, edges)  # not that of FedAvg, whose clients remember nothing

    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Return what FedAvg sends, and the client's new memory: v and the iterate before it."""
        sent, _ = super().steps(consensus, (), own)
        graph, before = memory
        return sent, self.descend(own, graph, before, self.strength, consensus)
