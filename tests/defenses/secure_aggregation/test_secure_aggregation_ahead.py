"""Masks made ahead of time: the same uploads, without the streams, or as if nothing had been made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import catalogue
from securefed.datasets.base import Dataset
from securefed.defenses.base import Session
from securefed.defenses.capabilities import Preparing
from securefed.defenses.compose import chain
from securefed.defenses.homomorphic import InsecurePaillier
from securefed.defenses.secure_aggregation import masks, secure_aggregation
from securefed.federation import Federation
from securefed.messages import SERVER, Message
from securefed.state import pack, restore

TENSORS = (("w", (500,), 32), ("v", (30,), 64), ("u", (3, 7), 20))
PROTOCOL = secure_aggregation()


@pytest.fixture
def streams(monkeypatch):
    """How many key streams the masks took so far."""
    made, real = [], masks.mask_stream
    monkeypatch.setattr(masks, "mask_stream", lambda seed: made.append(seed) or real(seed))
    return made


def before_upload(net, session, silent=()):
    """Clients that wait for their upload's request, and the requests; those `silent` did not deal."""
    clients = {client: PROTOCOL.client_open(session, client) for client in session.cohort}
    state, stage, outgoing = PROTOCOL.server_open(session)
    while stage != "upload":
        replies = {}
        for client, body in outgoing.items():
            request = Message(session.run, session.round, stage, SERVER, client, body)
            clients[client], answer = PROTOCOL.client_step(clients[client], request, None)
            if stage != "shares" or client not in silent:
                replies[client] = Message(session.run, session.round, stage, client, SERVER, answer)
        state, stage, outgoing = PROTOCOL.server_step(state, replies)
    return clients, {c: Message(session.run, session.round, "upload", SERVER, c, body) for c, body in outgoing.items()}


def masked(reply):
    return {name: value for name, value in reply.items() if name.startswith("masked/")}


@pytest.mark.parametrize("verify", [False, True])
def test_an_upload_with_masks_made_ahead_is_the_same_and_makes_none(net, streams, verify) -> None:
    assert isinstance(PROTOCOL, Preparing)
    session = net.session(range(5), tensors=TENSORS, verify=verify)
    contributions = net.contributions(session)
    clients, requests = before_upload(net, session)
    for client, state in clients.items():
        ready = PROTOCOL.client_prepare(state)
        streams.clear()
        after, reply = PROTOCOL.client_step(ready, requests[client], contributions[client])
        assert not streams
        _, plain = PROTOCOL.client_step(state, requests[client], contributions[client])
        assert len(streams) == 5 * len(TENSORS)
        assert set(masked(reply)) == {"masked/w", "masked/v", "masked/u"}
        assert all(np.array_equal(value, plain[name]) for name, value in masked(reply).items())
        assert after.made is None


def test_where_a_client_was_lost_the_masks_are_made_anew(net, streams) -> None:
    session = net.session(range(5), tensors=TENSORS)
    contributions = net.contributions(session)
    clients, requests = before_upload(net, session, silent=(4,))
    ready = PROTOCOL.client_prepare(clients[0])
    streams.clear()
    _, reply = PROTOCOL.client_step(ready, requests[0], contributions[0])
    assert len(streams) == 4 * len(TENSORS)
    _, plain = PROTOCOL.client_step(clients[0], requests[0], contributions[0])
    assert all(np.array_equal(value, plain[name]) for name, value in masked(reply).items())


def test_what_was_made_stays_in_this_process_and_other_stages_make_nothing(net) -> None:
    session = net.session(range(5), tensors=TENSORS)
    clients, _ = before_upload(net, session)
    ready = PROTOCOL.client_prepare(clients[0])
    assert ready.made is not None
    assert set(pack(ready)) == set(pack(clients[0]))
    assert restore(PROTOCOL.client_open(session, 0), pack(ready)).made is None
    assert "made" not in repr(ready)
    fresh = PROTOCOL.client_open(session, 0)
    assert PROTOCOL.client_prepare(fresh) is fresh


def test_a_client_that_waits_for_the_next_exchange_makes_its_masks(net, streams) -> None:
    """Two stages then, with no stream in the upload; under another number or layout, as if nothing had been made."""
    protocol = secure_aggregation(pipelined=True)
    plan, other = net.plan(5, TENSORS, pipelined=True), net.plan(5, (("z", (9,), 32),), pipelined=True)
    for number, planned, foreseen in ((1, plan, True), (2, plan, False), (1, other, False)):
        session, following = (
            Session("ab" * 16, 0, tuple(range(5)), plan),
            Session("ab" * 16, number, tuple(range(5)), planned),
        )
        clients: dict[int, Any] = {}
        carried = _exchange(protocol, session, net.contributions(session), clients, None)
        clients = {client: protocol.client_prepare(state) for client, state in clients.items()}
        assert all(state.made is not None for state in clients.values())
        streams.clear()
        clients = {client: protocol.client_resume(following, client, state) for client, state in clients.items()}
        _exchange(protocol, following, net.contributions(following), clients, carried, streams, foreseen)


def _exchange(protocol, session, contributions, clients, carried, streams=(), foreseen=False):
    state, stage, outgoing = protocol.server_resume(session, carried)
    while True:
        replies = {}
        for client, body in outgoing.items():
            clients.setdefault(client, protocol.client_open(session, client))
            encoded = contributions[client] if stage == "upload" else None
            request = Message(session.run, session.round, stage, SERVER, client, body)
            clients[client], answer = protocol.client_step(clients[client], request, encoded)
            replies[client] = Message(session.run, session.round, stage, client, SERVER, answer)
        if stage == "upload" and carried is not None:
            assert bool(streams) is not foreseen
        step = protocol.server_step(state, replies)
        if not isinstance(step, tuple):
            exact = {name: sum(values[name] for values in contributions.values()) for name in contributions[0]}
            assert all(np.array_equal(step.total[name], value) for name, value in exact.items())
            return protocol.server_carry(state, replies)
        state, stage, outgoing = step


RNG = np.random.default_rng(8)
DATA = [Dataset(RNG.standard_normal((6, 3)), np.arange(6) % 2) for _ in range(3)]


@pytest.mark.parametrize("defense", [secure_aggregation(pipelined=True), InsecurePaillier()], ids=lambda d: d.name)
def test_a_run_with_clients_that_prepare_is_the_run_without(defense) -> None:
    method = catalogue.algorithms.make("optimization/fedavg", learning_rate=0.1)
    results = [Federation(method, DATA, chain(defense), prepare=prepare).run(3).output for prepare in (False, True)]
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value)


def test_a_node_prepares_pailliers_noise() -> None:
    scheme = InsecurePaillier()
    federation = Federation(catalogue.algorithms.make("optimization/fedavg", learning_rate=0.1), DATA, chain(scheme))
    node = federation.nodes[0]
    node.prepare()  # before any exchange there is nothing to prepare
    federation.run(1)
    public = federation.helper.public
    assert scheme.stock.ready(public, scheme.noise) == 0
    node.prepare()
    ready = scheme.stock.ready(public, scheme.noise)
    assert ready > 0
    federation.run(2)
    assert scheme.stock.ready(public, scheme.noise) < ready
    assert replace(node.state) == node.state
