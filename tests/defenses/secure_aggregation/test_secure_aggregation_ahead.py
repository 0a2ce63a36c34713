"""Masks made while a contribution is computed: the same uploads, without the streams."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from securefed import SERVER, Dataset, Federation, Message, RunOptions, chain
from securefed import _catalogue as catalogue
from securefed._persistence.packing import pack, restore
from securefed.defenses import UploadContext, secure_aggregation
from securefed.defenses._aggregation import SupportsPrecomputation
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.defenses._secure_aggregation import masks

TENSORS = (("w", (500,), 32), ("v", (30,), 64), ("u", (3, 7), 20))
PROTOCOL = secure_aggregation()
CONTEXT = UploadContext(b"c" * 32, b"s" * 32)


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


def accepted(clients, requests):
    """Clients that accepted the request for their upload, and compute."""
    return {client: PROTOCOL.client_accept(state, requests[client], CONTEXT) for client, state in clients.items()}


@pytest.mark.parametrize("verify", [False, True])
def test_an_upload_with_masks_made_ahead_is_the_same_and_makes_none(net, streams, verify) -> None:
    assert isinstance(PROTOCOL, SupportsPrecomputation)
    session = net.session(range(5), tensors=TENSORS, verify=verify)
    contributions = net.contributions(session)
    for client, state in accepted(*before_upload(net, session)).items():
        ready = PROTOCOL.client_prepare(state)
        streams.clear()
        after, reply = PROTOCOL.client_upload(ready, contributions[client])
        assert not streams
        _, plain = PROTOCOL.client_upload(state, contributions[client])
        assert len(streams) == 5 * 2  # one for each width of integers
        assert set(masked(reply)) == {"masked/w", "masked/v", "masked/u"}
        assert all(np.array_equal(value, plain[name]) for name, value in masked(reply).items())
        assert after.precomputed is None


def test_masks_are_made_for_the_clients_that_dealt(net, streams) -> None:
    session = net.session(range(5), tensors=TENSORS)
    clients, requests = before_upload(net, session, silent=(4,))
    state = PROTOCOL.client_accept(clients[0], requests[0], CONTEXT)
    streams.clear()
    ready = PROTOCOL.client_prepare(state)
    assert len(streams) == 4 * 2
    contribution = net.contributions(session)[0]
    one, other = (PROTOCOL.client_upload(s, contribution)[1] for s in (ready, state))
    assert all(np.array_equal(value, other[name]) for name, value in masked(one).items())


def test_what_was_made_stays_in_this_process_and_other_stages_make_nothing(net) -> None:
    session = net.session(range(5), tensors=TENSORS)
    clients, requests = before_upload(net, session)
    assert PROTOCOL.client_prepare(clients[0]) is clients[0]  # before the broadcast there is no context for masks
    state = PROTOCOL.client_accept(clients[0], requests[0], CONTEXT)
    ready = PROTOCOL.client_prepare(state)
    assert ready.precomputed is not None
    assert set(pack(ready)) == set(pack(state))
    assert restore(PROTOCOL.client_open(session, 0), pack(ready)).precomputed is None
    fresh = PROTOCOL.client_open(session, 0)
    assert PROTOCOL.client_prepare(fresh) is fresh


def test_another_context_gives_other_masks_that_do_not_cancel(net) -> None:
    """A server that tells client 0 something else than the others gets noise instead of their sum."""
    session = net.session(range(5), tensors=TENSORS)
    contributions = net.contributions(session)
    clients, requests = before_upload(net, session)
    told = dict.fromkeys(clients, CONTEXT)
    same = {c: PROTOCOL.client_accept(state, requests[c], told[c]) for c, state in clients.items()}
    other = same | {0: PROTOCOL.client_accept(clients[0], requests[0], UploadContext(b"o" * 32, b"s" * 32))}
    sums = []
    for states in (same, other):
        replies = [masked(PROTOCOL.client_upload(states[c], contributions[c])[1])["masked/w"] for c in states]
        sums.append(sum(replies[1:], replies[0].copy()))
    assert not np.array_equal(*sums)
    assert len(set((sums[0] - sums[1]).tolist())) > 490  # of 500 entries: masks of the pairs with client 0 are left


RNG = np.random.default_rng(8)
DATA = [Dataset(RNG.standard_normal((6, 3)), np.arange(6) % 2) for _ in range(3)]


@pytest.mark.parametrize("defense", [secure_aggregation(pipelined=True), InsecurePaillier()], ids=lambda d: d.name)
def test_a_run_with_clients_that_prepare_is_the_run_without(defense) -> None:
    method = catalogue.algorithms.make("optimization/fedavg", learning_rate=0.1)
    results = [
        Federation(method, DATA, chain(defense), options=RunOptions(prepare=prepare)).run(3).output
        for prepare in (False, True)
    ]
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value)


def test_a_node_prepares_pailliers_randomness() -> None:
    scheme = InsecurePaillier()
    federation = Federation(catalogue.algorithms.make("optimization/fedavg", learning_rate=0.1), DATA, chain(scheme))
    node = federation.nodes[0]
    node.prepare()  # before any exchange there is nothing to prepare
    federation.run(1)
    public = federation.helper.public
    assert scheme.pool.ready(public, scheme.randomness) == 0
    node.prepare()
    ready = scheme.pool.ready(public, scheme.randomness)
    assert ready > 0
    federation.run(2)
    assert scheme.pool.ready(public, scheme.randomness) < ready
    assert vars(replace(node.state)) == vars(node.state)  # the same objects: arrays are not compared
