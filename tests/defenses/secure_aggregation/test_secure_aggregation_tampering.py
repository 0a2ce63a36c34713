"""What is altered, replayed, re-ordered, swapped or falsified ends in a named refusal, never in a wrong sum."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed import SERVER, Message
from securefed.defenses._secure_aggregation import primitives
from securefed.defenses._secure_aggregation.primitives import label
from securefed.errors import (
    AuthenticationError,
    ProtocolError,
)
from tests.examples import examples

COHORT = (2, 3, 5, 8, 11)


def flip(value, byte, bit):
    if not value.size:
        return value
    data = bytearray(value.tobytes())
    data[byte % len(data)] ^= 1 << bit
    return np.frombuffer(bytes(data), value.dtype).reshape(value.shape)


def other_kind(value):
    return value.astype(">u4") if value.dtype == np.uint32 else value.astype(np.int16)


BODY = {
    "flip": lambda body, name, place: body | {name: flip(body[name], place // 8, place % 8)},
    "drop": lambda body, name, place: {k: v for k, v in body.items() if k != name},
    "rename": lambda body, name, place: {(k + "x" if k == name else k): v for k, v in body.items()},
    "extra": lambda body, name, place: body | {"extra": body[name]},
    "dtype": lambda body, name, place: body | {name: other_kind(body[name])},
    "signed": lambda body, name, place: body | {name: body[name].view(f"i{body[name].itemsize}")},
    "reshape": lambda body, name, place: body | {name: body[name].reshape(-1, 1)},
    "shorten": lambda body, name, place: body | {name: body[name].reshape(-1)[:-1]},
    "zero": lambda body, name, place: body | {name: np.zeros_like(body[name])},
    "float": lambda body, name, place: body | {name: body[name].astype(np.float64) * np.nan},
    "text": lambda body, name, place: body | {name: np.asarray(["x"])},
    "no array": lambda body, name, place: body | {name: b"bytes"},
    "empty": lambda body, name, place: {},
}
HEAD = {
    "run": lambda message: dataclasses.replace(message, run="f" * 32),
    "round": lambda message: dataclasses.replace(message, round=message.round + 1),
    "stage": lambda message: dataclasses.replace(message, stage="unmask" if message.stage != "unmask" else "keys"),
    "sender": lambda message: dataclasses.replace(message, sender=3 if message.sender != 3 else 5),
    "receiver": lambda message: dataclasses.replace(message, receiver=3 if message.receiver != 3 else 5),
    "lost": lambda message: None,
}
BORROWED = ("peer", "other round", "other run", "other stage", "reflected")


@pytest.fixture(scope="module")
def strangers(net):
    """Messages of exchanges other than the attacked one."""
    earlier, other = net.session(COHORT, round=0), net.session(COHORT, round=1, run="e" * 32)
    return {
        "other round": net.drive(earlier, net.contributions(earlier)).sent,
        "other run": net.drive(other, net.contributions(other)).sent,
    }


def borrow(kind, message, seen, strangers, place):
    """The same header over a body that was honest elsewhere."""
    if kind in strangers:
        pool = [
            m
            for m in strangers[kind]
            if (m.stage, m.sender, m.receiver) == (message.stage, message.sender, message.receiver)
        ]
    elif kind == "peer":
        pool = [m for m in seen if m.stage == message.stage and (m.sender == SERVER) == (message.sender == SERVER)]
    elif kind == "reflected":
        pool = [m for m in seen if (m.sender, m.receiver) == (message.receiver, message.sender)]
    else:
        pool = [m for m in seen if (m.sender, m.receiver) == (message.sender, message.receiver)]
    pool = [m for m in pool if m is not message]
    return dataclasses.replace(message, body=pool[place % len(pool)].body) if pool else message


def same(left, right):
    if right is None or (left.run, left.round, left.stage, left.sender, left.receiver) != (
        right.run, right.round, right.stage, right.sender, right.receiver,
    ):  # fmt: skip
        return False
    return left.body.keys() == right.body.keys() and all(
        isinstance(right.body[k], np.ndarray)
        and (v.dtype, v.shape, v.tobytes()) == (right.body[k].dtype, right.body[k].shape, right.body[k].tobytes())
        for k, v in left.body.items()
    )


@settings(max_examples=examples(500))
@given(st.data())
def test_mutated_messages_end_in_a_refusal_and_never_in_a_wrong_sum(net, strangers, data):
    """One to three messages to either side are mutated; every mutation that changes anything costs its client the round
    or, at the last stage, only its answer."""
    session = net.session(COHORT, round=1)
    contributions = net.contributions(session)
    place = st.tuples(st.sampled_from(net.STAGES), st.sampled_from(COHORT), st.booleans())
    kinds = st.tuples(st.sampled_from([*BODY, *HEAD, *BORROWED]), st.integers(0, 10**6))
    attacks = data.draw(st.dictionaries(place, kinds, min_size=1, max_size=3))
    seen, changed = [], {}

    def tamper(message):
        to_server = message.sender != SERVER
        client = message.sender if to_server else message.receiver
        kind, place = attacks.get((message.stage, client, to_server), (None, 0))
        seen.append(message)
        if kind is None:
            return message
        if kind in BODY:
            name = sorted(message.body)[place % len(message.body)]
            mutated = dataclasses.replace(message, body=BODY[kind](dict(message.body), name, place))
        elif kind in HEAD:
            mutated = HEAD[kind](message)
        else:
            mutated = borrow(kind, message, seen, strangers, place)
        if not same(message, mutated):
            changed.setdefault(client, message.stage)
        return mutated

    try:
        out = net.drive(session, contributions, tamper=tamper)
    except ProtocolError as error:
        assert type(error) is not ProtocolError
        assert changed
        return
    expected = {client for client in COHORT if changed.get(client, "unmask") == "unmask"}
    assert set(out.aggregate.survivors) == expected
    for name, value in net.sum(contributions, out.aggregate.survivors).items():
        assert np.array_equal(out.aggregate.total[name], value)


@pytest.mark.parametrize("stage", ["keys", "shares", "upload", "unmask"])
@pytest.mark.parametrize("to_server", [True, False])
def test_one_flipped_bit_in_any_field_is_refused(net, stage, to_server):
    """Each field of each message once, beside the control that nothing is refused without the flip."""
    session = net.session(COHORT)
    contributions = net.contributions(session)
    clean = net.drive(session, contributions)
    assert not clean.refusals
    (body,) = clean.bodies(stage, *((5, SERVER) if to_server else (SERVER, 5)))
    for name in body:
        if not body[name].size:
            continue

        def tamper(message, name=name):
            mine = (message.sender, message.receiver) == ((5, SERVER) if to_server else (SERVER, 5))
            if not mine or message.stage != stage:
                return message
            return dataclasses.replace(message, body=message.body | {name: flip(message.body[name], 7, 4)})

        out = net.drive(session, contributions, tamper=tamper)
        ((_, refusal),) = out.refusals
        assert isinstance(refusal, AuthenticationError)
        assert (5 in out.aggregate.survivors) == (stage == "unmask")
        for tensor, value in net.sum(contributions, out.aggregate.survivors).items():
            assert np.array_equal(out.aggregate.total[tensor], value)


def test_no_two_bodies_have_one_tag():
    """Entries that look like one more length of the shape: the tag holds the number of dimensions, so they are none."""
    key, run = bytes(32), "0" * 32
    field = np.frombuffer(label(0), np.uint8)  # as bytes the length of an empty second dimension
    sealed = primitives.seal(key, run, 0, "upload", 5, SERVER, {"x": field})
    primitives.verify(key, Message(run, 0, "upload", 5, SERVER, sealed))
    altered = {**sealed, "x": np.zeros((len(field), 0), np.uint8)}
    with pytest.raises(AuthenticationError):
        primitives.verify(key, Message(run, 0, "upload", 5, SERVER, altered))
