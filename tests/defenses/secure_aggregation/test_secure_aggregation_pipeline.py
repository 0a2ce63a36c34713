"""Exchanges that prepare the next: two stages where nobody changed, four where somebody did, fresh secrets in all."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed import SERVER, Aggregate, Message
from securefed._persistence.packing import pack, restore
from securefed.defenses import Session, secure_aggregation
from securefed.defenses._aggregation import SupportsPipelining
from securefed.defenses._secure_aggregation import masks, primitives
from securefed.defenses._secure_aggregation.pipeline import PipelinedClient
from securefed.defenses._secure_aggregation.primitives import FIELD
from securefed.errors import ContradictionError, MalformedError, MessageRefused, TooFewSurvivors
from tests.combinations import each_value
from tests.examples import examples

RUN = "0123456789abcdef0123456789abcdef"
PROTOCOL = secure_aggregation(pipelined=True)
FULL, SHORT = ("keys", "shares", "upload", "unmask"), ("upload", "unmask")
ENTRIES = 20_000


@dataclass
class Chain:
    """Parties of a run as a federation keeps them: the last state of each client, and what the server carries over."""

    net: object
    plan: object
    clients: dict = field(default_factory=dict)
    carried: object = None
    number: int = -1
    sent: list = field(default_factory=list)
    stages: tuple = ()
    servers: list = field(default_factory=list)
    seen: dict = field(default_factory=dict)
    refused: list = field(default_factory=list)

    def exchange(self, cohort, drops=None, *, tamper=lambda m: m, repack=False, mute=None):
        """One exchange; `drops`: by stage, clients whose replies are lost; `mute`: whose requests are."""
        drops, mute, gone = drops or {}, mute or {}, set()
        self.number += 1
        session = Session(RUN, self.number, tuple(cohort), self.plan)
        contributions = self.net.contributions(session, seed=self.number)
        carried, self.carried, opened, self.stages = self.carried, None, {}, ()
        state, stage, outgoing = PROTOCOL.server_resume(session, carried)
        while True:
            self.stages += (stage,)
            replies = {}
            for client, body in outgoing.items():
                request = tamper(Message(RUN, self.number, stage, SERVER, client, body))
                if client in gone or client in mute.get(stage, ()):
                    gone.add(client)
                    continue
                if client not in opened:
                    last = self.clients.get(client)
                    opened[client] = (
                        PROTOCOL.client_open(session, client)
                        if last is None
                        else PROTOCOL.client_resume(session, client, last)
                    )
                encoded = contributions[client] if stage == "upload" else None
                try:
                    opened[client], answer = PROTOCOL.client_step(opened[client], request, encoded)
                except MessageRefused as refusal:
                    self.refused.append((client, refusal))
                    gone.add(client)
                    continue
                if repack:
                    opened[client] = restore(PROTOCOL.client_open(session, client), pack(opened[client]))
                self.clients[client] = opened[client]
                self.seen[self.number, stage, client] = opened[client]
                reply = tamper(Message(RUN, self.number, stage, client, SERVER, answer))
                self.sent += [request, reply]
                if client not in drops.get(stage, ()):
                    replies[client] = reply
                else:
                    gone.add(client)
            step = self._serve(state, replies)
            if isinstance(step, Aggregate):
                self.servers.append(state)
                self.carried = PROTOCOL.server_carry(state, replies)
                total = self.net.sum(contributions, step.survivors)
                assert all(np.array_equal(step.total[name], value) for name, value in total.items())
                return step.survivors
            state, stage, outgoing = step
            if repack:
                state = restore(PROTOCOL.server_open(session)[0], pack(state))

    def _serve(self, state, replies):
        while True:
            try:
                return PROTOCOL.server_step(state, replies)
            except MessageRefused as refusal:
                if refusal.sender not in replies:
                    raise
                self.refused.append((SERVER, refusal))
                del replies[refusal.sender]


@pytest.fixture
def chain(net):
    return Chain(net, net.plan(5, pipelined=True))


def test_rounds_after_the_first_take_two_stages_and_sum_exactly(chain):
    assert isinstance(PROTOCOL, SupportsPipelining)
    for number in range(5):
        assert chain.exchange(range(5), repack=number % 2 == 1) == (0, 1, 2, 3, 4)
        assert chain.stages == (SHORT if number else FULL)
    sent = [m.body for m in chain.sent if m.round == 3 and m.sender == 2]
    assert sum(value.nbytes for body in sent for value in body.values()) == chain.plan.upload_bytes
    assert "two stages, from upload to unmask" in " ".join(chain.plan.assumptions)
    assert str(PROTOCOL) == "secure_aggregation(pipelined)"


def test_a_sparse_graph_is_drawn_anew_for_every_exchange(net):
    plan = net.plan(40, graph="sparse", adversarial=0.1, dropouts=0.1, pipelined=True)
    chain = Chain(net, plan)
    for number in range(3):
        assert len(chain.exchange(range(40))) == 40
        assert chain.stages == (SHORT if number else FULL)
    near = [chain.seen[number, "upload", 7].neighbourhood for number in range(3)]
    assert len(set(near)) == 3


@pytest.mark.parametrize(("how", "stage"), each_value(["drops", "mute"], FULL))
def test_a_client_lost_at_any_stage_of_either_opening_returns_by_four_stages(net, stage, how):
    """Replies lost (the client went on) and requests lost (it never heard), in an opening and in a short exchange."""
    for first in (True, False):
        if not first and stage not in SHORT:
            continue
        chain = Chain(net, net.plan(5, pipelined=True))
        if not first:
            chain.exchange(range(5))
        left = tuple(range(5)) if stage == "unmask" else (0, 1, 3, 4)
        assert chain.exchange(range(5), **{how: {stage: [2]}}) == left
        assert chain.stages == (FULL if first else SHORT)
        assert chain.exchange(range(5)) == (0, 1, 2, 3, 4)
        assert chain.stages == FULL
        assert chain.exchange(range(5)) == (0, 1, 2, 3, 4)
        assert chain.stages == SHORT
        assert not chain.refused


def test_those_that_stay_go_on_by_two_stages_and_new_cohorts_by_four(chain):
    chain.exchange(range(5))
    chain.exchange(range(5), {"unmask": [2]})
    assert chain.exchange([0, 1, 3, 4]) == (0, 1, 3, 4)
    assert chain.stages == SHORT
    assert chain.exchange([0, 1, 2, 3]) == (0, 1, 2, 3)
    assert chain.stages == FULL
    assert chain.exchange([0, 1, 2]) == (0, 1, 2)
    assert chain.stages == FULL


def test_a_void_exchange_is_followed_by_a_full_one(chain):
    chain.exchange(range(5))
    for stage in SHORT:
        with pytest.raises(TooFewSurvivors):
            chain.exchange(range(5), {stage: [0, 1, 2]})
        assert chain.stages[-1] == stage
        chain.exchange(range(5))
        assert chain.stages == FULL
        chain.exchange(range(5))
        assert chain.stages == SHORT


def test_restored_parties_and_other_plans_begin_anew(net, chain):
    chain.exchange(range(5))
    chain.carried = None  # a server that was restored from a checkpoint, which holds no keys
    chain.exchange(range(5))
    assert chain.stages == FULL
    chain.plan = net.plan(5, (("other", (3,), 20),), pipelined=True)  # another layout, the same clients and threshold
    chain.exchange(range(5))
    assert chain.stages == SHORT
    chain.plan = net.plan(6, pipelined=True)
    chain.exchange(range(5))
    assert chain.stages == FULL
    del chain.clients[3]  # one client that was restored: it refuses, the others go on without it
    assert chain.exchange(range(5)) == (0, 1, 2, 4)
    assert [(client, type(refusal)) for client, refusal in chain.refused] == [(3, MalformedError)]


def test_what_was_precomputed_serves_one_upload(chain):
    """A server that asks for a second upload from the same preparation, in the next exchange or after an opening."""
    chain.exchange(range(5))
    before = dict(chain.clients)
    chain.exchange(range(5))
    session = Session(RUN, 2, tuple(range(5)), chain.plan)
    upload = next(m for m in chain.sent if (m.round, m.stage, m.receiver) == (1, "upload", 3))
    values = chain.net.contributions(session)[3]
    again = dataclasses.replace(upload, round=2)
    with pytest.raises(MessageRefused):
        PROTOCOL.client_step(PROTOCOL.client_resume(session, 3, chain.clients[3]), again, values)
    first = Session(RUN, 1, tuple(range(5)), chain.plan)
    control, _ = PROTOCOL.client_step(PROTOCOL.client_resume(first, 3, before[3]), upload, values)
    assert control.stage == "unmask"
    assert not control.root
    with pytest.raises(ContradictionError):  # nor from the state after the upload
        PROTOCOL.client_step(control, upload, values)
    half = PROTOCOL.client_resume(session, 3, control)  # the exchange ended here after the upload
    assert not half.precomputed_exchange
    keys = Message(RUN, 2, "keys", SERVER, 3, PROTOCOL.server_open(session)[2][3])
    resumed = PROTOCOL.client_resume(session, 3, before[3])
    assert resumed.precomputed_exchange
    anew, _ = PROTOCOL.client_step(resumed, keys, None)
    assert not anew.precomputed_exchange


@pytest.mark.parametrize("stage", SHORT)
@pytest.mark.parametrize("to_server", [True, False])
def test_one_flipped_bit_in_any_rider_is_refused_or_prepares_nothing(net, stage, to_server):
    clean = Chain(net, net.plan(5, pipelined=True))
    clean.exchange(range(5))
    ends = (3, SERVER) if to_server else (SERVER, 3)
    names = next(m.body for m in clean.sent if m.stage == stage and (m.sender, m.receiver) == ends)
    riders = [name for name in names if name.startswith("next/")]
    assert riders
    for name in riders:

        def tamper(message, name=name):
            if message.round or message.stage != stage or (message.sender, message.receiver) != ends:
                return message
            data = bytearray(message.body[name].tobytes())
            data[7] ^= 16
            value = np.frombuffer(bytes(data), message.body[name].dtype).reshape(message.body[name].shape)
            return dataclasses.replace(message, body={**message.body, name: value})

        chain = Chain(net, net.plan(5, pipelined=True))
        survivors = chain.exchange(range(5), tamper=tamper)
        assert survivors == ((0, 1, 2, 3, 4) if stage == "unmask" else (0, 1, 2, 4))
        assert chain.refused or chain.carried is None
        assert chain.exchange(range(5)) == (0, 1, 2, 3, 4)  # and all sums are right: `exchange` checks
        assert chain.stages == FULL


@settings(max_examples=examples(60))
@given(st.data())
def test_random_runs_sum_exactly_or_are_void_by_name(net, data):
    chain = Chain(net, net.plan(5, (("w", (3,), 32),), pipelined=True))
    for _ in range(4):
        cohort = sorted(data.draw(st.sets(st.integers(0, 4), min_size=3, max_size=5)))
        lost = data.draw(st.lists(st.tuples(st.sampled_from(FULL), st.sampled_from(cohort), st.booleans()), max_size=2))
        drops = {stage: [c for s, c, heard in lost if s == stage and heard] for stage in FULL}
        mute = {stage: [c for s, c, heard in lost if s == stage and not heard] for stage in FULL}
        try:
            chain.exchange(cohort, drops, mute=mute, repack=data.draw(st.booleans()))
        except TooFewSurvivors:
            continue
    assert not chain.refused
    assert chain.exchange(range(5)) == (0, 1, 2, 3, 4)


def test_no_stream_serves_two_exchanges_of_a_run(chain, monkeypatch):
    seeds, real, made = [], masks.stream_key, []
    monkeypatch.setattr(masks, "stream_key", lambda *given: seeds.append(real(*given)) or seeds[-1])
    for _ in range(3):
        chain.exchange(range(5))
        made.append(Counter(seeds))
        seeds.clear()
    widths = len({tensor.ring == 32 for tensor in chain.plan.tensors})
    for counts in made:  # both ends of a pair; a self mask is added by its owner and taken away by the server
        assert set(counts.values()) == {2}
        assert len(counts) == (10 + 5) * widths
    assert not any(set(left) & set(right) for left, right in itertools.combinations(made, 2))


def secrets_of(chain, number, client):
    """Both secrets of `client` in an exchange, from the shares of all: more than a server ever has opened."""
    server, states = chain.servers[number], {c: chain.seen[number, "upload", c] for c in range(5)}
    row, t = server.share_dealers.index(client), chain.plan.masking.shares
    return FIELD.combine(range(1, t + 1), np.stack([states[c].held_shares[row] for c in range(t)]))


def strip(chain, number, victim, secrets_by_client):
    """The victim's upload in exchange `number`, less every mask that these secrets give with its public keys."""
    server = chain.servers[number]
    exchange = server.exchange
    seed, mask_key = secrets_by_client[victim]
    applied = [masks.self_mask(seed, exchange, victim)]
    for row, peer in enumerate(server.advertised_clients):
        if peer != victim:
            key = primitives.private_key(mask_key)
            agreement = primitives.agree(key, server.mask_keys[row].tobytes(), peer)
            applied.append(masks.pair_mask(agreement, exchange, victim, peer))
    upload = next(m for m in chain.sent if (m.round, m.stage, m.sender) == (number, "upload", victim))
    flat = upload.body["masked/w"].copy()
    masks.apply_masks([flat], applied, remove=True)
    return flat


