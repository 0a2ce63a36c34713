"""The Paillier protocol, hand-fed its messages: parity, dropouts, replays, tampering, and what collusion opens."""

from dataclasses import replace
from itertools import combinations

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.defenses.base import Aggregation, Session
from securefed.defenses.compose import chain
from securefed.defenses.fixed_point import Quantise
from securefed.defenses.homomorphic import (
    InsecurePaillier,
    KeyHolder,
    Paillier,
    cipher,
    generate,
    open_upload,
    paillier,
)
from securefed.defenses.homomorphic.protocol import PaillierClient
from securefed.defenses.plain import Plain
from securefed.errors import (
    BindingError,
    ConfigError,
    ContradictionError,
    MalformedError,
    MessageRefused,
    PlanError,
    ProtocolError,
    RangeRefused,
    TooFewSurvivors,
)
from securefed.messages import KEY_HOLDER, SERVER, Aggregate, Message
from securefed.state import pack, restore
from securefed.tensors import Layout, TensorSpec

RUN = "0123456789abcdef" * 2
KEY = generate(512)
LAYOUT = Layout((TensorSpec("w", (5, 7), 1.3), TensorSpec("b", (), 4.0, 64), TensorSpec("c", (3,), 100.0)))
N = 4
SCHEME = InsecurePaillier()
DEFENCE = chain(SCHEME)
PLAN = DEFENCE.plan(LAYOUT, N)


def contribution(seed):
    rng = np.random.default_rng(seed)
    return {s.name: rng.uniform(-s.bound, s.bound, s.shape) for s in LAYOUT}


ENCODED = {client: DEFENCE.encode(contribution(client), PLAN) for client in range(N)}


def wire(message):
    return Message.decode(message.encode())


class Exchange:
    """All parties of one exchange. `lose(stage, party)` loses a reply; `through` alters a message on its way.

    States are packed and restored at every step, and kept in `states` before each server step.
    """

    def __init__(self, *, scheme=SCHEME, number=0, holder=None, lose=None, through=None, plan=PLAN, encoded=None):
        self.scheme, self.holder = scheme, holder or KeyHolder(KEY)
        self.session = Session(RUN, number, tuple(range(plan.clients)), plan)
        self.encoded = ENCODED if encoded is None else encoded
        self.lose = lose or (lambda stage, party: False)
        self.through = through or (lambda message: message)
        self.clients = {c: scheme.client_open(self.session, c) for c in self.session.cohort}
        self.recorded, self.refused = [], {}

    def run(self):
        state, stage, bodies = self.scheme.server_open(self.session)
        while True:
            replies = {party: self.answer(stage, party, body) for party, body in bodies.items()}
            replies = {p: reply for p, reply in replies.items() if reply is not None and not self.lose(stage, p)}
            step = self.step(restore(self.scheme.server_open(self.session)[0], pack(state)), replies)
            if isinstance(step, Aggregate):
                return step
            state, stage, bodies = step

    def step(self, state, replies):
        while True:
            try:
                return self.scheme.server_step(state, replies)
            except MessageRefused as error:
                self.refused[error.sender] = error
                del replies[error.sender]

    def answer(self, stage, party, body):
        """The reply; `None`, a dropout, where a client refuses its request."""
        try:
            return self.ask(stage, party, body)
        except MessageRefused as error:
            if party == KEY_HOLDER:
                raise
            self.refused[party] = error
            return None

    def ask(self, stage, party, body):
        request = self.through(wire(Message(RUN, self.session.round, stage, SERVER, party, body)))
        self.recorded.append(request)
        if party == KEY_HOLDER:
            reply = self.holder.handle(request)
        else:
            template = self.scheme.client_open(self.session, party)
            state = restore(template, pack(self.clients[party]))
            self.clients[party], reply = self.scheme.client_step(state, request, self.encoded[party])
        message = self.through(wire(Message(RUN, self.session.round, stage, party, SERVER, reply)))
        self.recorded.append(message)
        return message


def plain_sum(survivors, encoded=ENCODED, plan=PLAN):
    session = Session(RUN, 0, tuple(range(plan.clients)), plan)
    state, stage, _ = Plain().server_open(session)
    return Plain().server_step(state, {c: Message(RUN, 0, stage, c, SERVER, encoded[c]) for c in survivors})


def assert_same(left, right):
    assert left.survivors == right.survivors
    assert set(left.total) == set(right.total)
    for name, value in left.total.items():
        assert value.dtype == right.total[name].dtype == np.int64
        assert value.shape == right.total[name].shape
        np.testing.assert_array_equal(value, right.total[name])


