"""Uploads are added as they arrive: same sums and refusals, and the server's memory does not grow with the clients."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from securefed import SERVER, Aggregate, Layout, Message, TensorSpec, Transcript, chain
from securefed._persistence.packing import pack, unnest
from securefed._runtime.exchange_context import CountedExchanges, exchange_context, tensors_digest
from securefed._runtime.exchange_header import ExchangeHeader
from securefed._runtime.open_exchange import ExchangeContent, MessageLog, OpenExchange
from securefed._runtime.sum_facts import SumFacts, SumSchema
from securefed._transports import arrivals
from securefed.defenses import Session, UploadContext, secure_aggregation
from securefed.defenses._aggregation import SupportsStreaming
from securefed.defenses._base import INDICATOR
from securefed.errors import AuthenticationError, ContradictionError, TooFewSurvivors

ENTRIES = 100_000
BYTES = 4 * ENTRIES


def to_upload(protocol, session, contributions):
    """Server state, and each client's upload."""
    clients = {client: protocol.client_open(session, client) for client in session.cohort}
    state, stage, outgoing = protocol.server_open(session)
    while True:
        replies = {}
        for client, body in outgoing.items():
            request = Message(session.run, session.round, stage, SERVER, client, body)
            encoded = contributions[client] if stage == "upload" else None
            clients[client], answer = protocol.client_step(clients[client], request, encoded)
            replies[client] = Message(session.run, session.round, stage, client, SERVER, answer)
        if stage == "upload":
            return state, replies, clients
        state, stage, outgoing = protocol.server_step(state, replies)


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("verify", [False, True])
def test_uploads_in_any_order_or_all_at_once_give_the_same(net, pipelined, verify) -> None:
    protocol = secure_aggregation(pipelined=pipelined, verify=verify)
    assert isinstance(protocol, SupportsStreaming)
    session = net.session(range(5), pipelined=pipelined, verify=verify)
    contributions = net.contributions(session)
    start, replies, clients = to_upload(protocol, session, contributions)
    before = {name: value.copy() for name, value in pack(start).items()}
    one_by_one = start
    for client in (3, 0, 4, 1):
        one_by_one = protocol.server_absorb(one_by_one, replies[client])
    together = protocol.server_step(start, {client: replies[client] for client in (0, 1, 3, 4)})[0]
    mixed = protocol.server_absorb(protocol.server_absorb(start, replies[1]), replies[4])
    mixed = protocol.server_step(mixed, {client: replies[client] for client in (3, 0)})[0]
    state, stage, outgoing = protocol.server_step(one_by_one, {})
    for other in (together, mixed):
        assert other.survivors == state.survivors == (0, 1, 3, 4)
        assert all(np.array_equal(a, b) for a, b in zip(other.totals, state.totals, strict=True))
        assert np.array_equal(other.check, state.check)
    after = pack(start)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    replies = {}
    for client, body in outgoing.items():
        request = Message(session.run, session.round, stage, SERVER, client, body)
        _, answer = protocol.client_step(clients[client], request, None)
        replies[client] = Message(session.run, session.round, stage, client, SERVER, answer)
    found = protocol.server_step(state, replies)
    assert isinstance(found, Aggregate)
    exact = net.sum(contributions, (0, 1, 3, 4))
    assert all(np.array_equal(found.total[name], exact[name]) for name in exact)


def test_a_refused_upload_is_not_in_the_sum_and_one_is_not_counted_twice(net) -> None:
    protocol, session = secure_aggregation(), net.session(range(5))
    state, replies, _ = to_upload(protocol, session, net.contributions(session))
    altered = replace(replies[2], body={**replies[2].body, "masked/w": replies[2].body["masked/w"] + np.uint32(1)})
    with pytest.raises(AuthenticationError):
        protocol.server_absorb(state, altered)
    once = protocol.server_absorb(state, replies[2])
    with pytest.raises(ContradictionError, match="uploaded before"):
        protocol.server_absorb(once, replies[2])
    for client in (0, 1):
        once = protocol.server_absorb(once, replies[client])
    assert protocol.server_step(once, {})[0].survivors == (0, 1, 2)
    with pytest.raises(TooFewSurvivors):
        protocol.server_step(protocol.server_absorb(state, replies[2]), {})


class Together:
    """Clients behind the door, made as they are asked; contributions are computed on the way and kept nowhere."""

    def __init__(self, defense, run) -> None:
        self.defense, self.run, self.states, self.session = defense, run, {}, None

    def answer(self, party, data):
        message = Message.decode(data)
        protocol = self.defense.aggregation
        if party not in self.states:
            self.states[party] = protocol.client_open(self.session, party)
        encoded = None
        if message.stage == protocol.upload:
            encoded = {"w": np.full(ENTRIES, party, np.int64), INDICATOR: np.zeros(2, np.int64)}
        request = replace(message, body=unnest("protocol", message.body))
        if encoded is None:
            self.states[party], reply = protocol.client_step(self.states[party], request, None)
        else:
            context = UploadContext(self.context(message), b"")
            accepted = protocol.client_accept(self.states[party], request, context)
            self.states[party], reply = protocol.client_upload(accepted, encoded)
        return Message(self.run, message.round, message.stage, party, SERVER, reply).encode()

    def context(self, message):
        """As a client derives it from what it is told."""
        header = ExchangeHeader(self.session.cohort, "train", 0)
        counted = CountedExchanges.read(message, self.session.cohort, followed=False)
        broadcast = tensors_digest(unnest("broadcast", message.body))
        return exchange_context(self.session, header, broadcast, counted)

    def exchange(self, outgoing, timeout=None):
        return {party: self.answer(party, data) for party, data in outgoing.items()}


class OneByOne(Together):
    def arrivals(self, outgoing, timeout=None):
        for party, data in outgoing.items():
            yield party, self.answer(party, data)


def peak_bytes(kind, clients) -> int:
    defense = chain(secure_aggregation())
    layout, cohort = Layout((TensorSpec("w", (ENTRIES,), 8.0),)), tuple(range(clients))
    transport, transcript = kind(defense, "ab" * 16), Transcript("ab" * 16)
    transport.session = Session(transcript.run, 0, cohort, defense.plan(layout, clients))
    log = MessageLog(transcript, keep=False)
    broadcast = {"model": np.zeros(ENTRIES, np.float32)}
    tracemalloc.start()
    try:
        counted = CountedExchanges.of(cohort, {}, None)
        content = ExchangeContent(ExchangeHeader(cohort, "train", 0), broadcast, counted, lambda _: {})
        schema = SumSchema({"train": layout}, Layout.of(broadcast), {}, clients, clients)
        exchange = OpenExchange(SumFacts(defense=defense, schema=schema), 0, content, log)
        summed = None
        while summed is None:
            for party, data in arrivals(transport, exchange.outgoing, None):
                exchange.receive(party, data)
            summed = exchange.close_stage()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (summed.record.encoded["w"] == sum(cohort)).all()
    return peak


def test_the_server_holds_one_upload_at_a_time() -> None:
    """Tracing all that is allocated, the clients' states (small, after an upload) and one client's work among it.

    Positive control: the same exchange over a transport that answers all at once holds every request and upload.
    """
    peak_bytes(OneByOne, 3)  # what the first run of a process allocates once
    streamed, doubled = peak_bytes(OneByOne, 12), peak_bytes(OneByOne, 24)
    assert doubled < 1.2 * streamed < 16 * BYTES
    assert peak_bytes(Together, 24) > 24 * BYTES > 1.8 * doubled
