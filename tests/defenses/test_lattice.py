"""CKKS by TenSEAL: sums within the planned error, the flood over the scheme's noise, and what is refused."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from securefed import SERVER, Layout, Message, TensorSpec, chain
from securefed._messages import KEY_HOLDER
from securefed.defenses import Aggregation, Session, ckks
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import CKKS, LatticeKeyHolder
from securefed.defenses._homomorphic import lattice as module
from securefed.defenses._homomorphic import lattice_wire as wire
from securefed.defenses._homomorphic.lattice_flood import flood_bits, noise_bound
from securefed.errors import (
    ConfigError,
    ContradictionError,
    MalformedError,
    MessageRefused,
    PlanError,
    RangeRefused,
    TooFewSurvivors,
)
from tests.defenses.paillier import RUN, Exchange, tamper

N = 4
LAYOUT = Layout((TensorSpec("w", (5000,), 1.3), TensorSpec("b", (), 4.0, 64)))  # two ciphertexts
SCHEME = ckks()
DEFENCE = chain(SCHEME)
PLAN = DEFENCE.plan(LAYOUT, N)
HOLDER = LatticeKeyHolder()


def contribution(seed):
    rng = np.random.default_rng(seed)
    return DEFENCE.encode({s.name: rng.uniform(-s.bound, s.bound, s.shape) for s in LAYOUT}, PLAN)


RAW = {client: contribution(client) for client in range(N)}


@pytest.fixture
def exchange():
    def make(**kwargs):
        return Exchange(**({"scheme": ckks(), "plan": PLAN, "encoded": RAW, "holder": LatticeKeyHolder()} | kwargs))

    return make


def exact(survivors):
    return {name: sum(RAW[c][name] for c in survivors) for name in RAW[0]}


def errors(total, survivors=range(N)):
    return {name: float(np.abs(total[name] - value).max()) for name, value in exact(survivors).items()}


def test_the_sum_is_within_the_planned_error(exchange):
    found = errors(exchange().run().total)
    for tensor in PLAN.tensors:
        assert found.get(tensor.name, 0.0) <= tensor.error
    assert PLAN.tensors[0].error < 1e-9 * PLAN.tensors[0].bound


def test_the_schemes_own_noise_is_far_below_the_flood_and_within_its_bound(exchange):
    """Measured at a scale of 2^50, where doubles show it: sd 1365 sqrt(N) units of slot noise, as the module says.

    Each slot has a variance of its own, spread over the slots as an exponential law. Six sums: relative standard error
    sqrt(4 / (6 * 4096)) / 2 = .64 %, and .4 % for the secret's length. 6.6 % is more than eight; 3/2 and 2/3 are not.
    """
    tenseal = module.library()
    units = 2.0**50
    context = HOLDER._context.copy()
    context.global_scale = units
    x = np.random.default_rng(0).uniform(-1, 1, module.SLOTS)

    def summed():
        total = sum((tenseal.ckks_vector(context, x) for _ in range(N - 1)), tenseal.ckks_vector(context, x))
        return (np.array(total.decrypt()) - N * x) * units

    noise = np.stack([summed() for _ in range(6)])
    sd = noise_bound(N) / 10
    assert np.abs(noise).max() <= 3.5 * noise_bound(N)
    assert abs(noise.std() / sd - 1) < 0.066
    assert not any(abs(noise.std() / wrong - 1) < 0.066 for wrong in (1.5 * sd, sd / 1.5))


def test_without_the_flood_the_answer_is_a_thousand_times_more_precise(exchange, monkeypatch):
    """What the key holder's restraint costs; and the control that the flood is where the error comes from."""
    monkeypatch.setattr(module, "flood_bits", lambda count: 61)
    found = errors(exchange().run().total)
    assert found["w"] < 1e-4 * PLAN.tensors[0].error


def test_two_answers_for_one_ciphertext_differ_by_their_floods():
    run = Exchange(scheme=SCHEME, plan=PLAN, encoded=RAW, holder=HOLDER, number=90)
    run.run()
    request = next(m for m in run.recorded if m.stage == "decrypt" and m.sender == SERVER)
    first, second = (
        HOLDER.opened(request.body["ciphertexts"], N, SERVER)["plaintexts"].reshape(-1)[:5000] for _ in range(2)
    )
    sd = 2.0 ** flood_bits(N) * np.sqrt(module.DEGREE / 24) / module.scale(N)
    # Normal, of variance 2 sd^2; the mean square of 5000 has a relative sd of 2 %: six of them.
    assert abs(((first - second) ** 2).mean() / (2 * sd**2) - 1) < 0.12


