"""The protocol every algorithm implements: a client makes a contribution, the server sees only sums.

An algorithm is a frozen dataclass of hyper-parameters. States are frozen dataclasses that `securefed.state.pack`
understands; a step returns a new one. All randomness comes from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from securefed.datasets.base import Dataset
from securefed.errors import ConfigError, DataError, SecureFedError
from securefed.messages import Aggregate, ClientId
from securefed.registry import Registry
from securefed.tensors import Layout, Tensors

Server = TypeVar("Server")
Client = TypeVar("Client")
Committed_contra = TypeVar("Committed_contra", contravariant=True)


@dataclass(frozen=True)
class Public:
    """What everybody may know before a run: numbers and declared bounds, never a row of anybody's data.

    Attributes:
        clients: N, the clients enrolled.
        cohort: S, the clients PLANNED for a round; a constant of the run, never the number of survivors.
        features: width of every client's rows.
        rows: n_i of each client.
        classes: number of labels, 0 where the task has none.
        feature_bound: every entry of every row lies in [-feature_bound, feature_bound].
    """

    clients: int
    cohort: int
    features: int
    rows: tuple[int, ...]
    classes: int
    feature_bound: float

    @classmethod
    def of(cls, clients: Sequence[Dataset], *, cohort: int | None = None, feature_bound: float | None = None) -> Public:
        """The public facts of simulated clients.

        `feature_bound` should be the declared range of the data; where it is left out, the largest absolute
        entry of all clients is used, which a real deployment would have to agree on; 1 where all entries are 0.

        Raises:
            DataError: no clients, or clients of different widths.
            ConfigError: a cohort larger than the number of clients.
        """
        if not clients:
            raise DataError("a federation needs at least one client")
        widths = {data.features for data in clients}
        if len(widths) != 1:
            first = clients[0].features
            odd = next(i for i, data in enumerate(clients) if data.features != first)
            raise DataError(
                f"client {odd} has {clients[odd].features} features, client 0 has {first}; align the columns"
            )
        size = len(clients) if cohort is None else cohort
        if not 1 <= size <= len(clients):
            raise ConfigError(f"cohort must lie in 1..{len(clients)} (the number of clients), not {size}")
        bound = max(float(np.abs(data.x).max()) for data in clients) if feature_bound is None else feature_bound
        for index, data in enumerate(clients):
            if np.abs(data.x).max() > bound:
                raise DataError(f"client {index} has an entry beyond the declared feature_bound {bound}")
        classes = max(data.classes for data in clients)
        rows = tuple(data.rows for data in clients)
        return cls(len(clients), size, clients[0].features, rows, classes, bound or 1.0)


@dataclass(frozen=True)
class Outcome:
    """What a client learns of the round it contributed to.

    Attributes:
        included: whether the sum counted its contribution.
        broadcast: what followed from that round's sum; `None` for algorithms that do not need it.
    """

    included: bool
    broadcast: Tensors | None


@runtime_checkable
class Algorithm(Protocol[Server, Client]):
    """A federated algorithm whose server step is a function of the sum of the contributions."""

    needs_outcome: ClassVar[bool]
    """Whether `settle` needs the broadcast that followed from the round contributed to (dual updates)."""

    def layout(self, public: Public) -> Layout:
        """The tensors of one contribution with public bounds. Raises `ConfigError` where parameters and data clash."""
        ...

    def start(self, public: Public, rng: np.random.Generator) -> Server:
        """The server's state before the first round."""
        ...

    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> Client:
        """A client's state before its first round."""
        ...

    def broadcast(self, server: Server) -> Tensors:
        """What the server sends to every client of the next round."""
        ...

    def contribute(self, client: Client, broadcast: Tensors, rng: np.random.Generator) -> tuple[Client, Tensors]:
        """A TENTATIVE next state, and the contribution. The caller commits by `settle`, or forgets it."""
        ...

    def combine(self, server: Server, aggregate: Aggregate) -> Server:
        """The server's next state from the sum."""
        ...

    def settle(self, client: Client, outcome: Outcome) -> Client:
        """The committed state from a tentative one that the sum counted."""
        ...

    def evaluation_layout(self, public: Public) -> Layout:
        """The tensors that `evaluate` returns, with bounds."""
        ...

    def evaluate(self, client: Client, broadcast: Tensors) -> Tensors:
        """Sums (loss, correct, count, ...) that travel through the same door and defence."""
        ...

    def personal(self, client: Client) -> Tensors | None:
        """The result that stays with the client, if the algorithm has one."""
        ...

    def finished(self, server: Server) -> str | None:
        """Why the run may stop now, or `None`."""
        ...


@runtime_checkable
class Batched(Protocol[Client]):
    """What an algorithm may offer besides: the contributions of several simulated clients as one computation."""

    def contribute_together(
        self, clients: Sequence[Client], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> Sequence[tuple[Client, Tensors] | SecureFedError]:
        """For each client what `contribute` returns (up to rounding), or the error it raises."""
        ...


@runtime_checkable
class Restricting(Protocol):
    """What an algorithm may declare besides: which broadcasts its bounds assume."""

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Raise `DataError` for a finite broadcast of the right shapes that no server of this algorithm sends.

        Args:
            broadcast: of the right names, shapes and types, with finite entries.
            public: the run's public facts. The rule looks at nothing else.
        """
        ...


@runtime_checkable
class Selecting(Protocol[Committed_contra]):
    """What an algorithm may declare besides: that its cohort depends on scalars that single clients REVEAL.

    Scalars travel in the clear, outside any defence, client by client. A federation refuses that under a defence
    unless it is asked for, and its plan lists them.
    """

    @property
    def reveals(self) -> Mapping[str, str]:
        """By name of the scalar, what it says about the client; empty where nothing is revealed."""
        ...

    @property
    def candidates(self) -> int:
        """How many clients, drawn at random, are asked."""
        ...

    def reveal(self, client: Committed_contra, rng: np.random.Generator) -> Mapping[str, float]:
        """The scalars of one client, from its committed state."""
        ...

    def choose(self, revealed: Mapping[ClientId, Mapping[str, float]], cohort: int) -> Sequence[ClientId]:
        """At most `cohort` of the clients that answered."""
        ...


algorithms: Registry[Algorithm[Any, Any]] = Registry("algorithm")


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)
