"""The Paillier protocol, hand-fed its messages: parity with the plain sum, dropouts, what the parties see."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from securefed import SERVER, chain
from securefed._messages import KEY_HOLDER
from securefed.defenses import KeyHolder, paillier
from securefed.defenses._base import without_indicator
from securefed.defenses._homomorphic import open_upload
from securefed.errors import MalformedError, TooFewSurvivors
from tests.defenses.paillier import (
    DEFENCE,
    ENCODED,
    KEY,
    LAYOUT,
    PLAN,
    SCHEME,
    Exchange,
    N,
    assert_same,
    contribution,
    plain_sum,
)


@pytest.mark.parametrize("randomness", ["half", "full", "short"])
def test_the_sum_is_the_plain_sum_bit_for_bit(randomness):
    scheme = replace(SCHEME, randomness=randomness)
    aggregate = Exchange(scheme=scheme).run()
    assert_same(aggregate, plain_sum(range(N)))
    decoded = DEFENCE.decode(aggregate.total, PLAN, aggregate.count)
    for tensor in without_indicator(PLAN).tensors:
        exact = sum(contribution(c)[tensor.name] for c in range(N))
        assert np.abs(decoded[tensor.name] - exact).max() <= tensor.error


def test_the_smallest_key_allowed_in_earnest():
    plan = chain(paillier()).plan(LAYOUT, N)
    aggregate = Exchange(scheme=paillier(), holder=paillier().helper(N), plan=plan).run()
    assert_same(aggregate, plain_sum(range(N)))


@pytest.mark.parametrize("sign", [1, -1, 0])
def test_every_client_at_its_bound(sign):
    signs = [sign or (-1) ** c for c in range(N)]
    raw = {c: {s.name: np.full(s.shape, signs[c] * s.bound) for s in LAYOUT} for c in range(N)}
    encoded = {c: DEFENCE.encode(value, PLAN) for c, value in raw.items()}
    total = Exchange(encoded=encoded).run().total
    for name, value in total.items():
        np.testing.assert_array_equal(value, sum(encoded[c][name] for c in range(N)))


# Dropouts


@pytest.mark.parametrize("lost", [s for k in range(N + 1) for s in combinations(range(N), k)])
def test_dropouts_at_the_upload(lost):
    exchange = Exchange(lose=lambda stage, party: stage == "upload" and party in lost)
    left = [c for c in range(N) if c not in lost]
    if len(left) >= 3:  # more than half of 4
        assert_same(exchange.run(), plain_sum(left))
        return
    with pytest.raises(TooFewSurvivors, match="nothing opened"):
        exchange.run()
    assert not [m for m in exchange.recorded if m.stage == "decrypt"]


@pytest.mark.parametrize("stage", ["key", "decrypt"])
def test_a_silent_key_holder_voids_the_round_and_the_next_one_completes(stage):
    holder = KeyHolder(KEY)
    with pytest.raises(TooFewSurvivors, match=f"key holder did not answer at stage '{stage}'"):
        Exchange(holder=holder, lose=lambda s, party: s == stage and party == KEY_HOLDER).run()
    assert_same(Exchange(holder=holder, number=1).run(), plain_sum(range(N)))


def test_messages_have_sizes_that_depend_on_the_plan_alone():
    def sizes(encoded):
        exchange = Exchange(encoded=encoded)
        exchange.run()
        return [(m.stage, m.sender, {k: v.nbytes for k, v in m.body.items()}) for m in exchange.recorded]

    zeros = {c: {name: np.zeros_like(value) for name, value in ENCODED[c].items()} for c in range(N)}
    assert sizes(zeros) == sizes(ENCODED)
    uploads = [body for stage, sender, body in sizes(zeros) if stage == "upload" and sender >= 0]
    assert uploads == [{"ciphertexts": PLAN.upload_bytes}] * N


def test_server_and_key_holder_together_open_every_contribution_bit_for_bit():
    exchange = Exchange()
    exchange.run()
    uploads = {m.sender: m for m in exchange.recorded if m.stage == "upload" and m.receiver == SERVER}
    assert set(uploads) == set(range(N))
    for client, message in uploads.items():
        opened = open_upload(exchange.holder, message.body, PLAN, client)
        assert set(opened) == set(ENCODED[client])
        for name, value in opened.items():
            assert value.dtype == ENCODED[client][name].dtype
            np.testing.assert_array_equal(value, ENCODED[client][name])


def test_another_key_opens_nothing():
    exchange = Exchange()
    exchange.run()
    upload = next(m for m in exchange.recorded if m.stage == "upload" and m.receiver == SERVER)
    with pytest.raises(MalformedError):  # out of n^2, or garbage that fits no slots (but for 2^-29)
        open_upload(KeyHolder.generate(512), upload.body, PLAN)


def test_the_key_holder_is_sent_only_the_product():
    exchange = Exchange()
    exchange.run()
    uploads = [m.body["ciphertexts"] for m in exchange.recorded if m.stage == "upload" and m.receiver == SERVER]
    (request,) = [m for m in exchange.recorded if m.stage == "decrypt" and m.receiver == KEY_HOLDER]
    rows = {row.tobytes() for upload in uploads for row in upload}
    assert not rows & {row.tobytes() for row in request.body["ciphertexts"]}
    assert int(request.body["survivors"]) == N


def test_a_second_round_encrypts_anew():
    holder = KeyHolder(KEY)
    rows = []
    for number in range(2):
        exchange = Exchange(holder=holder, number=number)
        exchange.run()
        rows += [
            row.tobytes()
            for m in exchange.recorded
            if m.stage == "upload" and m.receiver == SERVER
            for row in m.body["ciphertexts"]
        ]
    assert len(set(rows)) == len(rows)


def test_neither_protocol_states_nor_the_key_holder_show_the_key():
    exchange = Exchange()
    secrets = (KEY.phe.p, KEY.phe.q)
    exchange.run()
    seen = b"".join(value.tobytes() for m in exchange.recorded for value in m.body.values())
    for secret in secrets:
        assert int(secret).to_bytes(32, "little") not in seen
        assert str(secret) not in repr(exchange.holder)
