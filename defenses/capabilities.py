"""What an aggregation may offer besides `Aggregation`: each is asked for by `isinstance`, and missed by nobody.

Parties look for them once and do without where they are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from securefed.defenses.base import Outgoing, Plan, Session
from securefed.messages import Aggregate, ClientId, Message, PartyId
from securefed.tensors import Array, Tensors


@runtime_checkable
class Pipelined(Protocol):
    """An aggregation whose exchanges may prepare the one that follows.

    What is carried over is used at most once, by the very next exchange, and never written to disk.
    """

    def client_resume(self, session: Session, client: ClientId, last: Any) -> Any:
        """As `client_open`; `last` is the client's state of its last exchange."""
        ...

    def server_carry(self, state: Any, replies: Mapping[PartyId, Message]) -> Any:
        """What the replies that completed an exchange prepared; `None` for nothing."""
        ...

    def server_resume(self, session: Session, last: Any) -> tuple[Any, str, Outgoing]:
        """As `server_open`; `last` is what `server_carry` gave for the exchange before, or `None`."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """An aggregation whose clients must not forget what they let out, whatever becomes of their process."""

    def client_memory(self, state: Any) -> Array:
        """What outlives the state of an exchange: no secret of it, but for the client's eyes."""
        ...

    def client_remind(self, state: Any, memory: Array) -> Any:
        """A new exchange's state that knows it again."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """An aggregation whose clients may do work for an upload before it is asked for, while they wait or train."""

    def client_prepare(self, state: Any) -> Any:
        """The client's state with that work done, as far as it can be foreseen. Nothing else changes by it."""
        ...


@runtime_checkable
class Authenticating(Protocol):
    """An aggregation whose clients authenticate their refusals, once they share a secret with the server."""

    def client_refusal(self, state: Any, body: Tensors, number: int) -> Tensors:
        """The body of a refusal in exchange `number`, with a tag where `state` has a secret for it."""
        ...

    def server_refusal(self, state: Any, refusal: Message) -> None:
        """Raise `MessageRefused` unless the refusal is its sender's own, where the server shares a secret with it."""
        ...


@runtime_checkable
class Absorbing(Protocol):
    """An aggregation whose server takes uploads one at a time and keeps none, so that its memory is O(d)."""

    def server_absorb(self, state: Any, reply: Message) -> Any:
        """At the stage `upload`: the state with this reply in it. `server_step` without it then ends the stage.

        Raises:
            MessageRefused: as `server_step`; the state from before goes on without this reply.
        """
        ...


@runtime_checkable
class Verifying(Protocol):
    """An aggregation whose clients may check the sum that the server announces (`Plan.verified`)."""

    def client_keeps(self, state: Any) -> bytes:
        """What this exchange's sum will be checked with, once the client has uploaded; empty for nothing. A secret."""
        ...

    def announce(self, aggregate: Aggregate) -> Tensors:
        """What the server tells those that it counted; empty for nothing."""
        ...

    def client_check(self, kept: bytes, client: ClientId, plan: Plan, announced: Tensors) -> None:
        """Raise `SumRefused` unless what was announced is the sum of what those it names uploaded."""
        ...
