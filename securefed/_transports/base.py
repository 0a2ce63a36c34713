"""Protocols of transports: every message of a run passes through one.

A run goes in stages: the server has one request for each party, and the transport brings the replies. A transport
carries bytes and checks nothing; messages are checked by the parties that decode them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from securefed._messages import Message, PartyId


class Transport(Protocol):
    """Carries one message to each of several parties and brings their replies back."""

    def exchange(self, outgoing: Mapping[PartyId, bytes], timeout: float | None) -> Mapping[PartyId, bytes]:
        """Send the messages and return the replies by party.

        Args:
            outgoing: encoded messages (`Message.encode`), by receiver.
            timeout: seconds to wait for replies; `None` for no limit.

        Returns:
            Encoded replies by party. A missing party counts as dropped out.
        """
        ...


@runtime_checkable
class StreamingTransport(Protocol):
    """A transport that hands over replies as they arrive, so that the server need not hold all of them."""

    def arrivals(self, outgoing: Mapping[PartyId, bytes], timeout: float | None) -> Iterator[tuple[PartyId, bytes]]:
        """Send the messages and iterate over the replies, in any order, with the arguments of `Transport.exchange`.

        An implementation looks each message of `outgoing` up exactly once: the mapping may encode a message only when
        it is looked up, so that not all are in memory at a time.
        """
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
        """Answer a message."""
        ...


class BatchEndpoint(Protocol):
    """Simulated parties that answer a stage together; each one's endpoint refers to it by an attribute `batch`."""

    def handle_all(self, messages: Mapping[PartyId, Message]) -> Mapping[PartyId, Message]:
        """Return every party's reply, equal to that of its own `handle` up to rounding."""
        ...
