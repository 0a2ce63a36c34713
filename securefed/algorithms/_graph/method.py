"""The base class of all methods that learn graphs: each client has signals on the vertices of an unknown graph.

Rows of a client's data are signals, columns are vertices. A graph is a vector w (edges,) of non-negative weights, one
for each pair of vertices, also called edges. With S w the degrees of the vertices, client i's objective is

    g_i(w) = z_i^T w / N_i - alpha 1^T log(S w + zeta) + 2 beta ||w||^2                          (`SmoothGraph`)

It needs of the data only z_i / N_i: for each pair the mean squared difference of its signals over the N_i rows. In a
round a client takes K steps of projected gradient descent on g_i from its own graph or the server's. A method adds what
these steps are pulled towards, what is sent (`specs`, `steps`), and how the server combines the sum (`update`).
Everything is float64.

A run calls `broadcast` at the server, `contribute` at each client, and `combine` at the server with the sum. The
survivors are the clients that the sum counts; only they keep the tentative state that `contribute` returned.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from securefed._hyperparameters import check_positive
from securefed._messages import Aggregate
from securefed._persistence.packing import local
from securefed._public import Public, require
from securefed._tensors import Array, Layout, Tensors, TensorSpec
from securefed.algorithms._audit_case import AuditCase
from securefed.algorithms._base import Algorithm
from securefed.algorithms._capabilities import result_or_error
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.smooth import MomentumDescent, SmoothGraph
from securefed.datasets._base import Dataset
from securefed.errors import DataError, DivergenceError, SecureFedError

CONSENSUS, GRAPH, OBJECTIVE = "consensus", "graph", "objective"
"""Names of tensors: the graph that the server broadcasts, a client's graph, the value of g_i."""
BLOWN_UP = 10
"""A client's ceiling is g_i(w^0) + BLOWN_UP (|g_i(w^0)| + alpha d), with the start w^0 and d vertices. Descent lowers
g_i, so that a client above its ceiling has diverged, or was carried there by momentum (see `descend`)."""
FAR = 1e3
"""A run has diverged when an entry of a broadcast exceeds this multiple of its public bound."""

REMEDY = "lower step_size or momentum, raise start_weight or zeta, or scale the data down"

Memory = tuple[Array, ...]
"""The vectors that a client keeps from round to round; the first is its graph, where it has one."""
edges_of = lru_cache(maxsize=8)(Edges)
"""Return the `Edges` of a number of vertices; the last few are kept, with their tables of indices."""


@dataclass(frozen=True)
class GraphServer:
    """State of the server.

    Attributes:
        consensus: the graph that the server broadcasts, (edges,). The method IGL, whose clients share no graph, has
            their mean objective in its place, a scalar.
        public: public facts of the run.
        round: number of completed rounds.
    """

    consensus: Array
    public: Public = local()
    round: int = 0


@dataclass(frozen=True)
class GraphClient:
    """State of one client.

    Attributes:
        memory: vectors that the client keeps from round to round.
        counted: number of its contributions that a sum has counted.
        distances: z_i / N_i, (edges,): all that a method uses of the data.
        share: N_i / (largest N_j), from public facts.
        ceiling: largest value of g_i that is not taken for divergence: g_i(w^0) plus the rise that `BLOWN_UP` allows.
        public: public facts of the run.
    """

    memory: Memory
    counted: int
    distances: Array = local()
    share: float = local()
    ceiling: float = local()
    public: Public = local()


@dataclass(frozen=True)
class LocalGraphData:
    """Inputs of a client's local steps; with a leading axis of clients where several are computed together.

    Attributes:
        problem: the objective.
        distances: z_i / N_i, (..., edges).
        share: (..., 1), as in `GraphClient`.
        ceiling: (..., 1), as in `GraphClient`.
        first: (..., 1), whether no contribution of the client has been counted yet.
        clients: N.
    """

    problem: SmoothGraph
    distances: Array
    share: Array
    ceiling: Array
    first: Array
    clients: int


