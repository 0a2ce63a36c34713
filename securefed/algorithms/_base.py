"""The base class of every algorithm: a client makes a contribution, and the server sees only sums of contributions.

An algorithm is a frozen dataclass of hyper-parameters. Its states are frozen dataclasses that `pack`
can write; a step returns a new state. All randomness comes from the generator that is passed in.
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
        data: the client's rows; they are never stored with the state.
    """

    data: Dataset = local()


class Algorithm(ABC, Generic[ServerState, ClientState]):
    """A federated algorithm whose server step is a function of the SUM of the contributions.

    Six methods have to be written: `layout`, `start`, `enroll`, `broadcast`, `contribute` and `combine`. The others
    have defaults. `extension_templates/algorithm.py` is a commented example.
    """

    needs_outcome: ClassVar[bool] = False
    """True if `commit` needs the broadcast that follows the round contributed to, as dual updates do."""

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
        """Name the tensors of one contribution, with shapes and bounds that follow from public facts.

        Raises:
            ConfigError: the hyper-parameters do not fit the data.
        """

    @abstractmethod
    def start(self, public: Public, rng: np.random.Generator) -> ServerState:
        """Return the server's state before the first round."""

    @abstractmethod
    def enroll(self, data: Dataset, public: Public, rng: np.random.Generator) -> ClientState:
        """Return a client's state before its first round."""

    @abstractmethod
    def broadcast(self, server: ServerState) -> Tensors:
        """Return the message of the server to every client of the next round."""

    @abstractmethod
    def contribute(
        self, client: ClientState, broadcast: Tensors, rng: np.random.Generator
    ) -> tuple[ClientState, Tensors]:
        """Compute one client's contribution.

        Returns:
            A TENTATIVE next state of the client, and the contribution. The state is committed by `commit` where the
            sum counted the contribution, and forgotten otherwise.
        """

    @abstractmethod
    def combine(self, server: ServerState, aggregate: Aggregate) -> ServerState:
        """Return the server's next state from the sum of the contributions."""

    def commit(self, client: ClientState, outcome: RoundOutcome) -> ClientState:
        """Return the committed state for a tentative one whose contribution the sum counted."""
        return client

    def evaluation_layout(self, public: Public) -> Layout:
        """Name the tensors that `evaluate` returns, with bounds; without any, evaluation is refused."""
        return Layout(())

    def evaluate(self, client: ClientState, broadcast: Tensors) -> Tensors:
        """Return sums over the client's rows (loss, correct, count, ...); they travel through the same defence."""
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
"""All algorithms by name. An algorithm is registered where its class is defined, with `@algorithms.register(...)`."""