def uniform(words) -> bool:
    """Bytes by chi-square: 255 degrees of freedom, more than 420 has probability below 1e-9."""
    counts = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum()) < 420


def test_with_all_of_one_exchange_opened_the_uploads_of_others_stay_uniform(net, monkeypatch):
    """Every seed and mask key of exchange 1, against the uploads of exchanges 0 and 2 of the same small numbers.

    Power: an exchange's own secrets open its uploads entirely, and what is opened is far from uniform.
    """
    monkeypatch.setattr(
        net, "contributions", lambda s, seed=0: {c: {"w": np.full(ENTRIES, 1 + c, np.int64)} for c in s.cohort}
    )
    chain = Chain(net, net.plan(5, (("w", (ENTRIES,), 32),), pipelined=True))
    for _ in range(3):
        chain.exchange(range(5))
    assert chain.stages == SHORT
    opened = {client: secrets_of(chain, 1, client) for client in range(5)}
    for victim in (0, 3):
        own = strip(chain, 1, victim, opened)
        assert np.array_equal(own, np.full(ENTRIES, 1 + victim, np.uint32))
        assert not uniform(own)
        for other in (0, 2):
            assert uniform(strip(chain, other, victim, opened))
            control = strip(chain, other, victim, {victim: secrets_of(chain, other, victim)})
            assert not uniform(control)


def test_secrets_are_not_shown_and_states_pack_whole(chain):
    chain.exchange(range(5))
    state = chain.clients[2]
    assert isinstance(state, PipelinedClient)
    assert state.precomputed_exchange
    assert repr(state.precomputed_exchange) not in repr(state)
    assert "next_root" not in repr(state)
    fields = {name.split("/")[0].split(":")[0] for name in pack(state)}
    assert fields == {  # names in saved files, which stay when attributes are renamed
        *("client", "stage", "root", "channel", "advertised", "roster", "digest", "near", "mask_keys", "opening"),
        *("sharers", "held", "ahead", "survivors", "contribution", "piece_keys", "sum_key", "context"),
        *("spare", "prepared", "riding"),
    }
