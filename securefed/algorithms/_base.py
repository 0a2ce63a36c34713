"""The base class of every algorithm: a client makes a contribution, and the server sees only sums of contributions.

A run calls `start` once at the server and `enroll` once at each client. In each round the server's `broadcast` goes to
the clients of the round, each computes its `contribute`, a defence sums the contributions (in the clear, masked or
encrypted), and the server gets the sum, in `combine`. Clients may drop out on the way: the survivors are those that the
sum counts. A client's new state is tentative until it learns that it is among them (`commit`).

An algorithm is a frozen dataclass of hyper-parameters. Its states are frozen dataclasses that
`securefed._persistence.packing.pack` can write to a checkpoint; a step returns a new state. All randomness comes from
the generator that is passed in. `Tensors` are arrays by name, a `Layout` names and bounds them, and `Public` holds the
facts that all parties know before the run: numbers of clients, rows and columns, and a bound on the entries of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from securefed._messages import Aggregate
from securefed._persistence.packing import local
from securefed._public import Public
from securefed._registry import Registry
from securefed._tensors import Layout, Tensors
from securefed.algorithms._audit_case import AuditCase
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError

ServerState = TypeVar("ServerState")
ClientState = TypeVar("ClientState")


@dataclass(frozen=True)
class RoundOutcome:
    """Result of a round, as a client that contributed to it learns it.

    Attributes:
        included: whether the sum counted the client's contribution.
        broadcast: the broadcast that followed from that round's sum; `None` for algorithms that do not need it.
    """

    included: bool
    broadcast: Tensors | None


@dataclass(frozen=True)
class ClientData:
    """State of a client that remembers nothing but its data.

    Attributes:
        data: the client's rows; they never go into a checkpoint.
    """

    data: Dataset = local()


class Algorithm(ABC, Generic[ServerState, ClientState]):
    """A federated algorithm whose server step is a function of the SUM of the contributions.

    Six methods have to be written: `layout`, `start`, `enroll`, `broadcast`, `contribute` and `combine`. The others
    have defaults. `extension_templates/algorithm.py` is a commented example.
    """

    needs_outcome: ClassVar[bool] = False
    """True if `commit` needs the broadcast that follows from the sum of the client's round, as dual updates do."""

    exact_sums: ClassVar[bool] = False
    """True if server or clients keep state that follows from the exact sums of all survivors, such as running sums of
    differences, control variates or duals. A robust mean in place of a sum (`grouped`) is then refused."""

    test_settings: ClassVar[Mapping[str, Any]] = {}
    """Small, quick hyper-parameters with which the published checks (`securefed.testing`) run the algorithm."""

    audit_case: ClassVar[AuditCase | None] = None
    """Settings of the audit's run of the algorithm; `None` if the audit does not run it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Name the methods that a class does not define yet."""
        missing = ", ".join(f"`{name}`" for name in sorted(cls.__abstractmethods__))
        if missing:
            raise ConfigError(f"{cls.__name__} lacks {missing}; an algorithm has to define its six methods.")
        return super().__new__(cls)

    @abstractmethod
    def layout(self, public: Public) -> Layout:
        """Name the tensors of one contribution, with shapes and bounds on their entries that follow from public facts.

        Raises:
            ConfigError: the hyper-parameters do not fit the data.
        """

    @abstractmethod
    def start(self, public: Public, rng: np.random.Generator) -> ServerState:
        """Return the server's state before the first round, from public facts and randomness alone."""

    @abstractmethod
    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ClientState:
        """Return a client's state before its first round, from its own rows and public facts."""

    @abstractmethod
    def broadcast(self, server: ServerState) -> Tensors:
        """Return the message of the server to every client of the next round."""

    @abstractmethod
    def contribute(
        self, client: ClientState, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[ClientState, Tensors]:
        """Compute one client's contribution.

        Args:
            client: the client's committed state.
            broadcast: what the server sent.
            rng: the source of all randomness.

        Returns:
            A TENTATIVE next state of the client, and the contribution, tensors as in `layout`. The state is committed
            by `commit` where the sum counted the contribution, and forgotten otherwise.
        """

    @abstractmethod
    def combine(self, server: ServerState, aggregate: Aggregate) -> ServerState:
        """Return the server's next state from the sum of the contributions and the ids of the clients in it."""

    def commit(self, client: ClientState, outcome: RoundOutcome) -> ClientState:
        """Return the committed state for a tentative one.

        Args:
            client: the tentative state that `contribute` returned.
            outcome: what the client learns of the round.
        """
        return client

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the tensors that `evaluate` returns, with bounds; an algorithm without any refuses to be evaluated."""
        return Layout(())

    def evaluate(self, client: ClientState, broadcast: Tensors) -> Tensors:
        """Return sums over the client's rows (loss, correct, count, ...); they are summed through the same defence."""
        return {}

    def personal(self, client: ClientState) -> Tensors | None:
        """Return the result that stays with the client; `None` where the algorithm has none."""
        return None

    def finished(self, server: ServerState) -> str | None:
        """Return the reason why the run may stop now; `None` to go on."""
        return None

    @classmethod
    def from_settings(cls, **settings: Any) -> Self:
        """Build the algorithm from settings as the command line gives them: numbers, texts and names."""
        return cls(**settings)


algorithms: Registry[Algorithm[Any, Any]] = Registry("algorithm", built_in="securefed._catalogue")
"""All algorithms by name, for the command line and the audit.

An algorithm is registered where its class is defined, with `@algorithms.register(...)`.
"""
