"""FedProx on graphs: FedAvg with local steps held near the global graph (Li et al. 2020, Algorithm 2, eq. 2).

A graph is the vector w of its edge weights, and g_i(w) client i's objective, small where its signals vary little over
heavy edges. Everything but the pull is `GraphFedAvg`'s (fedavg.py): a client takes projected gradient steps from the
global graph, and the server averages the results, weighted by the clients' numbers of rows.
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
        self.refuse_oscillation(self.mu)

    @property
    def pull(self) -> float:
        """Strength of the pull towards the broadcast graph, mu."""
        return self.mu
