"""PPGL: a personal graph for every client, and a sparse consensus that weighs clients by how near they are to it.

Client i has N_i signals (rows) on d vertices; columns are vertices. A graph is the vector w (edges,) of its
d (d - 1) / 2 edge weights, and g_i(w) (7) is the client's objective: small where its signals vary little over heavy
edges. `GraphMethod` (method.py) runs the rounds: it calls `steps` for each client, and `update` at the server, with the
sum over the survivors, the clients whose contributions it counts.

Source: Zhang and Wang, Graph Learning Across Data Silos, equations (8), (13), (18)-(25), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from securefed._hyperparameters import check_choice, check_positive
from securefed._public import Public
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.algorithms._base import algorithms
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.method import GRAPH, GraphClient, GraphMethod, LocalGraphData, Memory, edges_of
from securefed.errors import DivergenceError

WEIGHTED, WEIGHT, PENALTY = "weighted", "weight", "penalty"
"""Names of tensors: gamma_i w_i, gamma_i, and the distance from w_i to the consensus as `PPGL.penalty` measures it."""
Weights = Literal["automatic", "equal"]


@algorithms.register(
    "graph/ppgl",
    summary="personal graphs and a sparse consensus that weighs clients by their distance to it",
    source="ppgl Algorithm 1, eqs. (8), (13), (18)-(25)",
    transmits="gamma_i w_i (one entry an edge), gamma_i",
)
@dataclass(frozen=True, kw_only=True)
class PPGL(GraphMethod):
    """Learn a personal graph for every client, and a sparse consensus of them.

    min  sum_i g_i(w_i) + lambda (nu sum_i ||w_i - w_con||_2 + ||w_con||_1)   over non-negative graphs (8).

    w_i is the graph of client i, w_con the consensus, N the number of clients. The norm ||w_i - w_con||, not squared,
    lets a client differ from the consensus; it is minimised through squares with weights gamma_i that follow it.

    A round, rho = lambda nu. The client sets gamma_i = 1 / (||w_i - w_con|| + eps) (25), w_i being its graph as a sum
    last counted it. Then it takes K projected gradient steps on g_i(w) + rho gamma_i / 2 ||w - w_con||^2 (18)-(21), and
    sends [gamma_i w_i, gamma_i] with the gamma that it used. Before its first counted contribution gamma_i = 1 / N
    (Algorithm 1, line 1: both graphs are the same then).
    Server: w_con = max(0, sum gamma_i w_i / C - lambda / (rho C)), C = sum gamma_i (24). Where only some clients take
    part, C in the threshold stands for N / survivors times their sum, so that attendance does not change how sparse
    w_con is.

    The paper's server computes gamma_i from w_i; here the client does, since the server sees only sums. Steps and
    weights are the same. A client that sits out or is not counted keeps its graph and momentum, and computes its next
    gamma_i from the w_con that it then receives.

    Guarantee (theorem 2, with its condition): with automatic weights and all clients each round, `objective` falls in
    every round after the first if momentum = 0 and step_size <= 2 / (L + rho gamma_i), L = `SmoothGraph.smoothness`
    at the smallest degree visited. The first round is exempt (gamma_i = 1 / N majorises nothing).
    NOT promised: that fall with momentum (measured: no rises at the paper's xi = .9, some at .97), nor under partial
    participation; a global minimum; privacy of w_i.

    K, the step size, the momentum xi and the start w^0 are attributes of `GraphMethod`.

    Attributes:
        sparsity: lambda > 0, the weight of both penalties in (8).
        nu: nu > 0, the weight of the distances to the consensus relative to its L1 norm.
        weights: `equal` keeps gamma_i = 1 / N for all (Table III, "w/o"); another shared value would only scale nu.
        distance_floor: eps > 0. The pull's curvature is at most rho / eps; step_size rho <= eps keeps steps stable
            for a client whose graph meets the consensus.
    """

    sparsity: float = 0.3
    nu: float = 3.0
    weights: Weights = "automatic"
    distance_floor: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sparsity", "nu", "distance_floor"):
            check_positive(name, getattr(self, name))
        check_choice("weights", self.weights, ("automatic", "equal"))

    @property
    def rho(self) -> float:
        """Return the penalty parameter rho = lambda nu."""
        return self.sparsity * self.nu

    def specs(self, public: Public) -> tuple[TensorSpec, ...]:
        """Describe the tensors of one contribution, gamma_i w_i (edges,) and gamma_i, with their bounds."""
        largest = max(1.0, 1 / self.distance_floor)  # of gamma_i
        shape = (edges_of(public.features).count,)
        weighted = TensorSpec(WEIGHTED, shape, largest * self.largest_weight(public), 64)
        return weighted, TensorSpec(WEIGHT, (), largest, 64)

    def memory(self, edges: Edges) -> Memory:
        """Return what a client remembers before its first round: w_i, the iterate before it, and gamma_i last used."""
        return *super().memory(edges), np.zeros(1)

    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Return gamma_i w_i and gamma_i, and the client's new memory, in the order of `memory`."""
        graph, previous, _ = memory
        gamma = self.contribution_weights(graph, consensus, own)
        strength = self.rho * gamma
        graph, previous = self.descend(own, graph, previous, strength, consensus)
        return {WEIGHTED: gamma * graph, WEIGHT: gamma}, (graph, previous, gamma)

    def contribution_weights(self, graph: Array, consensus: Array, own: LocalGraphData) -> Array:
        """Compute the weights gamma_i, (..., 1): 1 / N before a client's first counted contribution (`own.first`)."""
        equal = np.full(own.first.shape, 1 / own.clients)
        if self.weights == "equal":
            return equal
        distance = np.linalg.norm(graph - consensus, axis=-1, keepdims=True)
        return np.where(own.first, equal, 1 / (distance + self.distance_floor))  # (25) and its footnote

    def update(self, total: Tensors, survivors: Sequence[int], public: Public) -> Array:
        """Return the next consensus w_con from the sums of gamma_i w_i and gamma_i.

        Raises:
            DivergenceError: the gamma_i sum to 0 or less, which only noise can cause.
        """
        present = float(total[WEIGHT])
        if not present > 0:
            raise DivergenceError(f"the clients' weights sum to {present}, not above 0: noise outweighs them")
        all_clients = present * public.clients / len(survivors)
        threshold = self.sparsity / (self.rho * all_clients)
        return np.asarray(np.maximum(0.0, total[WEIGHTED] / present - threshold))  # (24)

    def penalty(self, graph: Array, consensus: Array) -> Array:
        """Return r - eps log(1 + r / eps), r = ||w_i - w_con||: what 1 / (r + eps) majorises; r itself for eps -> 0."""
        distance, floor = np.linalg.norm(graph - consensus, axis=-1), self.distance_floor
        return np.asarray(distance - floor * np.log1p(distance / floor))

    def objective(self, graphs: Array, consensus: Array, distances: Array, public: Public) -> float:
        """Compute (8), its norm softened as in `penalty`.

        Args:
            graphs: w_i, (clients, edges).
            consensus: w_con, (edges,).
            distances: z_i / N_i, by vertex pair the mean squared difference of a client's signals, (clients, edges).
            public: public facts of the run.
        """
        fit = self.problem(public).objective(graphs, distances).sum()
        pull = self.rho * self.penalty(graphs, consensus).sum()
        return float(fit + pull + self.sparsity * np.abs(consensus).sum())

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        farthest = self.largest_weight(public) * np.sqrt(edges_of(public.features).count)
        return Layout((*super().evaluation_layout(public), TensorSpec(PENALTY, (), float(farthest), 64)))

    def evaluate(self, client: GraphClient, broadcast: Tensors) -> Tensors:
        """Return `objective` and `penalty`; with their sums, objective + rho penalty + lambda ||w_con||_1 is (8)."""
        penalty = self.penalty(client.memory[0], self.read(broadcast))
        return {**super().evaluate(client, broadcast), PENALTY: penalty}

    def personal(self, client: GraphClient) -> Tensors:
        """Return the client's `graph` w_i, and its `weight` gamma_i as last used."""
        return {GRAPH: client.memory[0], WEIGHT: client.memory[2].reshape(())}
