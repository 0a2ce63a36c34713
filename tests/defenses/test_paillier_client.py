"""A Paillier client: it answers once, what is meant for it, under one key a run, with randomness computed ahead."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import SERVER, Dataset, Federation, Message, chain
from securefed import _catalogue as catalogue
from securefed._persistence.packing import pack
from securefed.defenses import Session
from securefed.defenses._homomorphic import InsecurePaillier, cipher, generate, key_pinning
from securefed.defenses._homomorphic.packing import Packing
from securefed.defenses._homomorphic.paillier_protocol import EncryptingClient
from securefed.errors import ConfigError, ContradictionError, MessageRefused, RangeRefused, RoundVoid
from tests.defenses.paillier import ENCODED, KEY, PLAN, RUN, SCHEME, Exchange, N, assert_same, n2, plain_sum, wire


def request(**changes):
    return replace(wire(Message(RUN, 0, "upload", SERVER, 1, KEY.public.to_body())), **changes)


def client():
    return SCHEME.client_open(Session(RUN, 0, tuple(range(N)), PLAN), 1)


def test_a_client_answers_once():
    state, _ = SCHEME.client_step(client(), request(), ENCODED[1])
    assert state.next_stage == ""
    with pytest.raises(ContradictionError):
        SCHEME.client_step(state, request(), ENCODED[1])


@pytest.mark.parametrize(
    "changes", [{"run": "f" * 32}, {"round": 1}, {"stage": "decrypt"}, {"sender": 3}, {"receiver": 2}]
)
def test_a_client_refuses_what_is_bound_elsewhere(changes):
    SCHEME.client_step(client(), request(), ENCODED[1])  # positive control
    with pytest.raises(MessageRefused):
        SCHEME.client_step(client(), request(**changes), ENCODED[1])


def test_a_client_step_leaves_its_state_as_it_was():
    state = client()
    SCHEME.client_step(state, request(), ENCODED[1])
    assert state == EncryptingClient(1, state.session, "upload")


def test_a_client_beyond_its_bound_sends_nothing():
    far = {name: value * 3 for name, value in ENCODED[1].items()}
    with pytest.raises(RangeRefused):
        SCHEME.client_step(client(), request(), far)


# One key a run

NOTHING = np.zeros(0, np.uint8)


def upload(scheme, key, *, run=RUN, number=0, party=1, memory=NOTHING):
    state = scheme.client_remind(scheme.client_open(Session(run, number, tuple(range(N)), PLAN), party), memory)
    asked = wire(Message(run, number, "upload", SERVER, party, key.public.to_body()))
    return scheme.client_step(state, asked, ENCODED[party])


def remembered(scheme, key, **kwargs):
    return scheme.client_memory(upload(scheme, key, **kwargs)[0])


def test_another_key_later_in_the_run_is_refused():
    scheme, other = InsecurePaillier(), generate(512)
    memory = remembered(scheme, KEY)
    # Positive controls: the same key again, and the other one where it is the first.
    np.testing.assert_array_equal(remembered(scheme, KEY, number=1, memory=memory), memory)
    upload(scheme, other, number=2)
    with pytest.raises(ContradictionError, match="another public key") as caught:
        upload(scheme, other, number=2, memory=memory)
    assert caught.value.sender == SERVER
    upload(scheme, other, run="f" * 32, memory=memory)  # in another run it is the first
    with pytest.raises(ContradictionError):  # and it is the client that remembers, in whatever process
        upload(InsecurePaillier(), other, number=3, memory=memory)


def test_a_client_of_a_federation_remembers_its_key_over_exchanges():
    rows = [Dataset(np.eye(3), np.arange(3) % 2) for _ in range(3)]
    federation = Federation(catalogue.algorithms.make("optimization/dsgd", learning_rate=0.1), rows, chain(SCHEME))
    federation.run(1)
    first = [node.state.memory for node in federation.nodes.values()]
    assert all(memory.size for memory in first)
    federation.run(2)
    assert all(np.array_equal(node.state.memory, a) for node, a in zip(federation.nodes.values(), first, strict=True))
    federation.helper._private = generate(512)
    with pytest.raises(RoundVoid, match="another public key"):
        federation.run(3)


def test_the_base_is_pinned_with_the_modulus():
    scheme, public = InsecurePaillier(), KEY.public
    memory = remembered(scheme, KEY)
    with pytest.raises(ContradictionError):
        upload(scheme, replace(KEY, public=replace(public, base=public.base * 4 % public.n)), memory=memory)


def test_a_given_key_is_the_only_one_from_the_start():
    scheme = InsecurePaillier(public=KEY.public)
    upload(scheme, KEY)
    with pytest.raises(ContradictionError, match="given at set-up"):
        upload(scheme, generate(512), run="e" * 32)
    assert scheme.helper(N) is None
    assert_same(Exchange(scheme=scheme).run(), plain_sum(range(N)))
    with pytest.raises(ConfigError, match="bits is 1024, but the given key has 512 bits"):
        InsecurePaillier(1024, public=KEY.public)


# Randomness computed ahead


def test_randomness_is_computed_ahead_for_exactly_one_upload_and_used_by_it():
    scheme, count = InsecurePaillier(), Packing.of(PLAN, 512).plaintexts
    state = scheme.client_open(Session(RUN, 0, tuple(range(N)), PLAN), 1)
    scheme.client_prepare(state)
    assert not scheme.pool._ready  # no key yet
    state, _ = upload(scheme, KEY)
    for _ in range(2):
        assert scheme.client_prepare(state) is state
        assert scheme.pool.ready(KEY.public, "half") == count
    ahead = [int(piece) for piece in scheme.pool._ready[KEY.public.n, KEY.public.base, "half"]]
    _, body = upload(scheme, KEY, number=1)
    assert scheme.pool.ready(KEY.public, "half") == 0
    sent = cipher.from_wire(body["ciphertexts"], count, 128, 1)
    plaintexts = Packing.of(PLAN, 512).pack(ENCODED[1])
    assert sent == [(1 + m * KEY.public.n) * r % n2 for m, r in zip(plaintexts, ahead, strict=True)]


def test_a_given_key_lets_a_client_prepare_before_its_first_round():
    scheme = InsecurePaillier(randomness="short", public=KEY.public)
    scheme.client_prepare(client())
    assert scheme.pool.ready(KEY.public, "short") == Packing.of(PLAN, 512).plaintexts


def test_what_is_made_ahead_is_in_no_state():
    scheme = InsecurePaillier()
    state, _ = upload(scheme, KEY)
    scheme.client_prepare(state)
    assert set(pack(state)) == {"client:i", "next_stage:s", "known:y"}
    pinned = key_pinning.pinned_key(state.pinned, RUN)
    assert {name: value.tobytes() for name, value in pinned.items()} == {
        name: value.tobytes() for name, value in KEY.public.to_body().items()
    }
    assert "pool" not in repr(scheme)
