"""Clients that sit out under encryption: their sums are uniform, and show one bit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from securefed import SERVER, Layout, Message, TensorSpec, chain
from securefed._messages import KEY_HOLDER
from securefed.defenses import KeyHolder, UploadContext, ckks, threshold_paillier
from securefed.defenses._base import INDICATOR, some_client_out
from securefed.defenses._homomorphic import InsecurePaillier, LatticeKeyHolder, cipher, insecure_deal
from securefed.defenses._homomorphic import lattice as lattice_module
from securefed.defenses._homomorphic import lattice_ring as ring
from securefed.defenses._homomorphic.packing import Packing, unpack_sum
from securefed.errors import ContradictionError, MessageRefused, RangeRefused
from tests.defenses.paillier import KEY, LAYOUT, RUN, Exchange

N, OUT = 4, 2
SCHEMES = {
    "paillier": (InsecurePaillier(), lambda: KeyHolder(KEY)),
    "threshold": (threshold_paillier(keys=insecure_deal(3, N)), lambda: None),
    "ckks": (ckks(), LatticeKeyHolder),
}
FALSE_ALARM = 1e-9


def values(layout, seed):
    rng = np.random.default_rng(seed)
    return {spec.name: rng.uniform(-spec.bound, spec.bound, spec.shape) for spec in layout}


def exchange(name, out=(), layout=LAYOUT, **kwargs):
    scheme, holder = SCHEMES[name]
    defense = chain(scheme)
    plan = defense.plan(layout, N)
    encoded = {c: None if c in out else defense.encode(values(layout, c), plan) for c in range(N)}
    return Exchange(**({"scheme": scheme, "plan": plan, "encoded": encoded, "holder": holder()} | kwargs))


def fits(sample, distribution):
    """Kolmogorov-Smirnov, with Dvoretzky, Kiefer and Wolfowitz's bound (Massart 1990) on a false alarm."""
    distance = stats.kstest(sample, distribution).statistic
    return distance <= np.sqrt(np.log(2 / FALSE_ALARM) / (2 * len(sample)))


@pytest.mark.parametrize("name", SCHEMES)
def test_the_sum_shows_that_somebody_was_out_and_nothing_else(name):
    for out in ((OUT,), (0, 3), tuple(range(N))):
        run = exchange(name, out)
        aggregate = run.run()
        assert aggregate.survivors == tuple(range(N))
        assert not run.refused
        assert some_client_out(aggregate.total, run.session.plan)
        assert (aggregate.total[INDICATOR] == 1).all()
        assert not any(aggregate.total[name].any() for name in LAYOUT.names)
    run = exchange(name)  # positive control
    total = run.run().total
    assert not some_client_out(total, run.session.plan)
    assert all(total[name].any() for name in LAYOUT.names)


@pytest.mark.parametrize("name", SCHEMES)
def test_nothing_but_the_values_tells_who_sat_out(name):
    def sizes(run):
        run.run()
        return [(m.stage, m.sender, {k: (v.dtype, v.shape) for k, v in m.body.items()}) for m in run.recorded]

    assert sizes(exchange(name, (OUT,))) == sizes(exchange(name))


def test_lengths_of_lattice_ciphertexts_do_not_tell_who_sat_out():
    """Each is a padded field that begins with its length; SEAL compresses, so the length could tell."""
    lengths = {False: set(), True: set()}
    for _ in range(3):
        run = exchange("ckks", (OUT,), Layout((TensorSpec("w", (20_000,), 1.0),)))
        run.run()
        for message in (m for m in run.recorded if m.stage == "upload" and m.receiver == SERVER):
            rows = message.body["ciphertexts"]
            lengths[message.sender == OUT] |= {row[:4].tobytes() for row in rows}
    assert lengths[True] == lengths[False]


@pytest.mark.parametrize("name", SCHEMES)
def test_all_checks_of_a_request_come_before_the_contribution(name):
    run = exchange(name)
    scheme, state = run.scheme, run.clients[1]
    body = {} if run.holder is None or name == "threshold" else run.holder.public_body()
    request, told = Message(RUN, 0, "upload", SERVER, 1, body), UploadContext(b"a" * 32, b"b" * 32)
    accepted = scheme.client_accept(state, request, told)
    for wrong in ({"more": np.zeros(3)}, body | {"more": np.zeros(3)}):
        with pytest.raises(MessageRefused):
            scheme.client_accept(state, Message(RUN, 0, "upload", SERVER, 1, wrong), told)
    for stage in ("upload", "contribute", "decrypt"):  # while it computes it answers nothing
        with pytest.raises(MessageRefused):
            scheme.client_accept(accepted, Message(RUN, 0, stage, SERVER, 1, body), told)
        with pytest.raises(MessageRefused):
            scheme.client_step(accepted, Message(RUN, 0, stage, SERVER, 1, body), run.encoded[1])
    far = run.encoded[1] | {"c": run.encoded[1]["c"] * 1e6 + 10**9}
    far["c"] = far["c"].astype(run.encoded[1]["c"].dtype)
    with pytest.raises(RangeRefused):
        scheme.client_upload(accepted, far)
    done, _ = scheme.client_upload(accepted, None)  # the same state sits out
    with pytest.raises(ContradictionError):
        scheme.client_accept(done, request, told)


