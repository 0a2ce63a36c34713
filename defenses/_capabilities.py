"""Optional abilities of an aggregation, one `typing.Protocol` each.

An aggregation is a protocol of messages that sums the clients' contributions (`_base.Aggregation`); one run of it is an
exchange. The runtime's servers and clients ask for an ability by `isinstance`, once, and work without it where an
aggregation lacks it. In all methods `state` is the aggregation's own state of one exchange, at a client or at the
server as the method's name says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from securefed._messages import Aggregate, ClientId, Message, PartyId
from securefed._tensors import Array, Tensors
from securefed.defenses._base import Outgoing, Plan, Session


@runtime_checkable
class SupportsPipelining(Protocol):
    """An aggregation in which each exchange can prepare the one that follows, so that that one has fewer stages.

    The prepared state is used at most once, by the very next exchange: a client erases it with its upload. It holds
    secrets, which wait in memory, or in the parties' files, until then.
    """

    def client_resume(self, session: Session, client: ClientId, last: Any) -> Any:
        """Return a client's state for one exchange, as `client_open`; `last` is its state of its last exchange."""

    def server_carry(self, state: Any, replies: Mapping[PartyId, Message]) -> Any:
        """Return what the replies that completed an exchange prepared for the next; `None` for nothing."""

    def server_resume(self, session: Session, last: Any) -> tuple[Any, str, Outgoing]:
        """Start an exchange, as `server_open`.

        Args:
            session: run, number, cohort and plan.
            last: what `server_carry` returned for the exchange before, or the bytes of its `to_bytes()`; or `None`.

        Returns:
            The server's state, the name of the first stage, and its requests: by client, the tensors of each by name.
        """


@runtime_checkable
class SupportsMemory(Protocol):
    """An aggregation whose clients must remember something from one exchange to the next, even if their process ends.

    For example, the first public key of a run. (Over whom a client's data were summed, its ledger remembers.)
    """

    def client_memory(self, state: Any) -> Array:
        """Return the memory that the client keeps after an exchange. It holds no secret of the exchange."""

    def client_remind(self, state: Any, memory: Array) -> Any:
        """Return the state of a new exchange, with the memory that the client kept put into it."""


@dataclass(frozen=True)
class Release:
    """A sum that a client is asked to help open.

    Attributes:
        survivors: ids of the clients in the sum, ascending.
        source: digest of what this client's contribution was computed from (`UploadContext.source`).
        members: public identities of the survivors, in their order; empty without identities.
    """

    survivors: tuple[ClientId, ...]
    source: bytes
    members: tuple[bytes, ...]


@runtime_checkable
class SupportsReleases(Protocol):
    """An aggregation in which a client is told who is in the sum, and consents, before it is opened."""

    def client_releases(self, before: Any, after: Any) -> Release | None:
        """Return the sum that a step consents to; `None` where the step consents to none.

        Args:
            before: the client's state before the step.
            after: its state after it. A caller that objects drops this state and the reply.
        """

    def server_names(self, state: Any) -> tuple[ClientId, ...]:
        """Return the clients that the server asks to open a sum over, once it asks so; empty before."""


@runtime_checkable
class SupportsPrecomputation(Protocol):
    """An aggregation whose clients can do work for an upload before it is asked for, while they wait or train."""

    def client_prepare(self, state: Any) -> Any:
        """Return the client's state with that work done, as far as it can be foreseen; nothing else changes."""


@runtime_checkable
class SupportsAuthenticatedRefusals(Protocol):
    """An aggregation whose clients authenticate their refusals, once they share a secret with the server.

    A refusal is the message by which a client declines a request; a forged one would make it look lost.
    """

    def client_refusal(self, state: Any, body: Tensors, number: int) -> Tensors:
        """Return the body of a refusal in exchange `number`, with a tag where `state` has a secret for it."""

    def server_refusal(self, state: Any, refusal: Message) -> None:
        """Raise `MessageRefused` unless the refusal is its sender's own, where the server shares a secret with it."""


@runtime_checkable
class SupportsStreaming(Protocol):
    """An aggregation whose server adds each upload as it arrives and keeps none: memory of one upload, not of all."""

    def server_absorb(self, state: Any, reply: Message) -> Any:
        """Return the state with the upload `reply` added. `server_step` is then called without it to end the stage.

        Raises:
            MessageRefused: as `server_step`; the state from before goes on without this reply.
        """


@runtime_checkable
class SupportsVerification(Protocol):
    """An aggregation whose clients can check the sum that the server announces (`Plan.verified`)."""

    def client_keeps(self, state: Any) -> bytes:
        """Return the secret that this exchange's sum is checked with, after the upload; empty for nothing."""

    def announce(self, aggregate: Aggregate) -> Tensors:
        """Return what the server sends to the clients that it counted; empty if it sends nothing."""

    def client_check(self, kept: bytes, client: ClientId, plan: Plan, announced: Tensors) -> None:
        """Raise `SumRefused` unless the announced sum is that of the uploads of the clients it names.

        Args:
            kept: what `client_keeps` returned.
            client: this client's id.
            plan: the plan of that exchange.
            announced: what `announce` returned, as it arrived.
        """
