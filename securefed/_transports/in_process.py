"""Transports that stay in one process: the default, and a lossy network for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from securefed._messages import SERVER, Message, PartyId
from securefed._transports.base import BatchEndpoint, Endpoint, Transport, arrivals

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
