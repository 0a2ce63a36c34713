"""Tampering with Paillier messages: structure is refused; what only the channel can protect is said to be accepted."""

from dataclasses import replace

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed import SERVER, Message, chain
from securefed._messages import KEY_HOLDER
from securefed.defenses import KeyHolder, Session
from securefed.defenses._base import INDICATOR, some_client_out, without_indicator, without_indicator_tensor
from securefed.defenses._homomorphic import InsecurePaillier, cipher
from securefed.errors import BindingError, MalformedError, ProtocolError, TooFewSurvivors
from tests.defenses.paillier import (
    ENCODED,
    KEY,
    LAYOUT,
    PLAN,
    RUN,
    Exchange,
    N,
    assert_same,
    n2,
    plain_sum,
    tamper,
    wire,
    with_number,
)

n = KEY.public.n
STRUCTURE = {
    "zero": with_number(0, 0),
    "n^2": with_number(-1, n2),
    "beyond n^2": with_number(0, n2 + 2),
    "n": with_number(1, n),
    "multiple of p": with_number(0, KEY.phe.p * 12345),
    "a row less": lambda b: {"ciphertexts": b["ciphertexts"][:-1]},
    "a row more": lambda b: {"ciphertexts": np.concatenate([b["ciphertexts"], b["ciphertexts"][:1]])},
    "a byte less": lambda b: {"ciphertexts": b["ciphertexts"][:, :-1]},
    "flat": lambda b: {"ciphertexts": b["ciphertexts"].reshape(-1)},
    "signed": lambda b: {"ciphertexts": b["ciphertexts"].view(np.int8)},
    "floats": lambda b: {"ciphertexts": b["ciphertexts"].astype(np.float64)},
    "no field": lambda b: {},
    "another field": lambda b: b | {"more": np.zeros(1)},
}


@pytest.mark.parametrize(("name", "change"), STRUCTURE.items())
def test_a_malformed_upload_is_refused_by_name_and_the_rest_is_summed(name, change):
    exchange = Exchange(through=tamper("upload", 2, change))
    assert_same(exchange.run(), plain_sum([0, 1, 3]))
    assert isinstance(exchange.refused[2], MalformedError)
    assert set(exchange.refused) == {2}


def test_an_untouched_upload_passes_the_same_path():
    exchange = Exchange(through=tamper("upload", 2, lambda body: body))
    assert_same(exchange.run(), plain_sum(range(N)))
    assert not exchange.refused


@pytest.mark.parametrize("field", ["run", "round", "stage", "sender", "receiver"])
def test_a_reply_bound_elsewhere_is_refused(field):
    other = {"run": "f" * 32, "round": 7, "stage": "key", "sender": 1, "receiver": 3}[field]

    def through(message):
        return replace(message, **{field: other}) if message.stage == "upload" and message.sender == 2 else message

    exchange = Exchange(through=through)
    state, _, bodies = exchange.scheme.server_open(exchange.session)
    state, stage, bodies = exchange.scheme.server_step(
        state, {p: exchange.ask("key", p, body) for p, body in bodies.items()}
    )
    replies = {party: exchange.ask(stage, party, body) for party, body in bodies.items()}
    with pytest.raises(BindingError):
        exchange.scheme.server_step(state, replies)


def test_ciphertexts_are_malleable_by_design_so_the_channel_must_be_authenticated():
    # Multiplying by an encryption of 1 adds one unit to the first slot, and nobody can tell.
    def change(body):
        rows = body["ciphertexts"]
        first = gmpy2.mpz(int.from_bytes(rows[0].tobytes(), "little"))
        return with_number(0, first * cipher.encrypt(KEY.public, [1])[0] % n2)(body)

    total = Exchange(through=tamper("upload", 2, change)).run().total
    difference = total["w"] - plain_sum(range(N)).total["w"]
    assert difference.reshape(-1).tolist() == [1] + [0] * 34


def out_of_range(body):
    """Of a client whose last slots hold what no contribution can."""
    return with_number(0, cipher.encrypt(KEY.public, [2**479])[0])(body)


def test_a_sum_out_of_range_shows_that_somebody_is_out_and_nothing_else():
    total = Exchange(through=tamper("upload", 2, out_of_range)).run().total
    assert some_client_out(total, PLAN)
    assert not any(without_indicator_tensor(total)[name].any() for name in LAYOUT.names)
    assert not some_client_out(Exchange().run().total, PLAN)  # positive control


