"""One exchange under a defence, all parties in this process, each party's work on a clock of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.rows import clocked
from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId
from securefed._tensors import Tensors
from securefed.defenses._aggregation import SupportsPipelining, SupportsStreaming, SupportsVerification
from securefed.defenses._base import Aggregation, Plan, Session
from securefed.defenses._secure_aggregation.identities import _signed
from securefed.defenses._secure_aggregation.masks import _circle

Contribute = Callable[[int], Tensors]
Replies = dict[PartyId, Message]


@dataclass
class Measured:
    """What one exchange cost.

    Attributes:
        client, server: CPU seconds of one client (mean of those that did everything), and of the server.
        sent: bytes a client sent at each stage.
    """

    client: float = 0.0
    server: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)


def exchange(
    protocol: Aggregation,
    plan: Plan,
    encode: Contribute,
    lost: int = 0,
    *,
    prepared: bool = False,
) -> tuple[Aggregate, Measured]:
    """The encoded sum of all but the last `lost` clients, which do not upload, and what it cost.

    Args:
        encode: the encoded contribution of a client; its time counts as the client's.
        prepared: whether an exchange comes before that does not count, and prepares this one. It is of other
            contributions (each client's is its successor's): clients refuse the same one over other survivors.
    """
    parties = Parties(protocol, plan)
    if prepared:
        parties.exchange(0, lambda client: encode(client + 1))
    return parties.exchange(int(prepared), encode, lost)


class Parties:
    """All parties of one run, and what they keep between two exchanges."""

    def __init__(self, protocol: Aggregation, plan: Plan) -> None:
        self.protocol, self.plan = protocol, plan
        self.run = secrets.token_hex(16)
        self.clients: dict[ClientId, Any] = {}
        self.carried: Any = None
        self.number, self.out = 0, Measured()

    def exchange(self, number: int, encode: Contribute, lost: int = 0) -> tuple[Aggregate, Measured]:
        """As the function; `number` counts the run's exchanges from 0."""
        self.number, self.out = number, Measured()
        session = Session(self.run, number, tuple(range(self.plan.clients)), self.plan)
        step = self._open(session)
        while not isinstance(step, Aggregate):
            server, stage, outgoing = step
            replies: Replies = {}
            uploads = stage == self.protocol.upload
            asked = [c for c in outgoing if c in self.clients and not (uploads and c >= self.plan.clients - lost)]
            if asked:
                replies |= self._ask(stage, {client: outgoing[client] for client in asked}, encode)
            step = self._serve(server, stage, replies)
        if isinstance(self.protocol, SupportsPipelining):
            self.carried, seconds = clocked(self.protocol.server_carry, server, replies)
            self.out.server += seconds
        self._announce(step)
        return step, self.out

    def _open(self, session: Session) -> Any:
        for client in session.cohort:
            if self.number and isinstance(self.protocol, SupportsPipelining):
                last = self.clients[client]
                self.clients[client], seconds = clocked(self.protocol.client_resume, session, client, last)
            else:
                self.clients[client], seconds = clocked(self.protocol.client_open, session, client)
            self.out.client += seconds / len(session.cohort)
        if self.number and isinstance(self.protocol, SupportsPipelining):
            step, self.out.server = clocked(self.protocol.server_resume, session, self.carried)
        else:
            step, self.out.server = clocked(self.protocol.server_open, session)
        return step

    def _ask(self, stage: str, outgoing: Mapping[PartyId, Tensors], encode: Contribute) -> Replies:
        """The clients' replies, their mean time and the first one's bytes."""
        replies, seconds = {}, []
        for client, body in outgoing.items():
            request = Message(self.run, self.number, stage, SERVER, client, body)

            def act(client: int = client, request: Message = request) -> Any:
                encoded = encode(client) if stage == self.protocol.upload else None
                return self.protocol.client_step(self.clients[client], request, encoded)

            _forget()  # every client draws the graph and checks signatures for itself
            (self.clients[client], reply), took = clocked(act)
            seconds.append(took)
            replies[client] = Message(self.run, self.number, stage, client, SERVER, reply)
        self.out.client += sum(seconds) / len(seconds)
        first = next(iter(outgoing))
        self.out.sent[stage] = _bytes(replies[first].body)
        return replies

    def _serve(self, server: Any, stage: str, replies: Replies) -> Any:
        """The server's step; uploads go in one at a time, as they would arrive, where the protocol can."""
        _forget()
        if stage == self.protocol.upload and isinstance(self.protocol, SupportsStreaming):
            for reply in replies.values():
                server, seconds = clocked(self.protocol.server_absorb, server, reply)
                self.out.server += seconds
            replies.clear()
        step, seconds = clocked(self.protocol.server_step, server, replies)
        self.out.server += seconds
        return step

    def _announce(self, aggregate: Aggregate) -> None:
        """The survivors check the sum, where they can."""
        if not (self.plan.verified and isinstance(self.protocol, SupportsVerification)):
            return
        announced = self.protocol.announce(aggregate)
        seconds = []
        for client in aggregate.survivors:
            kept = self.protocol.client_keeps(self.clients[client])
            _, took = clocked(self.protocol.client_check, kept, client, self.plan, announced)
            seconds.append(took)
        self.out.client += sum(seconds) / len(seconds)


def uniform(clients: int, entries: int) -> Callable[[int], dict[str, Any]]:
    """Contributions of uniform numbers, one for each client, drawn from 8 vectors so that drawing costs little."""
    rng = np.random.default_rng(0)
    vectors = [rng.uniform(-1, 1, entries) for _ in range(min(clients, 8))]
    return lambda client: {"w": vectors[client % len(vectors)]}


def _forget() -> None:
    """What parties in one process would otherwise compute for each other."""
    _circle.cache_clear()
    _signed.cache_clear()


def _bytes(body: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in body.values())
