"""FedProx on graphs: FedAvg with local steps held near the global graph (Li et al. 2020, Algorithm 2, eq. 2).

A graph is the vector w of its edge weights. Client i has N_i signals, the rows of its data, with one entry a vertex,
and the objective g_i(w), small where its signals vary little over heavy edges. Everything but the pull is
`GraphFedAvg`'s (fedavg.py): a client takes projected gradient steps from the global graph and sends the result w_i in
proportion to N_i, and the server forms the mean weighted by the N_i. The source "ppgl" below is Zhang and Wang, Graph
Learning Across Data Silos, which compares with this method.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed._hyperparameters import check_number
from securefed.algorithms._base import algorithms
from securefed.algorithms._graph.fedavg import GraphFedAvg


@algorithms.register(
    "graph/fedprox",
    summary="one global graph, local steps held near it",
    source="ppgl eq. (28); Li et al. 2020, Algorithm 2",
    transmits="N_i w_i (one entry an edge)",
)
@dataclass(frozen=True, kw_only=True)
class GraphFedProx(GraphFedAvg):
    """Learn one global graph as FedAvg does, with local steps on g_i(w) + mu / 2 ||w - w_global||^2.

    With mu = 0 it is FedAvg.

    Attributes:
        mu: strength of the pull towards the global graph, at least 0.
    """

    mu: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("mu", self.mu, 0)
        self.refuse_oscillation(self.mu)  # the pull adds mu to the curvature: too large a step_size would overshoot

    @property
    def pull(self) -> float:
        """Strength of the pull towards the broadcast graph, mu."""
        return self.mu
