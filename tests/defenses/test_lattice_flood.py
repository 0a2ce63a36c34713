"""The key holder's flood: integers in the ring, added before anything is rounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from securefed import Layout, TensorSpec, chain
from securefed.defenses import ckks
from securefed.defenses._homomorphic import LatticeKeyHolder
from securefed.defenses._homomorphic import lattice_flood as flood
from securefed.defenses._homomorphic.lattice import scale
from securefed.defenses._homomorphic.lattice_ring import DEGREE, SLOTS, library, moduli
from tests.defenses.paillier import Exchange

HOLDER = LatticeKeyHolder()
CONTEXT = HOLDER._context.copy()
PRIMES = moduli(CONTEXT)
FALSE_ALARM = 1e-9


def encrypted(values, clients, context=CONTEXT):
    """A sum of fresh encryptions of `values` by each client."""
    vectors = [library().ckks_vector(context, row, scale(clients)) for row in values]
    total = vectors[0]
    for vector in vectors[1:]:
        total = total + vector
    return total


def coefficients(vector, units):
    """Of the polynomial that a ciphertext decrypts to, where they are small: integers (DEGREE,)."""
    seal, inner = library().sealapi, CONTEXT.seal_context().data
    plain = seal.Plaintext()
    seal.Decryptor(inner, CONTEXT.secret_key().data).decrypt(vector.ciphertext()[0], plain)
    slots = np.array(seal.CKKSEncoder(inner).decode_complex(plain)) * units
    at_roots, power = np.zeros(DEGREE, complex), 1  # slot j: at e^(i pi 3^j / n); the other half are conjugates
    for value in slots:
        at_roots[power // 2], at_roots[(2 * DEGREE - power) // 2] = value, value.conjugate()
        power = power * 3 % (2 * DEGREE)
    found = np.fft.fft(at_roots) / DEGREE * np.exp(-1j * np.pi * np.arange(DEGREE) / DEGREE)
    assert np.abs(found - np.rint(found.real)).max() < 1e-3
    return np.rint(found.real).astype(np.int64)


def residues(integers):
    return np.array([[int(value) % prime for value in integers] for prime in PRIMES], np.uint64)


def opened(vector, integers, monkeypatch):
    monkeypatch.setattr(flood, "_flood", lambda context, bits: residues(integers))
    return flood.open_flooded(CONTEXT, [vector], 0)


def fits(sample, distribution):
    distance = stats.kstest(sample, distribution).statistic
    return distance <= np.sqrt(np.log(2 / FALSE_ALARM) / (2 * len(sample)))  # Massart 1990


def rounded_apart(values, clients):
    """The share of slots that two encryptions under a fresh key round to other steps: .32 +- .04 in 60 draws."""
    context = LatticeKeyHolder()._context
    step = 2.0**70 * flood.noise_bound(clients) / scale(clients) / (2**40 + 1)
    first, second = (np.array(encrypted(values, clients, context).decrypt()) for _ in range(2))
    return (np.rint(first / step) != np.rint(second / step)).mean()


def test_the_answer_is_a_function_of_the_noise_and_the_flood_added_up(monkeypatch):
    """Two encryptions of the same values differ by d; floods that differ by -d make their answers equal, bit for bit.

    So the answers' distributions differ by no more than the floods': sum |d_i| / 2^w. The control is what was done
    before: decode, round to steps, and add the flood then. Rounding ties hung on the noise.
    """
    clients = 2
    values = np.random.default_rng(0).uniform(-1, 1, (clients, SLOTS))
    first, second = encrypted(values, clients), encrypted(values, clients)
    difference = coefficients(first - second, scale(clients))
    assert 0 < np.abs(difference).max() < 1000
    assert np.mean([rounded_apart(values, clients) for _ in range(8)]) > 0.2

    bits = flood.flood_bits(clients)
    drawn = np.random.default_rng(1).integers(-(2**60), 2**60, DEGREE).astype(object) * 2 ** (bits - 61)
    for integers in (np.zeros(DEGREE, object), drawn):
        answer = opened(first, integers, monkeypatch)
        np.testing.assert_array_equal(answer, opened(second, integers + difference.astype(object), monkeypatch))
        far = integers.copy()
        far[7] += 2 ** (bits - 1)  # positive control: another flood is another answer
        assert (answer != opened(first, far, monkeypatch)).mean() > 0.9
    assert np.any(opened(first, np.zeros(DEGREE, object), monkeypatch) != opened(second, np.zeros(DEGREE), monkeypatch))


@pytest.mark.parametrize("clients", [1, 4])
def test_the_noise_has_the_size_that_the_flood_is_reckoned_from(clients):
    """Its root mean square, from the difference of two encryptions: twice the variance. Bound: any ternary secret."""
    values = np.zeros((clients, SLOTS))
    difference = coefficients(encrypted(values, clients) - encrypted(values, clients), scale(clients))
    found = math.sqrt(float((difference.astype(float) ** 2).mean()) / 2)
    expected = math.sqrt(clients * (1 + 2 * DEGREE / 3) / 12)  # two thirds of a ternary secret are not zero
    assert abs(found / expected - 1) < 0.06
    assert found < math.sqrt(clients * (1 + DEGREE) / 12)


@pytest.mark.parametrize("clients", [1, 2, 4, 100, 10_000])
def test_the_flood_is_as_wide_as_the_distance_wants(clients):
    ciphertexts = 2**30 / SLOTS
    shift = ciphertexts * DEGREE * math.sqrt(clients * (1 + DEGREE) / 12)
    assert shift / 2.0 ** flood.flood_bits(clients) <= 2.0**-40 < shift / 2.0 ** (flood.flood_bits(clients) - 1)


def drawn_integers(bits):
    """A flood's integers from their residues, by the Chinese remainder theorem."""
    p, q = PRIMES
    low, high = (row.tolist() for row in flood._flood(CONTEXT, bits))
    found = [a + p * ((b - a) * pow(p, -1, q) % q) for a, b in zip(low, high, strict=True)]
    return [value - p * q if value > p * q // 2 else value for value in found]


@pytest.mark.parametrize("bits", [76, 77, 92])
def test_a_flood_is_uniform_in_all_its_bits(bits):
    integers = drawn_integers(bits)
    assert -(2 ** (bits - 1)) <= min(integers) <= max(integers) < 2 ** (bits - 1)
    parts = np.array([(value + 2 ** (bits - 1)) / 2.0**bits for value in integers])
    assert fits(parts, "uniform")
    assert not fits(parts / 2, "uniform")  # a bit less would be rejected
    for kept in (8, 40, 60, 70):  # the low bits, over the words' border too
        assert fits(np.array([value % 2**kept / 2.0**kept for value in integers]), "uniform")
    assert len(set(integers)) == DEGREE


def test_the_residues_of_the_least_and_the_greatest_flood():
    top = np.array([0, 2**32 - 1], np.uint64), np.array([0, 2**60 - 1], np.uint64)
    found = flood.residues_of(top[1], top[0], 92, PRIMES)
    np.testing.assert_array_equal(found, residues([-(2**91), 2**91 - 1]))


def test_a_sum_differs_from_the_exact_one_by_the_flood_and_within_the_plan():
    """A slot's flood is normal: 8192 uniform terms of sd 2^w / sqrt(12), by cosines whose squares add up to 4096."""
    clients = 4
    layout = Layout((TensorSpec("w", (2 * SLOTS - 1,), 1.3),))
    defense = chain(ckks())
    plan = defense.plan(layout, clients)
    encoded = {
        c: defense.encode({"w": np.random.default_rng(c).uniform(-1.3, 1.3, 2 * SLOTS - 1)}, plan)
        for c in range(clients)
    }
    run = Exchange(scheme=defense.aggregation, plan=plan, encoded=encoded, holder=LatticeKeyHolder())
    wrong = run.run().total["w"] - sum(value["w"] for value in encoded.values())
    assert np.abs(wrong).max() <= plan.tensors[0].error < 1e-9 * 1.3
    sd = 1.3 * 2.0 ** flood.flood_bits(clients) * math.sqrt(DEGREE / 24) / scale(clients)
    assert fits(wrong, stats.norm(0, sd).cdf)
    assert not any(fits(wrong, stats.norm(0, part * sd).cdf) for part in (1.25, 0.8))
