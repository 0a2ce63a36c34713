"""Shares that members can check, and sums that open although some members' shares are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed._sampling.random_stream import SecureRandomStream
from securefed.defenses._one_message import decoding, ring, sharing
from securefed.defenses._one_message.parameters import MODULUS
from securefed.errors import TooFewSurvivors

SEED = b"t" * 32


def dealt(entries: int, degree: int, members: int):
    stream = SecureRandomStream()
    secret = ring.uniform(entries, stream)
    polynomials = sharing.deal(secret, degree, stream)
    return secret, polynomials, sharing.values_at(polynomials, range(1, members + 1))


def test_shares_are_the_polynomials_values() -> None:
    _, polynomials, shares = dealt(3, 4, 128)
    for member in (1, 2, 127, 128):
        exact = [sum(int(c) * member**k for k, c in enumerate(row)) % MODULUS for row in polynomials.T]
        assert shares[member - 1].tolist() == exact


def test_any_shares_of_as_many_members_as_may_be_corrupt_fit_every_secret() -> None:
    """For c shares and any other secret there is exactly one polynomial: the shares tell nothing."""
    secret, _, shares = dealt(1, 3, 8)
    known = [2, 5, 8]
    for other in (0, 1, MODULUS - 1, (int(secret[0]) + 1) % MODULUS):
        points = [0, *known]
        values = [other, *(int(shares[x - 1, 0]) for x in known)]
        found = decoding.decode(points, values, 3)
        assert found is not None
        assert [decoding.value_of(found, x) for x in points] == values


def test_one_more_share_determines_the_secret() -> None:
    secret, _, shares = dealt(5, 3, 8)
    assert np.array_equal(sharing.interpolated([1, 4, 6, 8], shares[[0, 3, 5, 7], :5], 0), secret)


def test_honest_shares_pass_and_any_change_fails() -> None:
    _, polynomials, shares = dealt(30, 3, 7)
    published = sharing.published_tests(polynomials, SEED)
    for member, share in enumerate(shares, start=1):
        assert sharing.share_passes(share, member, published, SEED)
        assert not sharing.share_passes(share, member % 7 + 1, published, SEED)
        assert not sharing.share_passes(share, member, published, b"u" * 32)
        for place in range(32):
            wrong = share.copy()
            wrong[place] = (wrong[place] + 1) % MODULUS
            assert not sharing.share_passes(wrong, member, published, SEED)
    for change in (np.int64(1), np.int64(MODULUS), np.int64(-MODULUS)):
        assert not sharing.share_passes(shares[0], 1, published + change, SEED)


def test_a_dealer_of_a_higher_degree_is_found_by_all_members_but_as_many_as_its_test_fits() -> None:
    """It publishes a test of degree c that fits c + 1 members at best; every other member notices."""
    stream = SecureRandomStream()
    polynomials = sharing.deal(ring.uniform(20, stream), 5, stream)
    shares = sharing.values_at(polynomials, range(1, 10))
    whole = sharing.published_tests(polynomials, SEED)
    at = sharing.values_at(whole.T, range(1, 10))
    for chosen in ([1, 2, 3, 4], [2, 5, 7, 9]):
        fitted = np.stack([
            [*(found := decoding.decode(chosen, [int(at[x - 1, t]) for x in chosen], 3) or []), *[0] * (4 - len(found))]
            for t in range(sharing.TESTS)
        ])  # fmt: skip
        passed = [x for x in range(1, 10) if sharing.share_passes(shares[x - 1], x, fitted, SEED)]
        assert passed == chosen


def test_published_tests_are_uniform_for_any_secret() -> None:
    """They are masked by uniform polynomials: the same secret, shared twice, gives unrelated ones."""
    stream = SecureRandomStream()
    secret = np.zeros(10, np.int64)
    first, second = (sharing.published_tests(sharing.deal(secret, 2, stream), SEED) for _ in range(2))
    assert not np.any(first == second)
    spread = np.concatenate([sharing.published_tests(sharing.deal(secret, 2, stream), SEED) for _ in range(400)])
    assert abs(spread.mean() / MODULUS - 0.5) < 6 * np.sqrt(1 / 12 / spread.size)


@given(st.data())
def test_sums_open_in_spite_of_wrong_shares_and_just_their_members_are_named(data: st.DataObject) -> None:
    degree = data.draw(st.integers(1, 4))
    members = data.draw(st.integers(3 * degree + 1, 3 * degree + 6))
    secret, _, shares = dealt(6, degree, members)
    kept = sorted(data.draw(st.permutations(range(members)))[: data.draw(st.integers(3 * degree + 1, members))])
    wrong = data.draw(st.sets(st.sampled_from(kept), max_size=degree))
    values = shares[:, :6].copy()
    for member in wrong:
        columns = data.draw(st.sets(st.integers(0, 5), min_size=1))
        for column in columns:
            values[member, column] = (values[member, column] + data.draw(st.integers(1, MODULUS - 1))) % MODULUS
    found, named = decoding.opened([m + 1 for m in kept], values[kept], degree)
    assert np.array_equal(found, secret)
    assert set(named) == {member + 1 for member in wrong}


@given(st.integers(1, 3), st.data())
def test_more_wrong_shares_than_can_be_corrected_are_refused_or_lie_on_one_polynomial(
    degree: int, data: st.DataObject
) -> None:
    """c + 1 wrong shares of 3 c + 1, drawn apart from each other, are at no polynomial of degree c: refused."""
    members = 3 * degree + 1
    _, _, shares = dealt(4, degree, members)
    values = shares[:, :4].copy()
    count = data.draw(st.integers(degree + 1, members - degree - 1))
    values[:count] = ring.uniform(4 * count, SecureRandomStream()).reshape(count, 4)
    with pytest.raises(TooFewSurvivors, match="wrong; the sum is not opened"):
        decoding.opened(range(1, members + 1), values, degree)


def test_corrupt_members_that_agree_do_not_move_the_sum() -> None:
    """c members shift their shares by a polynomial of degree c: still the honest ones' sum, and they are named."""
    secret, _, shares = dealt(4, 2, 7)
    shift = sharing.values_at(ring.uniform(12, SecureRandomStream()).reshape(3, 4), [1, 2])
    values = shares[:, :4].copy()
    values[:2] = ring.residues(values[:2] + shift)
    found, named = decoding.opened(range(1, 8), values, 2)
    assert np.array_equal(found, secret)
    assert named == (1, 2)
