"""MRMTL on graphs: mean-regularised multi-task learning.

"Multi-task": every client learns a graph of its own. "Mean-regularised": each is pulled towards the mean of all.

Client i has N_i signals (rows) on d vertices. A graph is the vector w (edges,) of its d (d - 1) / 2 edge weights, and
g_i(w) is the client's objective: small where its signals vary little over heavy edges. `GraphMethod` (method.py) runs
the rounds: it calls `steps` for each client, which takes K projected gradient steps, and `update` at the server, with
the sum over the survivors, the clients whose contributions it counts.

Source: Liu et al. 2022, On Privacy and Personalization in Cross-Silo Federated Learning, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._hyperparameters import check_number
from securefed._public import Public
from securefed._tensors import Array, Tensors, TensorSpec
from securefed.algorithms._base import algorithms
from securefed.algorithms._graph.method import GRAPH, GraphMethod, LocalGraphData, Memory, edges_of


@algorithms.register(
    "graph/mrmtl",
    summary="personal graphs pulled towards their mean",
    source="ppgl section V-A baseline (iii); Liu et al. 2022, Algorithm 1",
    transmits="w_i (one entry an edge)",
)
@dataclass(frozen=True, kw_only=True)
class MRMTL(GraphMethod):
    """Learn a personal graph for every client, drawn towards the mean of the clients' graphs.

    A client takes K steps on g_i(v) + pull / 2 ||v - v_mean||^2 from its own v; the server averages the survivors' v.

    Attributes:
        pull: lambda, at least 0; 0 is IGL (each client learns alone), except that clients still send their graphs.
    """

    pull: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("pull", self.pull, 0)
        self.refuse_oscillation(self.pull)

    def specs(self, public: Public) -> tuple[TensorSpec, ...]:
        """Describe the one tensor of a contribution, the client's graph (edges,): its bound, and 64 bits a weight."""
        return (TensorSpec(GRAPH, (edges_of(public.features).count,), self.largest_weight(public), 64),)

    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Return `graph`, the client's graph v, and its new memory: v and the iterate before it."""
        graph, before = memory
        graph, previous = self.descend(own, graph, before, self.pull, consensus)
        return {GRAPH: graph}, (graph, previous)

    def update(self, total: Tensors, survivors: Sequence[int], public: Public) -> Array:
        """Return the mean of the survivors' graphs."""
        return np.asarray(total[GRAPH] / len(survivors))