def test_without_an_indicator_a_sum_out_of_range_is_refused_and_nothing_comes_out():
    plan = replace(without_indicator(PLAN), added=())
    exchange = Exchange(through=tamper("upload", 2, out_of_range), plan=plan)
    with pytest.raises(TooFewSurvivors):
        exchange.run()
    assert isinstance(exchange.refused[KEY_HOLDER], MalformedError)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: {},
        lambda b: b | {"more": np.zeros(1)},
        lambda b: {"plaintexts": b["plaintexts"][:-1]},
        lambda b: {"plaintexts": b["plaintexts"][:, :-1]},
        lambda b: {"plaintexts": b["plaintexts"].view(np.int8)},
    ],
)
def test_a_malformed_decryption_is_refused(change):
    exchange = Exchange(through=tamper("decrypt", KEY_HOLDER, change))
    with pytest.raises(TooFewSurvivors):
        exchange.run()
    assert isinstance(exchange.refused[KEY_HOLDER], MalformedError)


def test_a_malformed_key_from_the_key_holder_is_refused_by_the_server():
    exchange = Exchange(through=tamper("key", KEY_HOLDER, lambda b: b | {"base": b["base"][:-1]}))
    with pytest.raises(TooFewSurvivors):
        exchange.run()
    assert isinstance(exchange.refused[KEY_HOLDER], MalformedError)


def test_a_key_of_another_size_is_refused_by_the_client():
    scheme = InsecurePaillier(1024)
    plan = chain(scheme).plan(LAYOUT, N)
    state = scheme.client_open(Session(RUN, 0, tuple(range(N)), plan), 0)
    good = wire(Message(RUN, 0, "upload", SERVER, 0, KeyHolder.generate(1024).public.to_body()))
    scheme.client_step(state, good, ENCODED[0])  # positive control
    with pytest.raises(MalformedError):
        scheme.client_step(state, replace(good, body=KEY.public.to_body()), ENCODED[0])


def test_a_reply_of_somebody_who_was_not_asked_is_refused():
    exchange = Exchange()
    state, _, bodies = exchange.scheme.server_open(exchange.session)
    reply = exchange.ask("key", KEY_HOLDER, bodies[KEY_HOLDER])
    stranger = Message(RUN, 0, "key", 9, SERVER, reply.body)
    with pytest.raises(MalformedError) as caught:
        exchange.scheme.server_step(state, {9: stranger, KEY_HOLDER: reply})
    assert caught.value.sender == 9


# Hypothesis: whatever is done to a message, the outcome is a named refusal, or a sum of int64 tensors.


def flip(value, where):
    raw = np.frombuffer(value.tobytes(), np.uint8).copy()
    raw[where % raw.size] ^= 1 << (where % 8)
    return raw.view(value.dtype).reshape(value.shape)


VALUE_CHANGES = {
    "flip": flip,
    "cast": lambda value, where: value.astype(np.float32),
    "cut": lambda value, where: value.reshape(-1)[:-1],
    "zero": lambda value, where: np.zeros_like(value),
    "empty": lambda value, where: np.zeros((0, *value.shape[1:]), value.dtype),
}


@st.composite
def mutations(draw):
    stage, sender = draw(
        st.sampled_from(
            [("key", KEY_HOLDER), ("upload", 1), ("decrypt", KEY_HOLDER), ("decrypt", SERVER), ("upload", SERVER)]
        )
    )
    kind = draw(st.sampled_from(["drop", "extra", *VALUE_CHANGES]))
    where = draw(st.integers(0, 2**16))

    def change(body):
        name = sorted(body)[where % len(body)]
        value = np.array(body[name])
        if kind == "drop":
            return {key: item for key, item in body.items() if key != name}
        if kind == "extra":
            return body | {"zzz": value}
        return body | {name: VALUE_CHANGES[kind](value, where)}

    return stage, sender, kind, change


@settings(max_examples=150)
@given(mutations())
def test_any_mutation_ends_in_a_named_refusal_or_a_sum(mutation):
    stage, sender, kind, change = mutation

    # A request to a client is altered for client 0 alone, as one sender stands for many messages there.
    def through(message):
        hit = message.stage == stage and message.sender == sender and message.receiver in (SERVER, KEY_HOLDER, 0)
        return replace(message, body=change(dict(message.body))) if hit else message

    exchange = Exchange(through=through)
    try:
        aggregate = exchange.run()
    except ProtocolError:
        return
    assert set(aggregate.total) == {*LAYOUT.names, INDICATOR}
    assert all(value.dtype == np.int64 for value in aggregate.total.values())
    if kind in ("drop", "extra", "cast", "cut", "empty"):  # structure: never summed unnoticed
        assert_same(aggregate, plain_sum(aggregate.survivors))
        assert set(exchange.refused) == {max(sender, 0)}
        assert max(sender, 0) not in aggregate.survivors