@pytest.mark.parametrize("lost", [(), (0,), (3,), (0, 1), (0, 1, 2, 3)])
def test_dropouts(exchange, lost):
    run = exchange(lose=lambda stage, party: stage == "upload" and party in lost)
    left = [c for c in range(N) if c not in lost]
    if len(left) < 3:
        with pytest.raises(TooFewSurvivors, match="nothing opened"):
            run.run()
        return
    aggregate = run.run()
    assert aggregate.survivors == tuple(left)
    assert errors(aggregate.total, left)["w"] <= PLAN.tensors[0].error


@pytest.mark.parametrize("stage", ["key", "decrypt"])
def test_a_silent_key_holder_voids_the_round(exchange, stage):
    with pytest.raises(TooFewSurvivors, match="did not answer"):
        exchange(lose=lambda s, party: s == stage and party == KEY_HOLDER).run()


@pytest.mark.parametrize("sign", [1, -1])
def test_every_client_at_its_bound_does_not_wrap(exchange, sign):
    raw = {c: DEFENCE.encode({s.name: np.full(s.shape, sign * s.bound) for s in LAYOUT}, PLAN) for c in range(N)}
    total = exchange(encoded=raw).run().total
    np.testing.assert_allclose(total["w"], sign * N * 1.3, atol=PLAN.tensors[0].error)
    beyond = raw[0] | {"w": np.full(5000, 1.3000001)}
    with pytest.raises(RangeRefused, match="'w'"):
        exchange(encoded=raw | {0: beyond}).run()
    with pytest.raises(RangeRefused):
        exchange(encoded=raw | {0: beyond | {"w": np.full(5000, np.nan)}}).run()


def test_server_and_key_holder_together_open_every_contribution(exchange):
    run = exchange()
    run.run()
    for message in (m for m in run.recorded if m.stage == "upload" and m.receiver == SERVER):
        slots = np.array([vector.decrypt() for vector in run.holder._vectors(message.body["ciphertexts"], SERVER)])
        opened = module._unpack(PLAN, {"plaintexts": slots}, SERVER)
        np.testing.assert_allclose(opened["w"], RAW[message.sender]["w"], atol=1e-12)


def test_messages_have_sizes_that_depend_on_the_plan_alone(exchange):
    def sizes(encoded):
        run = exchange(encoded=encoded)
        run.run()
        return [(m.stage, m.sender, {k: v.nbytes for k, v in m.body.items()}) for m in run.recorded]

    zeros = {c: {name: np.zeros_like(value) for name, value in RAW[c].items()} for c in range(N)}
    assert sizes(zeros) == sizes(RAW)
    assert [b for stage, sender, b in sizes(zeros) if stage == "upload" and sender >= 0] == [
        {"ciphertexts": PLAN.upload_bytes}
    ] * N


# Tampering


UPLOADS = {
    "cut": lambda b: {"ciphertexts": b["ciphertexts"][:, :-1]},
    "a chunk less": lambda b: {"ciphertexts": b["ciphertexts"][:1]},
    "zeros": lambda b: {"ciphertexts": np.zeros_like(b["ciphertexts"])},
    "noise": lambda b: {"ciphertexts": np.full_like(b["ciphertexts"], 7)},
    "padding": lambda b: {"ciphertexts": np.where(np.arange(b["ciphertexts"].shape[1]) < 262_399, b["ciphertexts"], 1)},
    "floats": lambda b: {"ciphertexts": b["ciphertexts"].astype(float)},
    "another field": lambda b: b | {"more": np.zeros(1)},
    "none": lambda b: {},
}


@pytest.mark.parametrize(("name", "change"), UPLOADS.items())
def test_a_malformed_upload_is_refused_by_name_and_the_rest_is_summed(exchange, name, change):
    run = exchange(through=tamper("upload", 2, change))
    assert errors(run.run().total, (0, 1, 3))["w"] <= PLAN.tensors[0].error
    assert set(run.refused) == {2}
    assert isinstance(run.refused[2], MalformedError)


def test_an_upload_of_another_scale_is_refused(exchange):
    nine = Session(RUN, 0, tuple(range(N)), DEFENCE.plan(LAYOUT, 9))
    request = Message(RUN, 0, "upload", SERVER, 2, HOLDER.public_body())
    _, body = ckks().client_step(SCHEME.client_open(nine, 2), request, RAW[2])
    run = exchange(holder=HOLDER, number=91, through=tamper("upload", 2, lambda b: body))
    run.run()
    assert "scale is not the plan's" in str(run.refused[2])


CONTEXTS = {
    "cut": lambda b: {"context": b["context"][:-1]},
    "zeros": lambda b: {"context": np.zeros_like(b["context"])},
    "noise": lambda b: {"context": np.full_like(b["context"], 9)},
    "none": lambda b: {},
    "secret": lambda b: {"context": secret_context()},
    "weaker": lambda b: {"context": foreign(4096, (36, 36, 36))},
    "larger": lambda b: {"context": foreign(8192, (60, 60, 50))},
}


