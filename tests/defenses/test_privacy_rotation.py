"""The public rotation and conditional rounding: identities, flatness with power, sensitivity in integers, bias."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard

from securefed._sampling.random_stream import SecureRandomStream
from securefed.defenses._differential_privacy.conditional_rounding import round_conditionally, rounded_squares
from securefed.defenses._differential_privacy.rotation import Rotation, flatness, largest_power_of_two
from tests.seeded_stream import SeededStream

EXCHANGE = ("ab" * 16, 3)


class Scripted:
    """A stream whose every word is the same: uniforms of 0 (rounds down) or almost 1 (rounds up)."""

    def __init__(self, word):
        self.word = word

    def words(self, count):
        return np.full(count, self.word, np.uint64)


@given(st.integers(1, 700), st.integers(0, 2**31))
def test_rotation_keeps_norms_and_inner_products_and_is_undone(entries, number):
    rotation = Rotation(entries, ("run", number))
    x, y = np.random.default_rng(number).normal(size=(2, entries))
    assert rotation.forward(x) @ rotation.forward(y) == pytest.approx(x @ y, abs=1e-10 * entries)
    np.testing.assert_allclose(rotation.inverse(rotation.forward(x)), x, atol=1e-12)
    np.testing.assert_allclose(rotation.forward(rotation.inverse(x)), x, atol=1e-12)


@pytest.mark.parametrize("entries", [1, 2, 64, 1024])
def test_one_stage_is_hadamards_matrix_times_signs(entries):
    matrix = np.stack([Rotation(entries, EXCHANGE).forward(row) for row in np.eye(entries)], axis=1)
    signs = matrix[0] * math.sqrt(entries)
    np.testing.assert_allclose(np.abs(signs), 1, rtol=1e-12)
    np.testing.assert_allclose(matrix, hadamard(entries) * signs / math.sqrt(entries), atol=1e-12)
    if entries >= 64:
        assert abs(signs.sum()) < 6 * math.sqrt(entries)


def test_every_party_of_an_exchange_has_the_same_rotation_and_no_other_exchange_has_it():
    x = np.random.default_rng(0).normal(size=300)
    a = Rotation(300, EXCHANGE).forward(x)
    np.testing.assert_array_equal(a, Rotation(300, EXCHANGE).forward(x))
    for other in (("ab" * 16, 4), ("ac" * 16, 3), None):
        assert abs(a @ Rotation(300, other).forward(x)) / (a @ a) < 6 / math.sqrt(300)


@pytest.mark.parametrize("entries", [512, 700, 1023])
def test_no_entry_exceeds_the_flatness_and_without_signs_one_does(entries):
    m = largest_power_of_two(entries)
    bound = flatness(entries, math.log(1e-9))
    assert bound == pytest.approx(math.sqrt(2 * math.log(2e9) / m))
    worst = 0.0
    for number in range(200):
        for x in (np.ones(entries), np.eye(entries)[number], np.repeat([1.0, 0.0], [16, entries - 16])):
            worst = max(worst, np.abs(Rotation(entries, ("run", number)).forward(x)).max() / np.linalg.norm(x))
    assert bound / 2 < worst < bound
    # Signs known beforehand would be no help: what turns them around ends in one entry.
    spike = Rotation(entries, EXCHANGE).inverse(np.eye(entries)[0])
    assert np.abs(Rotation(entries, EXCHANGE).forward(spike)).max() > bound
    assert np.abs(Rotation(entries, ("run", 0)).forward(spike)).max() < bound
    assert flatness(8, math.log(1e-9)) == 1


# Rounding


@given(st.integers(1, 400), st.floats(0.1, 1e6), st.integers(0, 10**6))
def test_rounded_vectors_keep_to_the_sensitivity_and_to_their_neighbours(entries, norm, seed):
    x = np.random.default_rng(seed).normal(size=entries)
    x *= norm / np.linalg.norm(x) * (1 - 1e-12)
    squares = rounded_squares(norm, entries)
    rounded = round_conditionally(x, squares, SecureRandomStream())
    assert rounded.dtype == np.int64
    assert int(sum(int(v) ** 2 for v in rounded)) <= squares
    assert np.abs(rounded - x).max() <= 1
    assert squares <= (norm + math.sqrt(entries)) ** 2
    assert squares >= math.floor(norm**2)


def test_rounding_is_unbiased_and_nearest_rounding_is_not():
    # Mean of n = 4000 draws of an entry: standard error at most .5 / sqrt(n) = .008; the largest of 100 within 6 of it.
    x = np.linspace(0.05, 0.45, 100) * 30
    squares = rounded_squares(float(np.linalg.norm(x)), 100)
    stream = SeededStream(1)
    mean = np.mean([round_conditionally(x, squares, stream) for _ in range(4000)], axis=0)
    assert np.abs(mean - x).max() < 6 * 0.008 + 0.01  # .01: the bias that the condition leaves at most
    assert np.abs(np.rint(x) - x).max() > 0.3


def test_zero_stays_zero_and_integers_stay():
    for x in (np.zeros(50), np.arange(50.0)):
        np.testing.assert_array_equal(round_conditionally(x, rounded_squares(210.0, 50), SecureRandomStream()), x)


def test_the_condition_binds_for_vectors_that_all_round_up():
    x = np.full(10_000, 0.5)  # norm 50; rounded up everywhere 100
    squares = rounded_squares(50.0, 10_000)
    assert squares < 10_000
    rounded = round_conditionally(x, squares, Scripted(2**64 - 1))  # always up: a hundred refusals, then towards zero
    np.testing.assert_array_equal(rounded, np.zeros(10_000))
    assert 0 < (round_conditionally(x, squares, SecureRandomStream()) ** 2).sum() <= squares


@pytest.mark.parametrize("norm", [11.0, 1e200, math.inf, math.nan])
def test_values_that_were_not_clipped_become_zeros_and_refuse_nothing(norm):
    x = np.zeros(4)
    x[2] = norm
    np.testing.assert_array_equal(round_conditionally(x, rounded_squares(7.0, 4), SecureRandomStream()), np.zeros(4))
    x[2] = 7.0
    assert round_conditionally(x, rounded_squares(7.0, 4), SecureRandomStream())[2] == 7
