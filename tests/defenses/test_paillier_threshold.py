"""Threshold Paillier, hand-fed its messages: parity, dropouts at both stages, wrong answers, what is refused."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from securefed import SERVER, Message, chain
from securefed._persistence.packing import pack
from securefed.defenses import Aggregation, KeySet, Session, threshold_paillier
from securefed.defenses._base import some_client_out, without_indicator
from securefed.defenses._homomorphic import InsecureThresholdPaillier, ThresholdPaillier, insecure_deal
from securefed.defenses._homomorphic import threshold as threshold_module
from securefed.errors import (
    AuthenticationError,
    BindingError,
    ConfigError,
    ContradictionError,
    MalformedError,
    MessageRefused,
    PlanError,
    RangeRefused,
    TooFewSurvivors,
)
from tests.combinations import each_value
from tests.defenses.paillier import (
    LAYOUT,
    RUN,
    Exchange,
    assert_same,
    contribution,
    open_together,
    plain_sum,
    tamper,
)

N, T = 5, 3
KEYS = insecure_deal(T, N)
SCHEME = threshold_paillier(keys=KEYS)
DEFENCE = chain(SCHEME)
PLAN = DEFENCE.plan(LAYOUT, N)
ENCODED = {client: DEFENCE.encode(contribution(client), PLAN) for client in range(N)}


def exchange(**kwargs):
    return Exchange(**({"scheme": SCHEME, "plan": PLAN, "encoded": ENCODED} | kwargs))


def plain(survivors):
    return plain_sum(survivors, ENCODED, PLAN)


@pytest.mark.parametrize("randomness", ["half", "full", "short"])
def test_the_sum_is_the_plain_sum_bit_for_bit(randomness):
    run = exchange(scheme=replace(SCHEME, randomness=randomness))
    assert_same(run.run(), plain(range(N)))
    assert not run.refused


def test_the_smallest_key_allowed_in_earnest():
    scheme = threshold_paillier(2, 3)
    plan = chain(scheme).plan(LAYOUT, 3)
    encoded = {client: chain(scheme).encode(contribution(client), plan) for client in range(3)}
    run = exchange(scheme=scheme, plan=plan, encoded=encoded)
    assert_same(run.run(), plain_sum(range(3), encoded, plan))
    assert scheme.dealer.keys(2, 3, 3, 2048).shared.public.bits == 2048


def test_each_process_needs_its_own_secrets_alone():
    """Five clients with one key set each, and a server without a secret."""
    server = threshold_paillier(keys=KeySet.only(KEYS, 99))
    assert not server.keys.shares and not server.keys.signers
    run = exchange(scheme=server)
    schemes = {client: threshold_paillier(keys=KEYS.only(client)) for client in range(N)}

    class Routed:
        def __getattr__(self, name):
            return getattr(server, name)

        def client_step(self, state, request, encoded):
            return schemes[state.client].client_step(state, request, encoded)

        def client_accept(self, state, request, context):
            return schemes[state.client].client_accept(state, request, context)

        def client_upload(self, state, encoded):
            return schemes[state.client].client_upload(state, encoded)

    run.scheme = Routed()
    assert_same(run.run(), plain(range(N)))


def test_a_client_without_a_share_uploads_and_is_not_asked_to_decrypt():
    keys = insecure_deal(2, 3, clients=N)
    scheme = threshold_paillier(keys=keys)
    run = exchange(scheme=scheme, plan=chain(scheme).plan(LAYOUT, N))
    assert_same(run.run(), plain(range(N)))
    assert {m.receiver for m in run.recorded if m.stage == "decrypt" and m.sender == SERVER} == {0, 1}
    assert run.clients[4].next_stage == ""


# Dropouts


@pytest.mark.parametrize(
    ("lost", "stage"), each_value([s for k in range(N + 1) for s in combinations(range(N), k)], ["upload", "decrypt"])
)
def test_dropouts(stage, lost):
    run = exchange(lose=lambda at, party: at == stage and party in lost)
    left = [c for c in range(N) if c not in lost]
    if len(left) < T:
        with pytest.raises(TooFewSurvivors, match=str(T)):
            run.run()
        assert stage == "decrypt" or not [m for m in run.recorded if m.stage == "decrypt"]
        return
    assert_same(run.run(), plain(left if stage == "upload" else range(N)))


def test_only_as_many_holders_as_are_missing_are_asked():
    run = exchange(lose=lambda stage, party: stage == "decrypt" and party == 1)
    run.run()
    asked = [m.receiver for m in run.recorded if m.stage == "decrypt" and m.sender == SERVER]
    assert asked == [0, 1, 2, 3]


# Wrong answers


def shifted(body):
    rows = body["answers"].copy()
    rows[0, 0] ^= 1
    return body | {"answers": rows}


WRONG = {
    "another number": shifted,
    "zeros": lambda b: b | {"answers": np.zeros_like(b["answers"])},
    "a row less": lambda b: b | {"answers": b["answers"][:-1]},
    "signed": lambda b: b | {"answers": b["answers"].view(np.int8)},
    "no proof": lambda b: {"answers": b["answers"]},
    "a short challenge": lambda b: b | {"challenge": b["challenge"][:-1]},
    "a short response": lambda b: b | {"response": b["response"][:-1]},
    "another field": lambda b: b | {"more": np.zeros(1)},
}


@pytest.mark.parametrize(("name", "change"), WRONG.items())
def test_a_wrong_answer_is_refused_by_name_and_another_holder_is_asked(name, change):
    run = exchange(through=tamper("decrypt", 1, change))
    assert_same(run.run(), plain(range(N)))
    assert isinstance(run.refused[1], MalformedError)
    assert set(run.refused) == {1}
    assert [m.sender for m in run.recorded if m.stage == "decrypt" and m.receiver == SERVER] == [0, 1, 2, 3]


def test_too_many_wrong_answers_void_the_round():
    def through(message):
        wrong = message.stage == "decrypt" and message.sender in (0, 2, 4)
        return replace(message, body=shifted(dict(message.body))) if wrong else message

    run = exchange(through=through)
    needed = r"^2 of the 3 share holders that a decryption needs answered rightly \(silent or wrong: 0, 2, 4\)"
    with pytest.raises(TooFewSurvivors, match=needed):
        run.run()
    assert set(run.refused) == {0, 2, 4}


@pytest.mark.parametrize("lost", [s for k in (3, 4, 5) for s in combinations(range(N), k)])
def test_a_void_decryption_counts_the_right_answers_and_names_every_holder_without_one(lost):
    run = exchange(lose=lambda at, party: at == "decrypt" and party in lost)
    with pytest.raises(TooFewSurvivors) as error:
        run.run()
    asked = {message.receiver for message in run.recorded if message.stage == "decrypt" and message.sender == SERVER}
    right = asked - {*lost}
    silent = ", ".join(map(str, sorted(asked & {*lost})))
    assert str(error.value).startswith(f"{len(right)} of the 3 share holders ")
    assert f"(silent or wrong: {silent}), and {N - len(asked)} others are left to ask" in str(error.value)


def test_right_answers_with_a_wrong_proof_still_open_the_sum():
    """The opened sum proves itself: c = (1 + n)^M r^n."""
    run = exchange(through=tamper("decrypt", 1, lambda b: b | {"challenge": b["challenge"] ^ 1}))
    assert_same(run.run(), plain(range(N)))
    assert not run.refused


# Uploads


UPLOADS = {
    "another signature": (lambda b: b | {"signature": b["signature"] ^ 1}, AuthenticationError),
    "no signature": (lambda b: {"ciphertexts": b["ciphertexts"]}, MalformedError),
    "a short signature": (lambda b: b | {"signature": b["signature"][:-1]}, MalformedError),
    "altered": (lambda b: b | {"ciphertexts": b["ciphertexts"] ^ np.uint8(1)}, AuthenticationError),
    "zeros": (lambda b: b | {"ciphertexts": np.zeros_like(b["ciphertexts"])}, MalformedError),
    "a row less": (lambda b: b | {"ciphertexts": b["ciphertexts"][:-1]}, MalformedError),
}


@pytest.mark.parametrize(("name", "case"), UPLOADS.items())
def test_a_bad_upload_is_refused_by_name_and_the_rest_is_summed(name, case):
    change, kind = case
    run = exchange(through=tamper("upload", 2, change))
    assert_same(run.run(), plain([0, 1, 3, 4]))
    # A bit more may also leave the range of ciphertexts; either way the client is named.
    assert isinstance(run.refused[2], kind | MalformedError if name == "altered" else kind)
    assert set(run.refused) == {2}


def test_an_upload_out_of_range_shows_that_somebody_is_out(monkeypatch):
    """A client that signs what no contribution can be: told from the sum alone."""
    pack_rightly = threshold_module.Packing.pack
    monkeypatch.setattr(
        threshold_module.Packing, "pack", lambda self, encoded: [2**479, *pack_rightly(self, encoded)[1:]]
    )
    total = exchange().run().total
    assert some_client_out(total, PLAN)
    assert not any(total[name].any() for name in LAYOUT.names)
    with pytest.raises(TooFewSurvivors, match="not what the plan says"):
        exchange(plan=replace(without_indicator(PLAN), added=())).run()


@pytest.mark.parametrize("field", ["run", "round", "stage", "sender", "receiver"])
@pytest.mark.parametrize("stage", ["upload", "decrypt"])
def test_replies_bound_elsewhere_are_refused(stage, field):
    other = {"run": "f" * 32, "round": 7, "stage": "key", "sender": 1, "receiver": 3}[field]

    def through(message):
        hit = message.stage == stage and message.sender == 2
        return replace(message, **{field: other}) if hit else message

    run = exchange()
    state, asked, bodies = SCHEME.server_open(run.session)
    while True:
        replies = {party: run.ask(asked, party, body) for party, body in bodies.items()}
        if asked == stage:
            with pytest.raises(BindingError):
                SCHEME.server_step(state, replies | {2: through(replies[2])})
            return
        state, asked, bodies = SCHEME.server_step(state, replies)


def test_a_reply_of_somebody_who_was_not_asked_is_refused():
    run = exchange()
    state, stage, bodies = SCHEME.server_open(run.session)
    reply = run.ask(stage, 0, bodies[0])
    with pytest.raises(MalformedError, match="did not ask it"):
        SCHEME.server_step(state, {9: replace(reply, sender=9)})


# Clients


def upload_request(**changes):
    return replace(Message(RUN, 0, "upload", SERVER, 1, {}), **changes)


def opened():
    return SCHEME.client_open(Session(RUN, 0, tuple(range(N)), PLAN), 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "f" * 32},
        {"round": 1},
        {"stage": "decrypt"},
        {"sender": 3},
        {"receiver": 2},
        {"body": {"x": np.ones(1)}},
    ],
)
def test_a_client_refuses_what_is_bound_elsewhere(changes):
    state, _ = SCHEME.client_step(opened(), upload_request(), ENCODED[1])  # positive control
    assert state.next_stage == "decrypt"
    with pytest.raises(ContradictionError):
        SCHEME.client_step(state, upload_request(), ENCODED[1])
    with pytest.raises(MessageRefused):
        SCHEME.client_step(opened(), upload_request(**changes), ENCODED[1])


def test_a_client_beyond_its_bound_sends_nothing():
    with pytest.raises(RangeRefused):
        SCHEME.client_step(opened(), upload_request(), {name: value * 3 for name, value in ENCODED[1].items()})


def test_no_secret_is_in_a_state_a_message_or_the_scheme_s_text():
    run = exchange()
    run.run()
    secrets = [int(share).to_bytes(64, "little") for share in KEYS.shares.values()] + list(KEYS.signers.values())
    seen = b"".join(value.tobytes() for m in run.recorded for value in m.body.values())
    seen += b"".join(value.tobytes() for state in run.clients.values() for value in pack(state).values())
    assert not any(secret.rstrip(b"\0") in seen for secret in secrets)
    text = repr(SCHEME)
    assert KEYS.shared.fingerprint.hex() in text
    for share in KEYS.shares.values():
        assert str(share) not in text and f"{share:x}" not in text
    assert not any(signer.hex() in text or repr(signer) in text for signer in KEYS.signers.values())


def test_randomness_is_computed_ahead():
    scheme = threshold_paillier(keys=KEYS)
    state = scheme.client_open(Session(RUN, 0, tuple(range(N)), PLAN), 1)
    assert scheme.client_prepare(state) is state
    assert (
        scheme.pool.ready(KEYS.shared.public, "half") == threshold_module.Packing.of(PLAN, scheme.bits).plaintexts > 0
    )
    scheme.client_step(state, upload_request(), ENCODED[1])
    assert scheme.pool.ready(KEYS.shared.public, "half") == 0


# Collusion


@pytest.mark.parametrize("colluders", list(combinations(range(N), T)))
def test_t_holders_open_every_contribution_bit_for_bit_and_fewer_none(colluders):
    run = exchange()
    run.run()
    uploads = {m.sender: m.body for m in run.recorded if m.stage == "upload" and m.receiver == SERVER}
    theirs = replace(KEYS, shares={i: KEYS.shares[i] for i in colluders})
    for client, body in uploads.items():
        for name, value in open_together(theirs, body, PLAN).items():
            np.testing.assert_array_equal(value, ENCODED[client][name])
    fewer = replace(KEYS, shares={i: KEYS.shares[i] for i in colluders[1:]})
    assert open_together(fewer, uploads[0], PLAN) is None


# The plan


def test_the_plan_says_what_will_happen():
    assert isinstance(SCHEME, Aggregation)
    assert isinstance(SCHEME, InsecureThresholdPaillier)
    assert PLAN.stages == ("upload", "decrypt")
    assert PLAN.threshold == 3
    for words in ("any 3 of the 5", "the server with 1 of them", "one client that alters", "the dealer"):
        assert words in PLAN.open_to
    said = " ".join(PLAN.assumptions)
    for words in ("A dealer drew the keys", "Fewer than 3 of the 5", "INSECURE", "256 bits"):
        assert words in said
    assert "not signed" not in said
    assert "this very process deals" not in said


def test_upload_bytes_are_what_a_client_that_decrypts_sends():
    run = exchange()
    run.run()
    sent = sum(v.nbytes for m in run.recorded if m.sender == 0 for v in m.body.values())
    assert sent == PLAN.upload_bytes


def test_defaults_and_declarations():
    real = chain(threshold_paillier(randomness="short")).plan(LAYOUT, 10)
    assert real.threshold == 7
    assert "7 of the 10" in real.open_to
    said = " ".join(real.assumptions)
    assert "EXTRA" in said and "this very process deals" in said and "INSECURE" not in said


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: threshold_paillier(randomness="quarter"), ConfigError, "randomness"),
        (lambda: threshold_paillier(bits=1024), ConfigError, "at least 2048"),
        (lambda: threshold_paillier(2, 4), ConfigError, "at least 3"),
        (lambda: threshold_paillier(4, keys=KEYS), ConfigError, "threshold must be 3, .*got 4"),
        (lambda: threshold_paillier(holders=4, keys=KEYS), ConfigError, "holders must be 5, .*got 4"),
        (lambda: ThresholdPaillier(3, 5, bits=512, keys=KEYS), ConfigError, "insecure keys"),
        (lambda: chain(SCHEME).plan(LAYOUT, 2), PlanError, "cannot reach the threshold 3"),
        (lambda: chain(threshold_paillier()).plan(LAYOUT, 1), ConfigError, "at least 2"),
        (lambda: chain(threshold_paillier(3)).plan(LAYOUT, 6), PlanError, "at least 4"),
        (lambda: chain(threshold_paillier()).plan(LAYOUT, 65), PlanError, "N <= 64"),
        (lambda: SCHEME.server_open(Session(RUN, 0, tuple(range(6)), PLAN)), ConfigError, "exceeds the planned"),
        (lambda: SCHEME.server_open(Session(RUN, 0, (0, 1, 2, 9), PLAN)), ConfigError, r"\[9\] were dealt no identity"),
    ],
)
def test_what_cannot_be_kept_is_refused(make, kind, says):
    with pytest.raises(kind, match=says):
        make()
