"""MRMTL on graphs: mean-regularised multi-task learning.

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
        pull: lambda, at least 0; 0 is IGL, except that clients still send their graphs.
    """

    pull: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("pull", self.pull, 0)
        self.refuse_oscillation(self.pull)

    def specs(self, public: Public) -> tuple[TensorSpec, ...]:
        """Name the tensors of one contribution, with bounds."""
        return (TensorSpec(GRAPH, (edges_of(public.features).count,), self.largest_weight(public), 64),)

    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one round."""
        graph, before = memory
        graph, previous = self.descend(own, graph, before, self.pull, consensus)
        return {GRAPH: graph}, (graph, previous)

    def update(self, total: Tensors, survivors: Sequence[int], public: Public) -> Array:
        """Compute the server's next vectors from the sum."""
        return np.asarray(total[GRAPH] / len(survivors))
