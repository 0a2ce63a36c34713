"""What parties refuse that hold real keys: a server that asks for too much, holders and dealers that lie."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from securefed import SERVER, Message
from securefed._persistence.packing import pack, restore
from securefed.defenses._secure_aggregation import SecureAggregation, masking_client, primitives, shares
from securefed.defenses._secure_aggregation.primitives import PrimeField
from securefed.errors import (
    AuthenticationError,
    BindingError,
    ContradictionError,
    MalformedError,
    MessageRefused,
    TooFewSurvivors,
)

COHORT = (2, 3, 5, 8, 11)


def request_for(session, server, stage, client, body):
    """A request as a lying server would seal it."""
    secret = server.channels[client]
    sealed = primitives.seal(secret, session.run, session.round, stage, SERVER, client, body)
    return Message(session.run, session.round, stage, SERVER, client, sealed)


def ask(clients, request, encoded=None):
    return SecureAggregation().client_step(clients[request.receiver], request, encoded)


def ids(*values):
    return np.asarray(values, np.int64)


def test_a_client_gives_one_kind_of_share_to_consistent_requests_only(net):
    session = net.session(COHORT)
    clients, server, _ = net.upto(session, net.contributions(session), "unmask")

    def unmask(alive, dead):
        return ask(clients, request_for(session, server, "unmask", 5, {"alive": ids(*alive), "dead": ids(*dead)}))

    state, reply = unmask((2, 3, 5), (8, 11))
    held = clients[5].held_shares
    assert np.array_equal(reply["shares"], [held[0, 0], held[1, 0], held[2, 0], held[3, 1], held[4, 1]])
    contradictions = [
        ((2, 3, 5, 8), (8, 11)),  # overlapping
        ((2, 3, 5), (8,)),  # one missing
        ((2, 3, 8, 11), (5,)),  # itself dead
        ((2, 3, 8, 11), ()),  # itself missing
        ((2, 5), (3, 8, 11)),  # too few alive
        ((5,), (2, 3, 8, 11)),
    ]
    for alive, dead in contradictions:
        with pytest.raises(ContradictionError):
            unmask(alive, dead)
    for alive, dead in [((2, 3, 5, 7), (8, 11)), ((2, 3, 3, 5), (8, 11)), ((5, 3, 2), (8, 11)), ((2, 3, 5), (11, 8))]:
        with pytest.raises(MalformedError):
            unmask(alive, dead)
    again = request_for(session, server, "unmask", 5, {"alive": ids(2, 3, 5), "dead": ids(8, 11)})
    with pytest.raises(ContradictionError):
        SecureAggregation().client_step(state, again, None)
    assert not state.held_shares.size
    assert not state.root


def test_a_client_does_not_take_part_in_a_roster_below_the_threshold(net):
    session = net.session(COHORT)
    clients, server, requests = net.upto(session, net.contributions(session), "shares")
    full = {name: value for name, value in requests[5].items() if name != "tag"}

    def deal(rows):
        return ask(clients, request_for(session, server, "shares", 5, {k: v[rows] for k, v in full.items()}))

    assert deal([0, 1, 2])[0].advertised_clients == (2, 3, 5)
    for rows in ([2], [1, 2], []):  # alone, too few, nobody
        with pytest.raises(ContradictionError):
            deal(rows)
    with pytest.raises(ContradictionError, match="does not list it"):
        deal([0, 1, 3, 4])
    with pytest.raises(MalformedError):
        deal([2, 1, 0])
    for name in ("share_keys", "mask_keys"):
        forged = full | {name: full[name][[0, 1, 3, 3, 4]]}
        with pytest.raises(ContradictionError, match="other keys"):
            ask(clients, request_for(session, server, "shares", 5, forged))
        small = full | {name: np.where(ids(*COHORT)[:, None] == 8, np.uint8(0), full[name])}
        if name == "share_keys":
            with pytest.raises(MalformedError) as caught:
                ask(clients, request_for(session, server, "shares", 5, small))
            assert caught.value.sender == 8


def test_a_client_does_not_upload_to_fewer_than_the_threshold(net):
    session = net.session(COHORT)
    contributions = net.contributions(session)
    clients, server, requests = net.upto(session, contributions, "upload")
    full = {name: value for name, value in requests[5].items() if name != "tag"}

    def upload(rows):
        body = {k: v[rows] for k, v in full.items()}
        return ask(clients, request_for(session, server, "upload", 5, body), contributions[5])

    assert upload([0, 2, 3])[0].share_dealers == (2, 5, 8)
    for rows in ([2], [2, 3], [0, 1, 3, 4]):
        with pytest.raises(ContradictionError):
            upload(rows)
    swapped = full | {"bundles": full["bundles"][[1, 0, 2, 3, 4]]}
    with pytest.raises(AuthenticationError) as caught:
        ask(clients, request_for(session, server, "upload", 5, swapped), contributions[5])
    assert caught.value.sender == 2


def test_clients_that_were_shown_different_rosters_do_not_share(net):
    """A server that gives one client another mask key of a peer: their bundles do not open, so nothing is uploaded."""
    session = net.session(COHORT)
    contributions = net.contributions(session)
    clients, server, requests = net.upto(session, contributions, "shares")
    forged = dict(requests)
    body = {name: value.copy() for name, value in requests[5].items() if name != "tag"}
    body["mask_keys"][4] = np.frombuffer(primitives.hkdf(b"x", b""), np.uint8)
    forged[5] = request_for(session, server, "shares", 5, body).body

    def opened(outgoing):
        states, replies = {}, {}
        for client in COHORT:
            request = Message(session.run, session.round, "shares", SERVER, client, outgoing[client])
            states[client], answer = ask(clients, request)
            replies[client] = Message(session.run, session.round, "shares", client, SERVER, answer)
        _, stage, uploads = SecureAggregation().server_step(server, replies)
        good = []
        for client in COHORT:
            request = Message(session.run, session.round, stage, SERVER, client, uploads[client])
            try:
                good.append(SecureAggregation().client_step(states[client], request, contributions[client]))
            except AuthenticationError:
                continue
        return len(good)

    assert opened(requests) == len(COHORT)
    assert opened(forged) == 0


def test_stages_out_of_order_are_contradictions(net):
    session = net.session(COHORT)
    contributions = net.contributions(session)
    for stage in net.STAGES:
        clients, server, requests = net.upto(session, contributions, stage)
        for other in net.STAGES:
            request = Message(session.run, session.round, other, SERVER, 5, requests[5])
            if other == stage:
                ask(clients, request, contributions[5])
                continue
            with pytest.raises(ContradictionError):
                ask(clients, request, contributions[5])
            reply = Message(session.run, session.round, other, 5, SERVER, requests[5])
            with pytest.raises(ContradictionError):
                SecureAggregation().server_step(server, {5: reply})


def test_replies_from_outside_or_under_another_name_are_refused(net):
    session = net.session(COHORT)
    out = net.drive(session, net.contributions(session), {"keys": [11]})
    assert out.aggregate.survivors == (2, 3, 5, 8)
    _, server, _ = net.upto(session, net.contributions(session), "keys")
    body = out.bodies("keys", sender=5)[0]
    for sender, key, error in [(4, 4, ContradictionError), (3, 5, BindingError)]:
        with pytest.raises(error) as caught:
            SecureAggregation().server_step(server, {key: Message(session.run, 0, "keys", sender, SERVER, body)})
        assert caught.value.sender == key


def test_a_client_left_out_at_the_keys_cannot_come_back(net):
    session = net.session(COHORT)
    contributions = net.contributions(session)
    outside, server, _ = net.upto(session, contributions, "shares")
    left = dataclasses.replace(server, members=COHORT[:-1])
    reply = Message(session.run, session.round, "shares", 11, SERVER, outside[11].seal("shares", {}))
    with pytest.raises(ContradictionError, match="does not take part"):
        SecureAggregation().server_step(left, {11: reply})


def lie(holder, position, kind):
    """An adversary hook: `holder` alters the share it holds of the dealer at `position`."""

    def alter(state):
        if state.client != holder or state.stage != "unmask":
            return state
        held = state.held_shares.copy()
        held[position, kind, 16] ^= 1  # X25519 ignores the lowest and highest bits of a key
        return dataclasses.replace(state, held_shares=held)

    return alter


@pytest.mark.parametrize(("dead", "kind"), [((), 0), ((8,), 1)])
def test_a_share_falsified_by_its_holder_names_the_holder_and_the_rest_still_sum(net, dead, kind):
    """The lie is sealed properly. The control: a lie about the kind that is not asked for changes nothing."""
    session = net.session(COHORT)
    contributions = net.contributions(session)
    out = net.drive(session, contributions, {"upload": dead}, adversary=lie(3, 3, kind))
    ((judge, refusal),) = out.refusals
    assert judge == SERVER
    assert isinstance(refusal, AuthenticationError)
    assert refusal.sender == 3
    control = net.drive(session, contributions, {"upload": dead}, adversary=lie(3, 3, 1 - kind))
    assert not control.refusals
    for done in (out, control):
        assert done.aggregate.survivors == tuple(c for c in COHORT if c not in dead)
        for name, value in net.sum(contributions, done.aggregate.survivors).items():
            assert np.array_equal(done.aggregate.total[name], value)


def test_too_many_liars_void_the_round(net):
    session = net.session(COHORT)

    def all_lie(state):
        for holder in (2, 3, 5):
            state = lie(holder, 0, 0)(state)
        return state

    with pytest.raises(TooFewSurvivors):
        net.drive(session, net.contributions(session), adversary=all_lie)


@pytest.mark.parametrize(("drops", "kind"), [({}, 0), ({"upload": [8]}, 1)])
def test_a_dealer_whose_shares_do_not_combine_is_named(net, monkeypatch, drops, kind):
    session = net.session(COHORT)
    calls = []

    class Crooked(PrimeField):
        def split(self, hidden, coefficients, holders):
            calls.append(None)
            shares = super().split(hidden, coefficients, holders).copy()
            if len(calls) == COHORT.index(8) + 1:  # clients deal in the order of their ids
                shares[0, kind, 16] ^= 1
            return shares

    monkeypatch.setattr(shares, "FIELD", Crooked(shares.FIELD.prime))
    with pytest.raises(AuthenticationError, match="do not combine") as caught:
        net.drive(session, net.contributions(session), drops)
    assert caught.value.sender == 8
    calls.clear()
    harmless = net.drive(session, net.contributions(session), {"unmask": [2]} | drops)  # the bad share is not used
    assert harmless.aggregate.survivors == tuple(c for c in COHORT if c not in drops.get("upload", ()))


def test_a_dealer_whose_tags_do_not_fit_its_shares_is_named_by_its_holders(net, monkeypatch):
    session = net.session(COHORT)
    honest = shares.share_tags

    def forged(digest, dealer, holder, shares):
        return honest(
            digest, dealer, holder, np.zeros_like(shares) if dealer == 8 and holder == 3 and not seen else shares
        )

    seen: list[int] = []

    def watch(state):
        if state.client == COHORT[-1] and state.stage == "upload":
            seen.append(1)  # all have dealt: from here on everybody computes honestly
        return state

    monkeypatch.setattr(shares, "share_tags", forged)
    out = net.drive(session, net.contributions(session), adversary=watch)
    ((judge, refusal),) = out.refusals
    assert (judge, refusal.sender, type(refusal)) == (3, 8, MalformedError)
    assert out.aggregate.survivors == (2, 5, 8, 11)


def test_key_replies_with_small_order_or_copied_keys_are_refused(net):
    session = net.session(COHORT)
    contributions = net.contributions(session)
    clean = net.drive(session, contributions)
    stolen = clean.bodies("keys", sender=3)[0]
    for name in ("share_key", "mask_key"):
        for value in (np.zeros(32, np.uint8), stolen[name]):

            def tamper(message, name=name, value=value):
                if message.sender != 8 or message.stage != "keys":
                    return message
                return dataclasses.replace(message, body=message.body | {name: value})

            out = net.drive(session, contributions, tamper=tamper)
            ((_, refusal),) = out.refusals
            assert refusal.sender == 8
            assert isinstance(refusal, MessageRefused)
            assert out.aggregate.survivors == (2, 3, 5, 11)


@pytest.mark.parametrize("copies", [True, False])
def test_a_client_that_advertises_a_mask_key_it_does_not_hold_is_named_when_lost(net, monkeypatch, copies):
    """It need not prove that that it holds it: what it uploads is then noise, and so it could be in any case."""
    session, made, real = net.session(COHORT), [], masking_client.public_bytes

    def public_bytes(key):
        made.append(real(key))
        mine = 2 * COHORT.index(8) + 1  # each client makes its share key first
        return made[2 * COHORT.index(3) + 1] if copies and len(made) == mine + 1 else made[-1]

    monkeypatch.setattr(masking_client, "public_bytes", public_bytes)
    contributions = net.contributions(session)
    if copies:
        with pytest.raises(AuthenticationError, match="do not combine to the secret it committed to") as caught:
            net.drive(session, contributions, {"upload": [8]})
        assert caught.value.sender == 8
    else:  # positive control: with its own, the loss is made up for
        out = net.drive(session, contributions, {"upload": [8]})
        exact = net.sum(contributions, [2, 3, 5, 11])
        assert all(np.array_equal(out.aggregate.total[name], exact[name]) for name in exact)


def test_a_restored_server_judges_alike(net):
    session = net.session(COHORT)
    clients, server, requests = net.upto(session, net.contributions(session), "unmask")
    restored = restore(SecureAggregation().server_open(session)[0], pack(server))
    replies = {}
    for client in COHORT:
        request = Message(session.run, session.round, "unmask", SERVER, client, requests[client])
        replies[client] = Message(session.run, session.round, "unmask", client, SERVER, ask(clients, request)[1])
    first, second = (SecureAggregation().server_step(state, replies) for state in (server, restored))
    assert all(np.array_equal(first.total[name], second.total[name]) for name in first.total)
    replies[2] = dataclasses.replace(replies[2], body=replies[3].body)
    for state in (server, restored):
        with pytest.raises(AuthenticationError):
            SecureAggregation().server_step(state, replies)