# Uniform


def opened_integers(out, layout):
    run = exchange("paillier", out, layout)
    run.run()
    asked = next(m for m in run.recorded if m.stage == "decrypt" and m.receiver == KEY_HOLDER).body["ciphertexts"]
    numbers = cipher.from_wire(asked, None, KEY.public.ciphertext_bytes, SERVER)
    return np.array([float(m) for m in run.holder.decrypt_upload(numbers)]) / float(KEY.public.n)


def test_the_sum_with_a_client_that_sat_out_is_uniform_below_the_modulus():
    layout = Layout((TensorSpec("w", (15 * 800,), 1.3),))
    assert fits(opened_integers((OUT,), layout), "uniform")
    assert not fits(opened_integers((), layout), "uniform")  # positive controls: all in, and uniform in the slots alone
    plan = chain(InsecurePaillier()).plan(layout, N)
    narrow = Packing.of(plan, 512).uniform(2**510)
    assert not fits(np.array([float(m) for m in narrow]) / float(KEY.public.n), "uniform")


def opened_slots(out, layout):
    run = exchange("ckks", out, layout)
    run.run()
    asked = next(m for m in run.recorded if m.stage == "decrypt" and m.receiver == KEY_HOLDER).body["ciphertexts"]
    return np.array([vector.decrypt() for vector in run.holder._vectors(asked, SERVER)]).reshape(-1)


def test_the_sum_with_a_client_that_sat_out_is_uniform_in_the_ring():
    """A slot adds the real parts of 8192 uniform coefficients at roots of unity: normal, sd q sqrt(n / 24) / scale."""
    layout = Layout((TensorSpec("w", (3 * ring.SLOTS - 1,), 1.3),))
    context = LatticeKeyHolder()._context
    q = float(np.prod([float(prime) for prime in ring.moduli(context)]))
    sd = q * np.sqrt(ring.DEGREE / 24) / lattice_module.scale(N)
    slots = opened_slots((OUT,), layout)
    assert fits(slots, stats.norm(0, sd).cdf)
    assert not any(fits(slots, stats.norm(0, wrong * sd).cdf) for wrong in (1.25, 0.8))
    assert not fits(opened_slots((), layout), stats.norm(0, sd).cdf)


@pytest.mark.parametrize("bound", [3, 2**60 - 2**14 + 1, 2**59 + 1])
def test_residues_are_uniform_below_their_prime(bound):
    found = ring._uniform(bound, 40_000)
    assert found.shape == (40_000,)
    assert found.max() < bound
    if bound == 3:
        assert stats.chisquare(np.bincount(found.astype(int))).pvalue > FALSE_ALARM
        return
    assert fits(found / float(bound), "uniform")
    assert not fits(found / float(bound) * 0.95, "uniform")


# A sum that cannot be one


def test_any_plaintexts_open_without_an_error():
    """What a sum of garbage unpacks to: out of range, padding that is not zero, too long, or an indicator alone."""
    plan = chain(InsecurePaillier()).plan(Layout((TensorSpec("w", (3,), 1.3),)), N)
    packing = Packing.of(plan, 512)
    good = [N * m for m in packing.pack({"w": np.zeros(3, np.int64), INDICATOR: np.zeros((), np.int64)})]
    assert not some_client_out(unpack_sum(packing, plan, good, N, SERVER), plan)  # positive control
    spoilt = {
        "out of range": 2**32 - 1 - good[0] % 2**32,
        "padding": 1 << 200,
        "too long": 1 << 500,
        "indicator": 1 << 96,
    }
    for what, change in spoilt.items():
        total = unpack_sum(packing, plan, [good[0] + change], N, SERVER)
        assert some_client_out(total, plan), what
        assert not total["w"].any()


@pytest.mark.parametrize("change", ["an entry", "a slot beyond the entries", "the indicator"])
def test_a_lattice_sum_beyond_its_clients_is_nobodys(change):
    run = exchange("ckks")
    plan = run.session.plan
    slots = np.zeros((1, ring.SLOTS))
    body = {"plaintexts": slots}
    assert not some_client_out(lattice_module._unpack_sum(plan, body, N, SERVER), plan)  # positive control
    slots[0, 5] = -N
    assert not some_client_out(lattice_module._unpack_sum(plan, body, N, SERVER), plan)
    last = sum(tensor.size for tensor in plan.tensors) - 1
    where, value = {
        "an entry": (5, N * 1.01),
        "a slot beyond the entries": (4000, -1e30),
        "the indicator": (last, 0.1),
    }[change]
    slots[0, where] = value
    total = lattice_module._unpack_sum(plan, body, N, SERVER)
    assert some_client_out(total, plan)
    assert not any(total[name].any() for name in LAYOUT.names)
