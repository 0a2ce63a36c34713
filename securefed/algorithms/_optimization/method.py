"""The base class of all gradient methods: server and clients train the parameters of a problem by gradient steps.

Parameters, gradients and whatever else a method exchanges are flat vectors with one entry per parameter, called by a
short name such as `x` (the model) or `delta`. The base class keeps the states, turns vectors into named tensors and
back, refuses runs that diverge, and computes clients in batches. A method adds four things: which vectors are sent, the
bounds of a contribution (`factors`), a client's local steps (`steps`), and the server's update (`update`).

In a round the server's `broadcast` goes to the clients, each computes its contribution (`contribute`), a defence sums
the contributions, and the server sees only the sum (`combine`). The survivors are the clients that the sum counts. Only
these keep what they learned: `contribute` returns a tentative state, which `commit` makes the client's state or drops.
Public facts (`Public`) are those that all parties know before the run, such as each client's number of rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from securefed._hyperparameters import check_positive
from securefed._messages import Aggregate
from securefed._persistence.packing import local
from securefed._public import Public
from securefed._tensors import Array, Layout, Ring, Tensors, TensorSpec
from securefed.algorithms._base import Algorithm, RoundOutcome
from securefed.algorithms._capabilities import result_or_error
from securefed.algorithms._optimization.cohort import groups, together
from securefed.algorithms._optimization.local_steps import BatchDraw, LocalTraining, Memory, Vectors, batches
from securefed.algorithms._optimization.model import Model
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, DataError, DivergenceError, SecureFedError
from securefed.problems import Problem, problems
from securefed.problems._linear import SoftmaxRegression

BLOWN_UP = 1e6
"""A run has diverged when an entry of a server's vector exceeds this many times the vector's largest entry at first, or
this number where that entry is below 1. A converging run grows far less, and float32 overflows far later (3e38)."""
HOPELESS = 1e12
"""A contribution or broadcast with an entry beyond this has diverged; no start is needed to compare with. Entries of
usable models are far smaller, and float32 overflows far later."""


@dataclass(frozen=True)
class ModelServer:
    """State of the server.

    Attributes:
        vectors: the server's vectors by name; `x` is the model, the others belong to the method.
        model: the problem's model; it is never stored with the state.
        round: number of completed rounds.
        peaks: for each vector its largest absolute entry in the first round in which that is not 0.
    """

    vectors: dict[str, Array]
    model: Model = local()
    round: int = 0
    peaks: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelClient:
    """State of one client.

    Attributes:
        memory: the committed memory, which the server's sums include.
        data: the client's rows; they are never stored with the state.
        model: the problem's model; it is never stored with the state.
        pending: memory after the last contribution; it replaces `memory` if the sum counts the contribution.
    """

    memory: Memory
    data: Dataset = local()
    model: Model = local()
    pending: Memory | None = None


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Algorithm[ModelServer, ModelClient]):
    """Base of the gradient methods.

    Attributes:
        problem: what is trained.
        learning_rate: eta > 0.
    """

    problem: Problem = SoftmaxRegression()
    learning_rate: float = 0.1

    received: ClassVar[tuple[str, ...]] = ("x",)
    """Names of the vectors in a broadcast. On the wire the tensors of `x` have the problem's own names, such as
    `weight`; those of another vector, such as `phi`, have its name before them, `phi.weight`."""
    sent: ClassVar[tuple[str, ...]]
    """Names of the vectors in a contribution; their tensors have the vector's name before them."""
    replayable: ClassVar[bool] = True
    """True if an attacker can run `steps` in the clients' place, from a memory of zeros. The method then uses only
    `+ - *`, so that it also runs on complex numbers and on projections of the vectors.
    """

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        if not isinstance(self.problem, Problem) or isinstance(self.problem, type):
            raise ConfigError(
                f"problem must be a problem, such as securefed.problems.SoftmaxRegression(); got {self.problem!r}."
            )

    @classmethod
    def from_settings(cls, problem: str | Problem = "softmax", **settings: Any) -> Self:
        """Build the method from settings; `problem` is a problem, or the name of a registered one."""
        return cls(problem=problems.make(problem) if isinstance(problem, str) else problem, **settings)

    @abstractmethod
    def factors(self, public: Public) -> Mapping[str, tuple[float, Ring]]:
        """Bound the entries of a contribution, for fixed-point sums.

        Returns:
            For each vector in `sent` its largest absolute entry, in units of the gradient's largest, and its ring: the
            number of bits, 32 or 64, of the integers in which it is summed.
        """

    @abstractmethod
    def steps(self, received: Vectors, memory: Memory, work: LocalTraining) -> tuple[dict[str, Array], Memory]:
        """Run the local steps of one client's round, or of several clients' at once.

        Where `replayable`, the results are linear in everything but the gradients.

        Args:
            received: the broadcast's vectors by name, (parameters,).
            memory: the vectors that the client remembers, (parameters,); (clients, parameters) for several clients.
            work: the gradients of this round, of one client or of several.

        Returns:
            The vectors that the client sends, by the names in `sent`, and its new memory, in the shapes of `memory`.
        """

    @abstractmethod
    def update(self, vectors: Vectors, total: Vectors, survivors: Array, public: Public) -> dict[str, Array]:
        """Return the server's next vectors from the sum of the contributions.

        Args:
            vectors: the server's vectors by name, (parameters,).
            total: sum of the contributed vectors over the survivors, by name, (parameters,).
            survivors: ids of these clients; a client's id is its position in `public.rows`.
            public: public facts.
        """

    def draw(self, rows: int, rng: np.random.Generator) -> BatchDraw:
        """Draw the rows of each local step; by default one full-batch step."""
        return BatchDraw.of(batches(rows, None, 1, rng))

    def moved(self, point: Array, direction: Array, public: Public) -> Array:
        """Return the point after a local step from `point` against `direction`; proximal methods override it."""
        return point - self.learning_rate * direction

    def memory(self, model: Model) -> Memory:
        """Return a client's memory before its first round."""
        return ()

    def layout(self, public: Public) -> Layout:
        """Name the tensors of one contribution, with bounds from public facts."""
        model = Model(self.problem, public)
        specs = (model.specs(part, *scale) for part, scale in self.factors(public).items())
        return Layout(tuple(spec for group in specs for spec in group))

    def start(self, public: Public, rng: np.random.Generator) -> ModelServer:
        """Return the server's state before the first round."""
        model = Model(self.problem, public)
        x = model.layout.flatten(self.problem.initial(public, rng))  # the server keeps float64 whatever clients use
        return ModelServer({"x": x} | {part: np.zeros_like(x) for part in self.received if part != "x"}, model)

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ModelClient:
        """Return a client's state before its first round."""
        self.problem.targets(data)
        model = Model(self.problem, public)
        return ModelClient(self.memory(model), data, model)

    def broadcast(self, server: ModelServer) -> Tensors:
        """Return what the server sends to the clients of the next round."""
        out: dict[str, Array] = {}
        for part in self.received:
            vector = server.vectors[part].astype(self.problem.dtype, copy=False)
            out |= server.model.name("" if part == "x" else part, vector)
        return out

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse entries so large that the server would have stopped with them.

        Raises:
            DataError: an entry is too large.
        """
        for name, value in broadcast.items():
            if not _peak(value) <= HOPELESS:
                raise DataError(f"{name!r} reaches {_peak(value):.3g}; vectors that have not diverged stay below 1e12")

    def contribute(
        self, client: ModelClient, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[ModelClient, Tensors]:
        """Compute one client's contribution.

        Raises:
            DivergenceError: a local step overflows.
        """
        received = self.read(client.model, broadcast)
        with np.errstate(over="ignore", invalid="ignore"):
            work = self._work(client.data, client.model, self.draw(client.data.rows, rng))
            sent, memory = self.steps(received, client.memory, work)
        return self._contribution(client, sent, memory)

    def contribute_together(
        self, clients: Sequence[ModelClient], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> list[tuple[ModelClient, Tensors] | SecureFedError]:
        """Return for each client the result of `contribute`, or the error that it raises; clients are batched."""
        model = clients[0].model
        received = self.read(model, broadcast)
        datasets = [client.data for client in clients]
        draws = [self.draw(data.rows, rng) for data, rng in zip(datasets, rngs, strict=True)]
        by_client: dict[int, tuple[ModelClient, Tensors] | SecureFedError] = {}
        for members in groups(model, datasets, draws):
            work = together(model, [datasets[i] for i in members], [draws[i] for i in members])
            results = self._group(received, [clients[i] for i in members], work)
            by_client |= dict(zip(members, results, strict=True))
        return [by_client[i] for i in range(len(clients))]

    def _group(
        self, received: Vectors, clients: Sequence[ModelClient], work: LocalTraining
    ) -> list[tuple[ModelClient, Tensors] | SecureFedError]:
        """Return for each client of a group the result of `contribute`, or the error that it raises.

        Each vector of the clients' memories is stacked to (clients, parameters), so that `steps` runs once for all.
        """
        size = clients[0].model.layout.size
        memory = tuple(np.stack(part) for part in zip(*(client.memory for client in clients), strict=True))
        with np.errstate(over="ignore", invalid="ignore"):
            sent, new_memory = self.steps(received, memory, work)
        sent = {part: np.broadcast_to(value, (len(clients), size)) for part, value in sent.items()}
        out: list[tuple[ModelClient, Tensors] | SecureFedError] = []
        for k, client in enumerate(clients):
            vectors = {part: value[k] for part, value in sent.items()}
            own = tuple(value[k].copy() for value in new_memory)  # a view would keep the whole group's memory alive
            out.append(result_or_error(self._contribution, client, vectors, own))
        return out

    def _contribution(self, client: ModelClient, sent: Vectors, memory: Memory) -> tuple[ModelClient, Tensors]:
        """Return a client's tentative state and its contribution; raise `DivergenceError` where a vector diverged."""
        out: dict[str, Array] = {}
        for part in self.sent:
            self._check(sent[part], part, "a client's local steps")
            out |= client.model.name(part, sent[part])
        return replace(client, pending=memory), out

    def read(self, model: Model, broadcast: Tensors) -> dict[str, Array]:
        """Return the vectors of a broadcast by name."""
        return {part: model.vector("" if part == "x" else part, broadcast) for part in self.received}

    def combine(self, server: ModelServer, aggregate: Aggregate) -> ModelServer:
        """Return the server's next state from the sum of the contributions.

        Raises:
            DivergenceError: a vector has diverged; the message names it and the round.
        """
        model = server.model
        total = {part: model.vector(part, aggregate.total).astype(np.float64, copy=False) for part in self.sent}
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = self.update(server.vectors, total, np.asarray(aggregate.survivors), model.public)
        peaks = dict(server.peaks)
        for part, value in vectors.items():  # compare with the vector's first peak; a vector of zeros has none yet
            peak = peaks.get(part) or _peak(server.vectors[part])
            self._check(value, part, f"round {server.round}", BLOWN_UP * max(peak, 1.0) if peak else HOPELESS)
            peaks[part] = peak or _peak(value)
        return replace(server, vectors=vectors, round=server.round + 1, peaks=peaks)

    def commit(self, client: ModelClient, outcome: RoundOutcome) -> ModelClient:
        """Commit the tentative state of a client that the sum counted."""
        if outcome.included and client.pending is not None:
            return replace(client, memory=client.pending, pending=None)
        return replace(client, pending=None)

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the sums that `evaluate` returns, with bounds."""
        rows = float(max(public.rows))
        largest = self.problem.measures(public)  # in 64 bits a loss is rounded to about 2^-50 of its bound
        return Layout(tuple(TensorSpec(name, (), bound * rows, 64) for name, bound in largest.items()))

    def evaluate(self, client: ModelClient, broadcast: Tensors) -> Tensors:
        """Return sums over the client's rows: `loss` (regulariser included), `count`, and what the problem measures."""
        data, parameters = client.data, client.model.parameters(broadcast)
        sums = self.problem.measure(parameters, data.x, self.problem.targets(data))
        return {name: np.asarray(value) for name, value in sums.items()}

    def utility(self, output: Tensors, test: Dataset) -> float:
        """Return the problem's score of a run's output on held-out rows (accuracy in [0, 1]); higher is better."""
        return self.problem.score(output, test.x, self.problem.targets(test))

    @staticmethod
    def _work(data: Dataset, model: Model, draw: BatchDraw) -> LocalTraining:
        """Return the inputs of one client's local steps, on the rows that `draw` names."""
        return LocalTraining(
            gradient=lambda point, step: model.gradient(point, data, draw.parts[step]),
            anchor=lambda point: model.gradient(point, data, slice(None)),
            public=model.public,
            rows=float(data.rows),
            blocks=draw.blocks,
            sizes=[float(size) for size in draw.sizes(data.rows)],
        )

    def _check(self, value: Array, part: str, where: str, limit: float = HOPELESS) -> None:
        """Raise `DivergenceError` where an entry of the vector called `part` reaches `limit` or is not a number."""
        # The squared norm is quicker to compute, and a norm below the limit needs no look at the entries.
        if not np.vdot(value, value) < limit**2 / 2 and not _peak(value) < limit:
            raise DivergenceError(
                f"{where}: {part!r} reached {_peak(value):.3g}, beyond {limit:.3g}; "
                f"lower learning_rate (now {self.learning_rate:g}), take fewer local steps, or scale the features"
            )


def _peak(value: Array) -> float:
    """Return the largest absolute entry."""
    return float(max(value.max(initial=0.0), -value.min(initial=0.0)))  # NaN stays; np.abs would make an array