@pytest.mark.parametrize("noise", ["half", "full"])
def test_the_sum_is_the_plain_sum_bit_for_bit(noise):
    scheme = replace(SCHEME, noise=noise)
    aggregate = Exchange(scheme=scheme).run()
    assert_same(aggregate, plain_sum(range(N)))
    decoded = DEFENCE.decode(aggregate.total, PLAN, aggregate.count)
    for tensor in PLAN.tensors:
        exact = sum(contribution(c)[tensor.name] for c in range(N))
        assert np.abs(decoded[tensor.name] - exact).max() <= tensor.error


def test_the_smallest_key_allowed_in_earnest():
    plan = chain(paillier()).plan(LAYOUT, N)
    aggregate = Exchange(scheme=paillier(), holder=paillier().helper(), plan=plan).run()
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


# What the parties see


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


# Tampering: structure is refused; what only the channel can protect is said to be accepted.


def tamper(stage, sender, change):
    def through(message):
        if message.stage == stage and message.sender == sender:
            return replace(message, body=change(dict(message.body)))
        return message

    return through


def with_number(position, value):
    def change(body):
        rows = body["ciphertexts"].copy()
        rows[position] = np.frombuffer(int(value).to_bytes(128, "little"), np.uint8)
        return body | {"ciphertexts": rows}

    return change


n, n2 = KEY.public.n, KEY.public.n**2
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


def test_a_sum_out_of_range_is_refused_and_nothing_comes_out():
    def change(body):  # a client whose last slots hold what no contribution can
        return with_number(0, cipher.encrypt(KEY.public, [2**479])[0])(body)

    exchange = Exchange(through=tamper("upload", 2, change))
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
        lambda b: {"plaintexts": b["plaintexts"] | np.uint8(255)},
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


# The client


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
    assert state == PaillierClient(1, state.session, "upload")


def test_a_client_beyond_its_bound_sends_nothing():
    far = {name: value * 3 for name, value in ENCODED[1].items()}
    with pytest.raises(RangeRefused):
        SCHEME.client_step(client(), request(), far)


# The key holder


def decryption(number=0, **changes):
    (c,) = cipher.encrypt(KEY.public, [41])
    body = {"ciphertexts": cipher.to_wire([c], 128), "survivors": np.asarray(3, np.int64)}
    return Message(RUN, number, "decrypt", SERVER, KEY_HOLDER, body | changes)


def asked(number=0, **kwargs):
    holder = KeyHolder(KEY, **kwargs)
    holder.handle(Message(RUN, number, "key", SERVER, KEY_HOLDER, {}))
    return holder


def test_the_key_holder_decrypts_once_an_exchange():
    holder = asked()
    assert int.from_bytes(holder.handle(decryption())["plaintexts"].tobytes(), "little") == 41
    with pytest.raises(ContradictionError, match="decrypted before"):
        holder.handle(decryption())
    with pytest.raises(ContradictionError, match="replay"):
        holder.handle(Message(RUN, 0, "key", SERVER, KEY_HOLDER, {}))
    with pytest.raises(ContradictionError):
        holder.handle(decryption(1))  # its key was not asked for
    holder.handle(Message(RUN, 1, "key", SERVER, KEY_HOLDER, {}))
    with pytest.raises(ContradictionError):
        holder.handle(decryption(0))  # an older exchange
    assert int.from_bytes(holder.handle(decryption(1))["plaintexts"].tobytes(), "little") == 41
    with pytest.raises(ContradictionError):
        holder.handle(Message(RUN, 0, "key", SERVER, KEY_HOLDER, {}))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"survivors": np.asarray(1, np.int64)}, ContradictionError),
        ({"survivors": np.asarray(-5, np.int64)}, ContradictionError),
        ({"survivors": np.asarray(3.0)}, MalformedError),
        ({"survivors": np.asarray([3])}, MalformedError),
        ({"ciphertexts": cipher.to_wire([0], 128)}, MalformedError),
        ({"ciphertexts": cipher.to_wire([n2], 128)}, MalformedError),
        ({"ciphertexts": cipher.to_wire([KEY.phe.p], 128)}, MalformedError),
        ({"ciphertexts": cipher.to_wire([5], 127)}, MalformedError),
        ({"ciphertexts": np.zeros((1, 128))}, MalformedError),
        ({"more": np.zeros(1)}, MalformedError),
    ],
)
def test_a_malformed_request_is_refused_and_does_not_use_up_the_exchange(changes, kind):
    holder = asked()
    with pytest.raises(kind) as caught:
        holder.handle(decryption(**changes))
    assert caught.value.sender == SERVER
    assert int.from_bytes(holder.handle(decryption())["plaintexts"].tobytes(), "little") == 41


