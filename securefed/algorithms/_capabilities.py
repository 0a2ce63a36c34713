"""Define the optional capabilities of an algorithm; an algorithm has a capability if it has its methods.

A run asks `supports(algorithm, SupportsBatches)` and so on, and then uses the methods. A contribution is what a
client sends for the sum of a round, a broadcast what the server sends before. A client's state is committed once a sum
has counted the contribution that led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Tensors
from securefed.errors import SecureFedError

Capability = TypeVar("Capability")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
ClientState = TypeVar("ClientState")
CommittedState_contra = TypeVar("CommittedState_contra", contravariant=True)


@runtime_checkable
class SupportsBatches(Protocol[ClientState]):
    """Computes the contributions of several simulated clients at once."""

    def contribute_together(
        self, clients: Sequence[ClientState], broadcast: Tensors, rngs: Sequence[np.random.Generator]
    ) -> Sequence[tuple[ClientState, Tensors] | SecureFedError]:
        """Return for each client what `contribute` returns (up to rounding), or the error that it raises."""
        ...


@runtime_checkable
class SupportsBroadcastCheck(Protocol):
    """States which broadcasts the bounds of its contributions assume; a client checks each before it computes."""

    def check_broadcast(self, broadcast: Tensors, public: Public) -> None:
        """Refuse a broadcast that no server of this algorithm sends.

        Args:
            broadcast: a broadcast of the right names, shapes and types, with finite entries.
            public: the run's public facts. The rule looks at nothing else.

        Raises:
            DataError: the broadcast breaks the rule.
        """
        ...


@runtime_checkable
class SupportsClientSelection(Protocol[CommittedState_contra]):
    """Chooses the cohort, the clients of a round, by scalars that single clients REVEAL.

    The scalars travel in the clear, outside any defence, client by client. A federation refuses that under a defence
    unless it is asked for, and its plan, which a user reads before the run, lists the scalars.
    """

    @property
    def reveals(self) -> Mapping[str, str]:
        """Return for each scalar, by name, what information about the client it reveals; empty if there is none."""
        ...

    @property
    def candidates(self) -> int:
        """Return the number of clients, drawn at random, that are asked for their scalars."""
        ...

    def reveal(self, client: CommittedState_contra, rng: np.random.Generator) -> Mapping[str, float]:
        """Return the scalars of one client by the names of `reveals`, from its committed state."""
        ...

    def choose(self, revealed: Mapping[ClientId, Mapping[str, float]], cohort: int) -> Sequence[ClientId]:
        """Choose at most `cohort` of the clients that answered, from the scalars of each."""
        ...


@runtime_checkable
class SupportsPrivacyCost(Protocol[ClientState]):
    """Makes records private by noise of its own, so that a computed contribution costs privacy even if it is not sent.

    Roll-back does not undo that cost: what was computed may have been seen.
    """

    def spend(self, state: ClientState, computed: ClientState) -> ClientState:
        """Return `state` with the cost that `computed` has run up.

        Args:
            state: the client's committed state, to which a contribution that does not count rolls it back.
            computed: the tentative state that came with a computed contribution.
        """
        ...

    def noised_steps(self, state: ClientState) -> tuple[float, float, int]:
        """Return the DP-SGD steps of the client's next contribution, which do not depend on its data.

        Returns:
            (noise multiplier, sampling rate, number of steps), for the client's ledger: its own record, across runs, of
            what its rows have been used for.
        """
        ...

    def assumptions(self, public: Public) -> tuple[str, ...]:
        """Return the privacy guarantee and its assumptions, in sentences for the plan that users read before a run."""
        ...


def supports(algorithm: Any, capability: Callable[..., Capability]) -> TypeGuard[Capability]:
    """Whether an algorithm has a capability.

    A wrapper that passes attributes on by `__getattr__` has the capabilities of what it wraps. From Python 3.12 on,
    `isinstance` does not see those: a run that asked it would not count the privacy cost of such a wrapper.

    Args:
        algorithm: the algorithm.
        capability: one of the protocols above.
    """
    methods = [name for name in vars(capability) if not name.startswith("_")]
    return all(getattr(algorithm, name, None) is not None for name in methods)


def result_or_error(
    compute: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result | SecureFedError:
    """Return what `compute` returns, or the error of this package that it raises.

    In a batch of clients (`SupportsBatches`) one client's error must not stop the others.
    """
    try:
        return compute(*args, **kwargs)
    except SecureFedError as error:
        return error
