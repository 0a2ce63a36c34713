"""Carry messages between the server and the parties: the protocol of transports, and transports in one process.

A run goes in stages: the server has one request for each party, and the transport brings the replies. A transport
carries bytes and checks nothing; messages are checked by the parties that decode them. `Server` drives one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from securefed._messages import SERVER, Message, PartyId
from securefed.defenses._base import Helper


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


Drops = Callable[[Message], bool]
"""Function of a message: true if it is lost."""


class InProcessTransport:
    """Decodes each request, hands it to the endpoint that is registered for its receiver, and encodes the reply.

    Messages pass as bytes, as over a network, so that sizes are exact and nothing is shared by reference.

    Args:
        endpoints: by party, what answers its messages.
    """

    def __init__(self, endpoints: Mapping[PartyId, Endpoint]) -> None:
        self.endpoints = dict(endpoints)

    def exchange(self, outgoing: Mapping[PartyId, bytes], timeout: float | None = None) -> dict[PartyId, bytes]:
        """Return the replies of all registered receivers; others count as dropped out. `timeout` is ignored."""
        return dict(sorted(self.arrivals(outgoing, timeout)))

    def arrivals(
        self, outgoing: Mapping[PartyId, bytes], timeout: float | None = None
    ) -> Iterator[tuple[PartyId, bytes]]:
        """Iterate over replies: a party is asked after the caller took the reply before.

        Endpoints that share a batch (simulated clients, computed together) answer last, all at once.
        """
        batches: dict[int, tuple[BatchEndpoint, dict[PartyId, Message]]] = {}
        for party, data in outgoing.items():
            if party not in self.endpoints:
                continue
            endpoint, message = self.endpoints[party], Message.decode(data, claimed_sender=SERVER)
            batch = getattr(endpoint, "batch", None)
            if batch is None:
                yield party, endpoint.handle(message).encode()
            else:
                batches.setdefault(id(batch), (batch, {}))[1][party] = message
        for batch, messages in batches.values():
            for party, reply in batch.handle_all(messages).items():
                yield party, reply.encode()


class LossyTransport:
    """Loses the messages that a rule picks, on the way to the client or on the way back.

    For tests and simulations: `LossyTransport(transport, requests=lambda m: m.round == 3 and m.receiver == 0)`.

    Args:
        inner: the transport that carries the messages.
        requests: rule by which requests are lost, so that the client never sees them; none by default.
        replies: rule by which replies are lost, after the client computed them; none by default.
    """

    def __init__(self, inner: Transport, *, requests: Drops | None = None, replies: Drops | None = None) -> None:
        self.inner, self._requests, self._replies = inner, requests, replies

    def exchange(self, outgoing: Mapping[PartyId, bytes], timeout: float | None = None) -> dict[PartyId, bytes]:
        """Exchange through the inner transport, without the messages that the rules lose."""
        sent = {party: data for party, data in outgoing.items() if not self._loses(self._requests, data)}
        replies = arrivals(self.inner, sent, timeout)
        return {party: data for party, data in replies if not self._loses(self._replies, data)}

    @staticmethod
    def _loses(rule: Drops | None, data: bytes) -> bool:
        return rule is not None and rule(Message.decode(data))


class HelperNode:
    """A helper, such as the key holder that decrypts encrypted sums, as an endpoint of a transport.

    Args:
        helper: made by the defence's aggregation.
        run: the run it belongs to; requests of another run are refused.
    """

    def __init__(self, helper: Helper, run: str) -> None:
        self._helper, self._run = helper, run

    def handle(self, message: Message) -> Message:
        """Answer a request to the helper; a refusal is raised, since it means a fault of the server's own request."""
        message.check(
            run=self._run, round=message.round, stage=message.stage, sender=SERVER, receiver=self._helper.party
        )
        body = self._helper.handle(message)
        return Message(self._run, message.round, message.stage, self._helper.party, SERVER, body)