@dataclass(frozen=True, kw_only=True)
class GraphMethod(Algorithm[GraphServer, GraphClient]):
    """Base of the methods that learn graphs from smooth signals, g_i(w) of `SmoothGraph` being a client's objective.

    Attributes:
        alpha: weight of the logarithm in g_i, positive. z_i / N_i and alpha / weight have the unit of the data squared,
            so that data of another scale need other parameters.
        beta: weight of the square in g_i, positive.
        zeta: number added to the degrees in the logarithm of g_i, positive.
        step_size: eta of `MomentumDescent`.
        momentum: xi of `MomentumDescent`.
        local_steps: K, the number of steps of `MomentumDescent` a round.
        start_weight: w^0 > 0, the weight of every edge at the start. Where degrees come near 0, the gradient
            of the logarithm, alpha / zeta, makes a single step change the weights very much.

    A client whose objective is not finite or has blown up against its start, with momentum and without, raises
    `DivergenceError`.
    """

    alpha: float = 1.0
    beta: float = 0.01
    zeta: float = 1e-3
    step_size: float = 0.005
    momentum: float = 0.9
    local_steps: int = 5
    start_weight: float = 0.1

    # Settings with which tests and audits run the method.
    test_settings: ClassVar = {"local_steps": 2}
    audit_case: ClassVar = AuditCase(
        settings={"local_steps": 5}, secret="distances", split="standardised=8", utility="graph_fit"
    )
    result: ClassVar[str | None] = GRAPH
    """Name of the client's personal result, its graph `memory[0]`; `None` where the method gives no personal result."""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "zeta", "start_weight"):
            check_positive(name, getattr(self, name))
        self.descent()
        self.refuse_oscillation(0.0)

    @abstractmethod
    def specs(self, public: Public) -> tuple[TensorSpec, ...]:
        """Describe the tensors of one contribution: names, shapes, and bounds on their entries."""

    @abstractmethod
    def steps(self, consensus: Array, memory: Memory, own: LocalGraphData) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one client's round, or of several clients' at once.

        Args:
            consensus: the broadcast graph, (edges,).
            memory: the vectors that the client keeps, (edges,) for graphs; with a leading axis for several clients.
            own: objective and data of the client, or of the clients.

        Returns:
            The tensors that the client sends, (..., size) each, and its new memory.
        """

    @abstractmethod
    def update(self, total: Tensors, survivors: Sequence[int], public: Public) -> Array:
        """Return the next consensus from the sum over the clients `survivors`."""

    def memory(self, edges: Edges) -> Memory:
        """Return a client's memory before its first round: its graph and the iterate before it."""
        graph = np.full(edges.count, self.start_weight)
        return graph, graph

    def descent(self) -> MomentumDescent:
        """Return the descent that the hyper-parameters describe."""
        return MomentumDescent(self.step_size, self.momentum, self.local_steps)

    def descend(
        self,
        own: LocalGraphData,
        graph: Array,
        previous: Array,
        strength: Array | float = 0.0,
        anchor: Array | float = 0.0,
    ) -> tuple[Array, Array]:
        """Make K steps on f(w) = g_i(w) + strength / 2 ||w - anchor||^2 and return the last two iterates, (..., edges).

        They start at `graph`; `previous` is the iterate before it, from which the first step takes its momentum.

        A client whose steps end above its ceiling has either diverged, or momentum has carried it there: at a degree
        near 0 one step can add 2 alpha eta / zeta to a weight, and over the next rounds momentum carries the weight up
        to 1 / (1 - xi) times as far, and back. The two cases are told apart by a second try. A client that began the
        round above g_i(w^0) makes the round's steps again without momentum. If these lower f, they are the result.
        Otherwise the client has diverged, and its iterates are NaN, which does not disturb the clients that are
        computed together with it. A client has also diverged where the step size exceeds 2 / L, L the curvature of f
        at w^0 (`_overshoots`), and a round lifts the client above g_i(w^0) from below: such steps throw a graph about,
        and whether it comes to the ceiling would hang on the last bits. The papers have neither rule and no second try;
        other steps are theirs. A ceiling of infinity lifts both rules.
        """
        inputs = (own.problem, graph, previous, own.distances, strength, anchor)
        last, before = self.descent().run(*inputs)

        def g(w: Array) -> Array:
            return own.problem.objective(w, own.distances)[..., None]

        ended, overshoots = g(last), self._overshoots(own.problem, strength)
        below_ceiling = ended <= own.ceiling
        if below_ceiling.all() and not np.any(overshoots):
            return last, before
        first = g(np.full(graph.shape, self.start_weight))
        began_high = g(graph) > first
        lifted = overshoots & ~began_high & (ended > first) & np.isfinite(own.ceiling)
        fine = below_ceiling & ~lifted
        if fine.all():
            return last, before

        def f(w: Array) -> Array:
            value: Array = g(w) + strength / 2 * ((w - anchor) ** 2).sum(axis=-1, keepdims=True)
            return value

        second_try, second_before = replace(self.descent(), momentum=0.0).run(*inputs)
        recovers = began_high & (f(second_try) < f(graph))
        ends = np.where(fine, last, np.where(recovers, second_try, np.nan))
        return ends, np.where(fine, before, second_before)

    def _overshoots(self, problem: SmoothGraph, strength: Array | float) -> Array:
        """Return whether a step without momentum from w^0 can raise f: eta L > 2.

        L, the largest eigenvalue of the Hessian at w^0, is known: all degrees there are equal.
        """
        curvature = problem.smoothness((problem.edges.vertices - 1) * self.start_weight) + strength
        return np.asarray(self.step_size * curvature > 2)

    def problem(self, public: Public) -> SmoothGraph:
        """Return a client's objective."""
        return SmoothGraph(edges_of(public.features), self.alpha, self.beta, self.zeta)

    def refuse_oscillation(self, strength: float) -> None:
        """Raise `ConfigError` where every step overshoots; g_i with the pull has curvatures >= 4 beta + strength."""
        least = 4 * self.beta + strength
        require(
            self.step_size * least <= 2,
            f"step_size times (4 beta + the pull) must be at most 2, not {self.step_size * least:.3g}: lower step_size",
        )

    def largest_weight(self, public: Public) -> float:
        """Bound the weights in a message: twice the largest weight of any minimiser, or twice the start.

        That iterates stay below is not proven: a client beyond the bound refuses (`RangeRefused`), and the federation
        doubles it.
        """
        return 2 * max(self.start_weight, self.problem(public).largest_weight)

    def largest_objective(self, public: Public) -> float:
        """Bound |g_i| at weights within `largest_weight`; entries of z / N are at most (2 feature_bound)^2."""
        weight, edges = self.largest_weight(public), edges_of(public.features)
        logarithm = max(-math.log(self.zeta), math.log((edges.vertices - 1) * weight + self.zeta), 1.0)
        smooth = edges.count * weight * (2 * public.feature_bound) ** 2
        return smooth + self.alpha * edges.vertices * logarithm + 2 * self.beta * edges.count * weight**2

    def layout(self, public: Public) -> Layout:
        """Name the tensors of one contribution, with bounds from public facts."""
        return Layout(self.specs(public))

    def start(self, public: Public, rng: np.random.Generator) -> GraphServer:
        """Return the server's state before the first round: a graph of equal weights."""
        return GraphServer(np.full(edges_of(public.features).count, self.start_weight), public)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> GraphClient:
        """Return a client's state before its first round; of its data it keeps z_i / N_i alone."""
        edges = edges_of(public.features)
        share, distances = data.rows / max(public.rows), edges.distances(data.x) / data.rows
        first = float(self.problem(public).objective(np.full(edges.count, self.start_weight), distances))
        ceiling = first + BLOWN_UP * (abs(first) + self.alpha * edges.vertices)
        return GraphClient(self.memory(edges), 0, distances, share, ceiling, public)

    def broadcast(self, server: GraphServer) -> Tensors:
        """Return what the server sends to the clients of the next round."""
        return {CONSENSUS: server.consensus}

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse a consensus so large that the server would have stopped with it.

        Raises:
            DataError: an entry is too large.
        """
        largest, limit = float(np.abs(self.read(broadcast)).max(initial=0.0)), FAR * self.broadcast_bound(public)
        if not largest <= limit:
            raise DataError(f"the broadcast reaches {largest:.3g}; one that has not blown up stays within {limit:.3g}")

    def contribute(
        self, client: GraphClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[GraphClient, Tensors]:
        """Compute one client's contribution.

        Raises:
            DivergenceError: the local steps overflow, or leave the domain of the objective.
        """
        own = self._local_data([client], lambda values: values[0])
        with np.errstate(over="ignore", invalid="ignore"):
            sent, memory = self.steps(self.read(broadcast), client.memory, own)
        return self._contribution(client, sent, memory)

    def contribute_together(
        self, clients: Sequence[GraphClient], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> list[tuple[GraphClient, Tensors] | SecureFedError]:
        """Return for each client the result of `contribute`, or the error that it raises; clients are batched."""
        own = self._local_data(clients, np.stack)
        memory = tuple(np.stack(part) for part in zip(*(client.memory for client in clients), strict=True))
        with np.errstate(over="ignore", invalid="ignore"):
            sent, fresh = self.steps(self.read(broadcast), memory, own)
        out: list[tuple[GraphClient, Tensors] | SecureFedError] = []
        for k, client in enumerate(clients):
            row = {name: value[k] for name, value in sent.items()}
            kept = tuple(value[k].copy() for value in fresh)  # a view would keep the arrays of all clients alive
            out.append(result_or_error(self._contribution, client, row, kept))
        return out

    def read(self, broadcast: Tensors) -> Array:
        """Return the part of a broadcast that the local steps use."""
        return np.asarray(broadcast[CONSENSUS])

    def combine(self, server: GraphServer, aggregate: Aggregate) -> GraphServer:
        """Return the server's next state from the sum of the contributions.

        Raises:
            DivergenceError: the consensus has diverged; the message names the round.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            consensus = self.update(aggregate.total, aggregate.survivors, server.public)
        if not (np.abs(consensus) <= FAR * self.broadcast_bound(server.public)).all():  # NaN fails the comparison
            raise DivergenceError(f"round {server.round}: the broadcast has blown up: {REMEDY}")
        return replace(server, consensus=consensus, round=server.round + 1)

    def broadcast_bound(self, public: Public) -> float:
        """Bound the entries of a broadcast."""
        return self.largest_weight(public)

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        return Layout((TensorSpec(OBJECTIVE, (), self.largest_objective(public), 64),))

    def evaluate(self, client: GraphClient, broadcast: Tensors) -> Tensors:
        """Return `objective`, g_i at the client's own graph, or at the consensus where it has none."""
        graph = client.memory[0] if self.result else self.read(broadcast)
        return {OBJECTIVE: self.problem(client.public).objective(graph, client.distances)}

    def personal(self, client: GraphClient) -> Tensors | None:
        """Return the result that stays with the client, its graph (edges,); `None` where the method has none."""
        return {self.result: client.memory[0]} if self.result else None

    def _contribution(
        self, client: GraphClient, sent: Mapping[str, Array], memory: Memory
    ) -> tuple[GraphClient, Tensors]:
        """Return a client's tentative state and its contribution; raise `DivergenceError` where it is not finite."""
        for value in (*memory, *sent.values()):
            if not np.isfinite(value).all():
                raise DivergenceError(f"a client's graph has blown up: {REMEDY}")
        specs = self.specs(client.public)
        out = {spec.name: np.asarray(sent[spec.name]).reshape(spec.shape) for spec in specs}
        return replace(client, memory=memory, counted=client.counted + 1), out

    def _local_data(self, clients: Sequence[GraphClient], join: Callable[[list[Array]], Array]) -> LocalGraphData:
        """Return the inputs of the local steps; `join` stacks the clients' arrays, or takes the only one."""

        def column(values: Iterable[float]) -> Array:
            return join([np.asarray([value]) for value in values])

        return LocalGraphData(
            problem=self.problem(clients[0].public),
            distances=join([client.distances for client in clients]),
            share=column(client.share for client in clients),
            ceiling=column(client.ceiling for client in clients),
            first=column(client.counted == 0 for client in clients),
            clients=clients[0].public.clients,
        )


def mean_of_shares(total: Array, survivors: Sequence[int], public: Public) -> Array:
    """Return the mean of the graphs w_i, weighted by N_i, from the sum of (N_i / largest N) w_i over the survivors."""
    rows = np.asarray(public.rows, np.float64)  # N_j of all clients j
    return np.asarray(total / (rows[list(survivors)].sum() / rows.max()))
