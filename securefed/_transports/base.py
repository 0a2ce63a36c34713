"""Protocols of transports: every message of a run passes through one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from securefed._messages import Message, PartyId


class Transport(Protocol):
    """Carries one message to each of several parties and brings their replies back."""

    def exchange(self, outgoing: Mapping[PartyId, bytes], timeout: float | None) -> Mapping[PartyId, bytes]:
        """Replies by party, encoded as `Message.encode` does. A missing key is a dropout."""
        ...


@runtime_checkable
class StreamingTransport(Protocol):
    """A transport that hands over replies as they arrive, so that the server need not hold all of them."""

    def arrivals(self, outgoing: Mapping[PartyId, bytes], timeout: float | None) -> Iterator[tuple[PartyId, bytes]]:
        """As `Transport.exchange`, one reply at a time, in any order. Each message of `outgoing` is looked up once."""
        ...


def arrivals(
    transport: Transport, outgoing: Mapping[PartyId, bytes], timeout: float | None
) -> Iterator[tuple[PartyId, bytes]]:
    """Iterate over the replies: as they arrive if the transport streams, else in the parties' order."""
    if isinstance(transport, StreamingTransport):
        return transport.arrivals(outgoing, timeout)
    return iter(sorted(transport.exchange(outgoing, timeout).items()))


class Endpoint(Protocol):
    """A party that answers messages: a client, or a helper such as the key holder."""

    def handle(self, message: Message) -> Message:
        """The reply."""
        ...


class BatchEndpoint(Protocol):
    """Simulated parties that answer a stage together. An endpoint with an attribute `batch` belongs to one."""

    def handle_all(self, messages: Mapping[PartyId, Message]) -> Mapping[PartyId, Message]:
        """The reply of every party, as its own `handle` would give it (up to rounding)."""
        ...
