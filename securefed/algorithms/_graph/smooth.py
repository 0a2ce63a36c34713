"""Learn one client's graph from smooth signals: the objective, and accelerated projected gradient steps on it.

Equations and propositions are those of the paper of PPGL, a federated method of graph learning (`ppgl`). N is the
client's number of signals, d the number of vertices. A graph is the vector w (edges,) of the weights of all pairs of
vertices; S w are the degrees, the sums of the weights at each vertex. The methods of this folder run `MomentumDescent`
as the clients' local steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from securefed._hyperparameters import check_integer, check_number, check_positive
from securefed._tensors import Array
from securefed.algorithms._graph.edges import Edges


@dataclass(frozen=True)
class SmoothGraph:
    """Objective of learning a graph from smooth signals (PPGL, (7) and (18)).

    g(w) = z^T w / N - alpha 1^T log(S w + zeta) + 2 beta ||w||^2 over edge weights w >= 0, with S w the degrees.

    z holds squared distances between the vertices' signals, so that edges between vertices with similar signals get
    large weights. The logarithm keeps every vertex connected, and the square spreads a vertex's weight over several
    edges. g is strongly convex with constant 4 beta. With zeta = 0, the minimiser for (c alpha, beta / c) is c times
    that for (alpha, beta), so that alpha = 1 is no restriction.

    Attributes:
        edges: edges of the graph.
        alpha: weight of the logarithm.
        beta: weight of the square.
        zeta: number added to the degrees in the logarithm.
    """

    edges: Edges
    alpha: float
    beta: float
    zeta: float

    def objective(self, graph: Array, distances: Array) -> Array:
        """Return g(w), (...,); `graph` and `distances` = z / N are (..., edges)."""
        degrees = self.edges.degrees(graph) + self.zeta
        fit = (distances * graph).sum(axis=-1)
        value: Array = fit - self.alpha * np.log(degrees).sum(axis=-1) + 2 * self.beta * (graph**2).sum(axis=-1)
        return value

    def gradient(self, graph: Array, distances: Array, degrees: Array | None = None) -> Array:
        """Return z / N - S^T(alpha / (S w + zeta)) + 4 beta w, (..., edges); `degrees` = S w where it is known."""
        if degrees is None:
            degrees = self.edges.degrees(graph)
        barrier = self.edges.spread(self.alpha / (degrees + self.zeta))
        gradient: Array = distances - barrier + 4 * self.beta * graph
        return gradient

    def smoothness(self, degree: float) -> float:
        """Bound the largest eigenvalue of the Hessian where no degree is below `degree`; ||S||_2^2 = 2 (d - 1).

        Proposition 1 takes degree = 0 and finds 4 beta + 2 alpha (d - 1) / zeta^2, millions with the usual zeta:
        far beyond 1 / step_size. A run needs the bound only at the degrees that it visits.
        """
        return 4 * self.beta + 2 * self.alpha * (self.edges.vertices - 1) / (degree + self.zeta) ** 2

    @property
    def largest_weight(self) -> float:
        """Return sqrt(alpha / (2 beta)), which bounds the weights of a minimiser for all data.

        At a weight w > 0, 4 beta w <= alpha (1 / deg_i + 1 / deg_j) <= 2 alpha / w. The same holds with a pull
        towards a graph whose weights are no larger.
        """
        return math.sqrt(self.alpha / (2 * self.beta))


@dataclass(frozen=True)
class MomentumDescent:
    """Accelerated projected gradient steps (ppgl eqs. 19-21).

    Attributes:
        step_size: eta > 0.
        momentum: xi in [0, 1).
        steps: number of steps, K >= 1.

    An extrapolated point may have negative degrees, which no graph has; beyond -zeta the objective is undefined, and
    just before it the gradient is unbounded. A client's step from such a point is made without momentum instead. In
    the paper's experiment with 90 % of the edges shared it happens in one of 20 draws of the data, under FedAvg.
    With xi = 0, no step raises the objective where eta is at most 2 / L, L = `SmoothGraph.smoothness` at the smallest
    degree between the step's ends, plus the `strength` of `run`. With momentum single steps may raise it; see
    `GraphMethod.descend` for a graph that momentum carries to a much larger objective.
    """

    step_size: float
    momentum: float
    steps: int

    def __post_init__(self) -> None:
        check_positive("step_size", self.step_size)
        check_number("momentum", self.momentum, 0, 1)
        check_integer("local_steps", self.steps, 1)

    def run(
        self,
        problem: SmoothGraph,
        graph: Array,
        previous: Array,
        distances: Array,
        strength: Array | float = 0.0,
        anchor: Array | float = 0.0,
    ) -> tuple[Array, Array]:
        """Make K steps on g(w) + strength / 2 ||w - anchor||^2, and return the last two iterates.

        Args:
            problem: g.
            graph: (..., edges), the iterate to start from.
            previous: (..., edges), the iterate before it, for the momentum.
            distances: z / N.
            strength: (..., 1) or a number.
            anchor: (edges,) or (..., edges).
        """
        for _ in range(self.steps):
            extrapolated = graph + self.momentum * (graph - previous)  # (19)
            degrees = problem.edges.degrees(extrapolated)
            if (degrees < 0).any():
                inside = (degrees >= 0).all(axis=-1, keepdims=True)
                extrapolated = np.where(inside, extrapolated, graph)
                degrees = problem.edges.degrees(extrapolated)
            slope = problem.gradient(extrapolated, distances, degrees) + strength * (extrapolated - anchor)
            graph, previous = np.maximum(0.0, extrapolated - self.step_size * slope), graph  # (20), (21)
        return graph, previous