def test_the_key_holder_has_a_threshold_and_answers_the_server_alone():
    with pytest.raises(ContradictionError, match="needs 4"):
        asked(threshold=4).handle(decryption())
    assert asked(threshold=3).handle(decryption())
    with pytest.raises(ContradictionError, match="needs 2"):
        asked(threshold=1).handle(decryption(survivors=np.asarray(1, np.int64)))
    for changes in ({"sender": 2}, {"receiver": 1}):
        with pytest.raises(BindingError):
            asked().handle(replace(decryption(), **changes))
    with pytest.raises(ContradictionError, match="no stage"):
        asked().handle(replace(decryption(), stage="upload"))
    with pytest.raises(MalformedError):
        KeyHolder(KEY).handle(Message(RUN, 0, "key", SERVER, KEY_HOLDER, {"x": np.zeros(1)}))


def test_neither_protocol_states_nor_the_key_holder_show_the_key():
    exchange = Exchange()
    secrets = (KEY.phe.p, KEY.phe.q)
    exchange.run()
    seen = b"".join(value.tobytes() for m in exchange.recorded for value in m.body.values())
    for secret in secrets:
        assert int(secret).to_bytes(32, "little") not in seen
        assert str(secret) not in repr(exchange.holder)


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


@settings(max_examples=150, deadline=None)
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
    assert set(aggregate.total) == set(LAYOUT.names)
    assert all(value.dtype == np.int64 for value in aggregate.total.values())
    if kind in ("drop", "extra", "cast", "cut", "empty"):  # structure: never summed unnoticed
        assert_same(aggregate, plain_sum(aggregate.survivors))
        assert set(exchange.refused) == {max(sender, 0)}
        assert max(sender, 0) not in aggregate.survivors


# The plan


def test_the_plan_says_what_will_happen():
    assert isinstance(SCHEME, Aggregation)
    assert PLAN.stages == ("key", "upload", "decrypt")
    assert PLAN.threshold == 3
    assert PLAN.open_to == "the server together with the key holder"
    assert any("INSECURE" in sentence for sentence in PLAN.assumptions)
    real = chain(paillier(3072, "full")).plan(LAYOUT, 10)
    assert not any("INSECURE" in sentence for sentence in real.assumptions)
    assert real.threshold == 6
    assert real.defense == "quantise + paillier(3072, full)"
    # 38 entries of 32 bits and one of 64: a ciphertext of 768 bytes each
    assert real.upload_bytes == 2 * 768


def test_half_and_full_noise_state_their_assumptions():
    half, full = (chain(paillier(noise=noise)).plan(LAYOUT, 5).assumptions for noise in ("half", "full"))
    assert any("half the modulus" in sentence for sentence in half)
    assert not any("half the modulus" in sentence for sentence in full)


@pytest.mark.parametrize("bits", [512, 1024, 2047, 2050, -2048])
def test_short_keys_are_refused(bits):
    with pytest.raises(ConfigError, match="2048"):
        paillier(bits)


def test_wrong_parameters_are_refused():
    with pytest.raises(ConfigError, match="noise"):
        paillier(noise="quarter")
    with pytest.raises(ConfigError, match="threshold"):
        paillier(threshold=1)
    with pytest.raises(ConfigError, match="512"):
        InsecurePaillier(256)
    with pytest.raises(PlanError, match="threshold 2"):
        chain(paillier()).plan(LAYOUT, 1)
    with pytest.raises(PlanError, match="threshold 6"):
        chain(paillier(threshold=6)).plan(LAYOUT, 5)
    assert chain(paillier(threshold=5)).plan(LAYOUT, 5).threshold == 5
    with pytest.raises(PlanError, match="no bound"):
        chain(paillier()).plan(Layout((TensorSpec("x", (2,)),)), 3)


def test_a_cohort_beyond_the_plan_is_refused():
    with pytest.raises(ConfigError, match="exceeds the planned"):
        SCHEME.server_open(Session(RUN, 0, tuple(range(N + 1)), PLAN))


def test_a_64_bit_ring_for_every_tensor():
    defence = chain(Quantise(64), SCHEME)
    plan = defence.plan(LAYOUT, N)
    encoded = {c: defence.encode(contribution(c), plan) for c in range(N)}
    assert_same(Exchange(plan=plan, encoded=encoded).run(), plain_sum(range(N), encoded, plan))


def test_each_helper_has_a_key_of_its_own():
    first, second = SCHEME.helper(), SCHEME.helper()
    assert first.party == KEY_HOLDER
    assert first.public.n != second.public.n
    assert Paillier().helper().public.bits == 2048
