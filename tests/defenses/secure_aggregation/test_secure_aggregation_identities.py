"""Identities: what they refuse, what they show, what their holders sign, and clients that lie with them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from securefed import SERVER
from securefed._persistence.packing import pack
from securefed.defenses import Identities, Session, new_identity, public_identity, secure_aggregation
from securefed.defenses._secure_aggregation import SecureAggregation, consistency
from securefed.defenses._secure_aggregation.graph import design_sparse_graph, plan_sparse_graph
from securefed.defenses._secure_aggregation.session import session_digest
from securefed.errors import AuthenticationError, ConfigError, PlanError, TooFewSurvivors

IDENTITIES = Identities.generate(7)
PROTOCOL = secure_aggregation(identities=IDENTITIES)


def session_of(net, clients=5, **kwargs):
    return net.session(range(clients), identities=IDENTITIES, **kwargs)


def test_ed25519_as_published():
    """RFC 8032, section 7.1, TEST 2: key, public key, message 0x72, signature."""
    key = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert public_identity(key) == public
    roster = Identities({3: public}, {3: key})
    assert roster.sign(3, b"\x72") == signature
    roster.verify(3, b"\x72", signature, "it")
    for statement, made in ((b"\x73", signature), (b"\x72", bytes(64)), (b"\x72", signature[:63])):
        with pytest.raises(AuthenticationError, match="message from 3 refused: it is not signed"):
            roster.verify(3, statement, made, "it")


def test_rosters_that_do_not_fit_are_refused():
    key, other = new_identity(), new_identity()
    for public, own, match in [
        ({0: b"short"}, {}, "is not 32 bytes"),
        ({-1: public_identity(key)}, {}, "is not 32 bytes for an id"),
        ({0: public_identity(key), 1: public_identity(key)}, {}, "same identity"),
        ({0: public_identity(key)}, {0: other}, "not that of its public identity"),
        ({0: public_identity(key)}, {1: key}, "not that of its public identity"),
    ]:
        with pytest.raises(ConfigError, match=match):
            Identities(public, own)
    roster = Identities({0: public_identity(key)})
    with pytest.raises(ConfigError, match="not held here"):
        roster.sign(0, b"")
    with pytest.raises(ConfigError, match="no identity"):
        roster.known(1)


def test_fingerprints_agree_on_the_same_identities_only():
    public = dict(IDENTITIES.public)
    assert Identities(dict(reversed(public.items()))).fingerprint == IDENTITIES.fingerprint
    assert len(IDENTITIES.fingerprint.replace(" ", "")) == 40
    others = [{**public, 3: public_identity(new_identity())}, {**public, 3: public[4], 4: public[3]}]
    others.append({client: key for client, key in public.items() if client})
    found = {Identities(roster).fingerprint for roster in (*others, public)}
    assert len(found) == 4


def test_no_private_key_is_shown_packed_or_sent(net):
    session = session_of(net)
    out = net.drive(session, net.contributions(session), protocol=PROTOCOL)
    shown = "".join([repr(PROTOCOL), str(PROTOCOL), repr(IDENTITIES), repr(out.clients[0]), repr(session.plan)])
    sent = b"".join(value.tobytes() for message in out.sent for value in message.body.values())
    held = b"".join(value.tobytes() for state in (*out.clients.values(), out.server) for value in pack(state).values())
    for key in IDENTITIES.own.values():
        assert key.hex() not in shown
        assert repr(key) not in shown
        assert key not in sent
        assert key not in held
    assert IDENTITIES.fingerprint in repr(PROTOCOL)  # so a run is not resumed with other identities


def test_a_client_needs_its_own_key_only_and_the_server_none(net):
    session = session_of(net)
    contributions = net.contributions(session)
    server = secure_aggregation(identities=Identities(IDENTITIES.public))

    class Apart(SecureAggregation):
        def client_open(self, session, client):
            own = Identities(IDENTITIES.public, {client: IDENTITIES.own[client]})
            return secure_aggregation(identities=own).client_open(session, client)

    out = net.drive(session, contributions, protocol=Apart(identities=server.identities))
    assert np.array_equal(out.aggregate.total["w"], net.sum(contributions, range(5))["w"])


def test_plans_and_identities_belong_together(net):
    with pytest.raises(ConfigError, match="needs identities"):
        secure_aggregation().client_open(session_of(net), 0)
    with pytest.raises(ConfigError, match="takes none"):
        PROTOCOL.server_open(net.session(range(5)))
    with pytest.raises(ConfigError, match="client 8 has no identity"):
        PROTOCOL.client_open(net.session((0, 1, 8), identities=IDENTITIES), 0)
    assert "honest but curious at first contact" in " ".join(net.plan(5).assumptions)
    plan = session_of(net).plan
    assert plan.stages == ("keys", "shares", "upload", "confirm", "unmask")
    assert IDENTITIES.fingerprint in " ".join(plan.assumptions)
    assert "honest but curious" not in " ".join(plan.assumptions)
    with pytest.raises(PlanError, match="sign twice"):
        design = replace(design_sparse_graph(100, 0.1, 0.1, active=True), lost=2, corrupt=1)
        plan_sparse_graph(plan, design, survivor_change=1)


def test_every_statement_is_one_of_its_own(net):
    """Other runs, rounds, cohorts, plans, stages, senders, keys and survivors: never the same words."""
    sessions = [session_of(net), session_of(net, round=1), session_of(net, run="f" * 32), session_of(net, 4)]
    sessions.append(session_of(net, threshold=4))
    sessions.append(Session(sessions[0].run, 0, (0, 1, 2, 3), sessions[0].plan))
    digests = [session_digest(session) for session in sessions]
    keys = [
        consistency.keys_statement(digest, ahead, client, pair)
        for digest, ahead, client, pair in itertools.product(digests, (False, True), (0, 1), (b"a" * 64, b"b" * 64))
    ]
    sets = [
        consistency.survivors_statement(exchange, alive)
        for exchange, alive in itertools.product(digests, [(0, 1), (0, 2), (0, 1, 2), (1, 2), (12,)])
    ]
    assert len({*keys, *sets}) == len(keys) + len(sets)


class Junk(Identities):
    """Signatures of something else, by the right keys."""

    def sign(self, client, statement):
        return super().sign(client, statement + b" ")


@dataclass(frozen=True)
class Lying(SecureAggregation):
    """Client 3 signs what nobody said, at one stage; its messages are otherwise in order."""

    stage: str = "keys"

    def client_step(self, state, request, encoded):
        if state.client == 3 and request.stage == self.stage:
            state = replace(state, identities=Junk(IDENTITIES.public, IDENTITIES.own))
        return super().client_step(state, request, encoded)


@pytest.mark.parametrize("stage", ["keys", "confirm"])
def test_a_client_that_signs_something_else_is_named_and_the_round_goes_on(net, monkeypatch, stage):
    """With the server's check removed every honest client refuses what it hands on, and the round is void."""
    session = session_of(net, threshold=4)
    contributions = net.contributions(session)
    protocol = Lying(identities=IDENTITIES, stage=stage)
    out = net.drive(session, contributions, protocol=protocol)
    left = (0, 1, 2, 4) if stage == "keys" else (0, 1, 2, 3, 4)  # at `confirm` its upload is in the sum already
    assert out.aggregate.survivors == left
    assert np.array_equal(out.aggregate.total["w"], net.sum(contributions, left)["w"])
    assert [(by, type(refusal), refusal.sender) for by, refusal in out.refusals] == [(SERVER, AuthenticationError, 3)]
    monkeypatch.setattr(consistency, "take_signature", lambda reply, *rest: reply.take("signature", np.uint8, (64,)))
    with pytest.raises(TooFewSurvivors):
        net.drive(session, contributions, protocol=protocol)
