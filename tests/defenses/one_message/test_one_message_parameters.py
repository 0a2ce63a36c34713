"""The parameters keep to the published table, and the encodings to their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed import Layout, TensorSpec
from securefed._sampling.random_stream import SecureRandomStream
from securefed.defenses import chain, quantise
from securefed.defenses._one_message import encryption, ring
from securefed.defenses._one_message.parameters import (
    DEGREE,
    DEVIATION,
    HOMOMORPHIC_STANDARD,
    MODULUS,
    MODULUS_BITS,
    TABLE_DEVIATION,
    Encoding,
    smoothing,
)
from securefed.defenses._one_message.plaintexts import Placing
from securefed.errors import PlanError, RangeRefused

CLIENTS = (3, 20, 1000, 10_000, 60_000)


def test_modulus_and_degree_stand_in_the_published_table() -> None:
    assert HOMOMORPHIC_STANDARD[DEGREE] >= MODULUS_BITS
    assert 2**MODULUS_BITS > MODULUS


def test_what_the_opened_sums_leave_is_what_the_table_asks_for() -> None:
    """With two honest clients: half of the deviation; with ternary keys it would be no Gaussian at all."""
    left = DEVIATION / 2
    assert left >= TABLE_DEVIATION
    assert left >= math.sqrt(2) * smoothing(2**26)
    assert left * 0.97 < math.sqrt(2) * smoothing(2**26)  # the condition is near: a smaller deviation fails it


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("entries", [1, 10**5, 10**7])
@pytest.mark.parametrize("ring_", [20, 64])
def test_errors_stay_below_half_the_scale_and_sums_below_a_quarter_of_the_modulus(
    clients: int, entries: int, ring_: int
) -> None:
    found = Encoding.of(clients, entries, ring_)
    deviation = DEVIATION * math.sqrt(clients)
    assert 2**found.scale_bits >= 2 * 7.5 * deviation
    largest = 2.0 ** (found.scale_bits - 1)
    assert 2 * entries * math.exp(-(largest**2) / (2 * deviation**2)) <= 2.0**-40
    q = math.prod(found.moduli)
    assert 2 ** (found.value_bits - 1 + found.scale_bits) + 2 ** (found.scale_bits - 1) < q // 2
    assert q.bit_length() <= HOMOMORPHIC_STANDARD[found.degree]
    assert found.value_bits >= ring_
    assert clients * 2**found.limb_bits <= 2 ** (found.value_bits - 1)


def test_ten_thousand_clients_have_38_bits_a_sum_and_too_many_clients_are_refused() -> None:
    assert Encoding.of(10**4, 10**5, 32).value_bits >= 38
    with pytest.raises(PlanError, match=r"leave -?\d bits of a coefficient of 54 bits"):
        Encoding.of(2**28, 10, 8)


def plan_of(rings: list[int], clients: int, entries: int = 7):
    """A plan with a tensor of each ring."""
    layout = Layout(tuple(TensorSpec(f"t{k}", (entries,), 1.0 + k, 64) for k in range(len(rings))))
    plan = chain(quantise()).plan(layout, clients)
    forced = [chain(quantise(ring_)).plan(layout, clients).tensors[k] for k, ring_ in enumerate(rings)]
    return type(plan)(plan.defense, clients, tuple(forced), plan.wanted_rings)


RINGS = st.lists(st.sampled_from([8, 12, 20, 21, 32, 64]), min_size=1, max_size=3)


@given(RINGS, st.integers(3, 12), st.integers(1, 9), st.randoms(use_true_random=False))
def test_sums_of_placed_integers_read_as_the_sums(rings: list[int], clients: int, entries: int, random) -> None:
    """Up to the largest and smallest integers whose sum the ring holds, however it is split over the clients."""
    plan = plan_of(rings, clients, entries)
    placing = Placing.of(plan)
    totals, summed = np.zeros(placing.size, np.int64), {}
    for tensor in plan.tensors:
        most = 2 ** (tensor.ring - 1) - 1
        rows = np.array([[random.choice([-1, 0, 1]) * random.randrange(most // clients + 1) for _ in range(entries)]
                         for _ in range(clients)])  # fmt: skip
        rows[:, 0] = 0
        rows[random.randrange(clients), 0] = random.choice([most, -most - 1])
        summed[tensor.name] = rows
    for client in range(clients):
        totals += placing.place({name: rows[client] for name, rows in summed.items()})
    if placing.encoding.primes == 1:
        assert np.abs(totals).max(initial=0) <= 2 ** (placing.encoding.value_bits - 1)
    read = placing.read(totals)
    for name, rows in summed.items():
        assert np.array_equal(read[name], rows.sum(axis=0))


def test_narrow_rings_share_a_coefficient_and_wide_ones_take_a_second_prime() -> None:
    one, two = (Placing.of(plan_of(rings, 20, 100)) for rings in ([8, 20, 32], [8, 20, 32, 64]))
    assert [one.coefficients(t) for t in one.tensors] == [20, 50, 100]
    assert [two.coefficients(t) for t in two.tensors] == [15, 34, 100, 100]
    assert (one.encoding.primes, two.encoding.primes) == (1, 2)


@pytest.mark.parametrize("rings", [[8], [20, 32], [64], [8, 64]])
def test_no_entry_but_the_indicators_is_cut_as_sums_of_pieces_would_show_carries(rings: list[int]) -> None:
    """Of 1 + 1 and 2 + 0, both 2, pieces of one bit sum to 2 and 0, or to 0 and 1."""
    plan = plan_of(rings, 20)
    placing = Placing.of(plan)
    assert all(placing.limbs(tensor.ring) == 1 for tensor in plan.tensors)
    rng = np.random.default_rng(0)
    parts = {t.name: rng.integers(-(2 ** (t.ring - 3)), 2 ** (t.ring - 3), (2, *t.shape)) for t in plan.tensors}
    moved = {name: both + np.array([1, -1]).reshape(-1, *[1] * (both.ndim - 1)) * 7 for name, both in parts.items()}
    sums = [
        sum(placing.place({name: both[client] for name, both in side.items()}) for client in (0, 1))
        for side in (parts, moved)
    ]
    assert np.array_equal(*sums)  # all coefficients of the sum, not only what is read from them


def test_an_entry_beyond_its_ring_is_refused() -> None:
    plan = plan_of([32], 3)
    place = Placing.of(plan).place
    place({"t0": np.full(7, 2**31 - 1)})
    with pytest.raises(RangeRefused, match="does not fit its ring of 32 bits"):
        place({"t0": np.full(7, 2**31)})


@pytest.mark.parametrize("clients", [3, 40])
@pytest.mark.parametrize("width", [32, 64])
def test_a_sum_decrypts_and_a_wrong_key_or_context_gives_noise(clients: int, width: int) -> None:
    plan = plan_of([width], clients, 3000)
    placing, stream, context = Placing.of(plan), SecureRandomStream(), b"d" * 32
    rng = np.random.default_rng(0)
    most = (2 ** (width - 1) - 1) // clients
    rows = rng.integers(-most, most + 1, (clients, 3000))
    rows[:, 0], rows[:, 1] = most, -most
    totals: tuple[np.ndarray, ...] = ()
    keys = np.zeros(placing.encoding.degree, np.int64)
    for row in rows:
        key = encryption.draw_key(placing.encoding, stream)
        totals = encryption.added(totals, encryption.encrypt({"t0": row}, placing, key, context, stream))
        keys += key
    assert np.array_equal(encryption.decrypt(totals, placing, ring.residues(keys), context)["t0"], rows.sum(axis=0))
    for key, told in ((keys + (np.arange(keys.size) == 5), context), (keys, b"e" * 32)):
        noise = encryption.decrypt(totals, placing, ring.residues(key), told)["t0"]
        assert np.mean(noise == rows.sum(axis=0)) < 0.01


def test_the_errors_in_a_sum_have_the_deviation_that_they_are_planned_with() -> None:
    """4096 errors: their standard deviation has a standard error of 1 %. Six of them; 3.2 and 9 are far outside."""
    plan = plan_of([32], 3, 4096)
    placing, stream = Placing.of(plan), SecureRandomStream()
    key = encryption.draw_key(placing.encoding, stream)
    zero = {"t0": np.zeros(4096, np.int64)}
    parts = encryption.encrypt(zero, placing, key, b"d" * 32, stream)
    y = ring.joined(*parts).reshape(placing.blocks, DEGREE)
    mask = ring.product(encryption.public_polynomials(placing, b"d" * 32, 0), key)
    errors = ring.centred(ring.residues(y - mask)).reshape(-1)
    assert abs(errors.std() / DEVIATION - 1) < 6 / math.sqrt(2 * 4096)
    assert abs(key.std() / DEVIATION - 1) < 6 / math.sqrt(2 * DEGREE)
