"""Arithmetic modulo q and products of polynomials, against Python's integers."""

from __future__ import annotations

import gmpy2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed._sampling.random_stream import SecureRandomStream
from securefed.defenses._one_message import ring
from securefed.defenses._one_message.parameters import DEGREE, MODULI, MODULUS, MODULUS_BITS

ELEMENTS = st.one_of(
    st.integers(0, MODULUS - 1), st.sampled_from([0, 1, 2, MODULUS - 1, MODULUS - 2, MODULUS // 2, MODULUS // 2 + 1])
)


def exact_product(a: list[int], s: list[int], q: int) -> list[int]:
    """Multiply modulo X^n + 1 and q, by one product of long integers."""
    size = len(a)
    width = 2 * MODULUS_BITS + size.bit_length()
    long = [sum((value % q) << (width * place) for place, value in enumerate(side)) for side in (a, s)]
    both = long[0] * long[1]
    mask = (1 << width) - 1
    rows = [(both >> (width * place)) & mask for place in range(2 * size)]
    return [(rows[k] - rows[k + size]) % q for k in range(size)]


def test_the_moduli_are_the_largest_primes_of_their_bits_for_which_both_rings_split() -> None:
    step = 4 * DEGREE
    primes = [q for q in range(MODULI[1], 2**MODULUS_BITS, step) if gmpy2.is_prime(q, 50)]
    assert MODULI[1] % step == 1
    assert primes == sorted(MODULI)
    assert all(q.bit_length() == MODULUS_BITS for q in MODULI)


@given(st.lists(st.tuples(ELEMENTS, ELEMENTS), min_size=1, max_size=20))
def test_products_and_sums_of_elements_are_exact(pairs: list[tuple[int, int]]) -> None:
    left, right = (np.asarray(side, np.int64) for side in zip(*pairs, strict=True))
    expected = [a * b % MODULUS for a, b in pairs]
    assert ring.multiply(left, right).tolist() == expected
    assert int(ring.dot(left, right)) == sum(expected) % MODULUS


def test_long_dot_products_do_not_wrap() -> None:
    most = np.full(5000, MODULUS - 1, np.int64)
    assert int(ring.dot(most, most)) == 5000 % MODULUS


@given(st.lists(st.integers(-(2**54) + 1, 2**54 - 1), min_size=1), st.integers(1, 45))
def test_shifts_are_products_with_powers_of_two(values: list[int], bits: int) -> None:
    found = ring.residues(ring.shifted(np.asarray(values, np.int64), bits))
    assert found.tolist() == [value * 2**bits % MODULUS for value in values]


@given(st.lists(ELEMENTS, max_size=30))
def test_elements_travel_in_seven_bytes(values: list[int]) -> None:
    given_ = np.asarray(values, np.int64)
    data = ring.to_bytes(given_)
    assert len(data) == 7 * len(values)
    assert ring.from_bytes(data).tolist() == values


def test_sums_of_parts_are_the_parts_of_sums() -> None:
    """As many uploads as the widest plan has, all entries at their largest."""
    parts = [plane.astype(np.uint64) * np.uint64(2**16) for plane in ring.planes(np.full(3, MODULUS - 1, np.int64))]
    assert ring.joined(*parts).tolist() == [(MODULUS - 1) * 2**16 % MODULUS] * 3


@pytest.mark.parametrize(
    "key",
    [
        np.zeros(DEGREE, np.int64),
        np.rint(np.random.default_rng(0).normal(size=DEGREE) * 6.6).astype(np.int64),
        np.full(DEGREE, 45, np.int64),
        np.full(DEGREE, 46, np.int64),
        np.full(DEGREE, -6600, np.int64),
        np.full(DEGREE, MODULUS // 2, np.int64),
        np.full(DEGREE, -(MODULUS // 2), np.int64),
        ring.centred(ring.uniform(DEGREE, SecureRandomStream())),
    ],
    ids=["zero", "as drawn", "largest of two limbs", "smallest of three", "a sum", "half", "minus half", "uniform"],
)
@pytest.mark.parametrize("public", ["largest", "uniform"])
def test_products_of_polynomials_are_exact_for_every_key(key: np.ndarray, public: str) -> None:
    for q, copies in ((MODULI[0], 1), (MODULI[0], 2), (MODULI[1], 2)):
        longer = np.concatenate([key, key[::-1]][:copies])
        a = ring.uniform(longer.size, SecureRandomStream(), q)
        if public == "largest":
            a[:] = q - 1
        assert ring.product(a.reshape(1, -1), longer, q)[0].tolist() == exact_product(a.tolist(), longer.tolist(), q)


def test_products_of_many_blocks_are_those_of_each() -> None:
    a = ring.uniform(131 * DEGREE, SecureRandomStream()).reshape(131, DEGREE)
    key = np.arange(DEGREE, dtype=np.int64) % 13 - 6
    together = ring.product(a, key)
    for block in (0, 63, 64, 130):
        assert np.array_equal(together[block], ring.product(a[block : block + 1], key)[0])


def test_public_elements_follow_from_the_context_and_differ_in_another() -> None:
    one, same, other = (ring.public_uniform(5000, "A", context) for context in ("x", "x", "y"))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.array_equal(one[:100], ring.public_uniform(100, "A", "x"))
    assert one.min() >= 0
    assert one.max() < MODULUS


def test_secret_elements_are_uniform() -> None:
    """16 bins of 2^16 draws: the statistic has 15 degrees of freedom; mean 15, deviation 5.5. Six deviations are 48.

    A positive control: of draws from one bit less than the range, half of the bins are empty.
    """
    draws = ring.uniform(2**16, SecureRandomStream())

    def statistic(values: np.ndarray) -> float:
        counts = np.bincount(values // (MODULUS // 16 + 1), minlength=16)
        return float(((counts - 2**12) ** 2 / 2**12).sum())

    assert statistic(draws // 1) < 48
    assert statistic(draws // 2) > 1000