def foreign(degree, primes):
    tenseal = module.library()
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=degree, coeff_mod_bit_sizes=list(primes))
    context.global_scale = 1.0
    context.make_context_public()
    return wire.padded(wire.serialized(context, key=True), wire.CONTEXT_BYTES)


def secret_context():
    data = HOLDER._context.serialize(
        save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
    )
    return wire.padded(data, wire.CONTEXT_BYTES)


@pytest.mark.parametrize(("name", "change"), CONTEXTS.items())
def test_a_context_that_is_not_ours_is_refused_by_server_and_client(exchange, name, change):
    run = exchange(through=tamper("key", KEY_HOLDER, change))
    with pytest.raises(TooFewSurvivors):
        run.run()
    assert isinstance(run.refused[KEY_HOLDER], MalformedError)
    state = SCHEME.client_open(Session(RUN, 5, tuple(range(N)), PLAN), 1)
    with pytest.raises(MalformedError):
        SCHEME.client_step(state, Message(RUN, 5, "upload", SERVER, 1, change(HOLDER.public_body())), RAW[1])


def test_another_key_later_in_the_run_is_refused():
    scheme = ckks()

    def upload(holder, number, memory=np.zeros(0, np.uint8)):  # noqa: B008 - never written
        state = scheme.client_remind(scheme.client_open(Session(RUN, number, tuple(range(N)), PLAN), 1), memory)
        return scheme.client_step(state, Message(RUN, number, "upload", SERVER, 1, holder.public_body()), RAW[1])

    state, _ = upload(HOLDER, 0)
    memory = scheme.client_memory(state)
    upload(HOLDER, 1, memory)  # positive controls
    upload(LatticeKeyHolder(), 2)
    with pytest.raises(ContradictionError, match="another public key"):
        upload(LatticeKeyHolder(), 2, memory)
    with pytest.raises(MessageRefused):
        scheme.client_step(state, Message(RUN, 0, "upload", SERVER, 1, HOLDER.public_body()), RAW[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda b: {},
        lambda b: {"plaintexts": b["plaintexts"][:1]},
        lambda b: {"plaintexts": b["plaintexts"].astype(np.float32)},
        lambda b: {"plaintexts": b["plaintexts"] * np.nan},
    ],
)
def test_a_malformed_decryption_is_refused(exchange, change):
    run = exchange(through=tamper("decrypt", KEY_HOLDER, change))
    with pytest.raises(TooFewSurvivors):
        run.run()
    assert isinstance(run.refused[KEY_HOLDER], MalformedError)


def test_the_key_holder_answers_once_and_for_enough_survivors():
    run = Exchange(scheme=SCHEME, plan=PLAN, encoded=RAW, holder=HOLDER, number=92)
    run.run()
    request = next(m for m in run.recorded if m.stage == "decrypt" and m.sender == SERVER)
    with pytest.raises(ContradictionError, match="decrypted before"):
        HOLDER.handle(request)
    HOLDER.handle(Message(RUN, 93, "key", SERVER, KEY_HOLDER, {}))
    with pytest.raises(ContradictionError, match="needs 2"):
        HOLDER.handle(replace(request, round=93, body=request.body | {"survivors": np.asarray(1, np.int64)}))
    assert HOLDER.handle(replace(request, round=93))  # positive control


# The plan


def test_the_plan_says_what_will_happen():
    assert isinstance(SCHEME, Aggregation)
    assert PLAN.stages == ("key", "upload", "decrypt")
    assert PLAN.upload_bytes == 2 * 262_400
    assert PLAN.open_to == "the server together with the key holder"
    assert not PLAN.steps
    assert all(tensor.max_clients == 4 for tensor in PLAN.tensors)
    said = " ".join(PLAN.assumptions)
    for words in ("approximate", "Ring learning with errors", "2^-40", "honest but curious"):
        assert words in said
    assert PLAN.defense == "ckks(8192)"


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: ckks(threshold=1), ConfigError, "at least 2"),
        (lambda: chain(ckks()).plan(LAYOUT, 1), PlanError, "threshold 2"),
        (lambda: chain(ckks(threshold=5)).plan(LAYOUT, 4), PlanError, "threshold 5"),
        (lambda: chain(ckks()).plan(Layout((TensorSpec("x", (2,)),)), 3), PlanError, "needs a bound"),
        (lambda: chain(Quantise(), ckks()).plan(LAYOUT, 4), PlanError, "floating point"),
        (lambda: SCHEME.server_open(Session(RUN, 0, tuple(range(5)), PLAN)), ConfigError, "exceeds the planned"),
    ],
)
def test_what_cannot_be_kept_is_refused(make, kind, says):
    with pytest.raises(kind, match=says):
        make()


def test_without_tenseal_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    module.library.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'securefed\[lattice\]'"):
        CKKS()
    monkeypatch.undo()
    module.library.cache_clear()
    assert CKKS().threshold is None
