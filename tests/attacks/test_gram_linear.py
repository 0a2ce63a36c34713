"""A Gram matrix of known rank follows from few directions: later ones, seen through rounding, must not spoil it."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed.attacks._gram.linear import _assemble, _direction_counts, solve, span
from securefed.attacks.scores import relative_error

ROWS, FEATURES = 8, 64
DIGITS = load_digits().data / 16


def power_iteration(seed, rounds, dtype):
    """(S, probes, products) of a client of `ROWS` rows among many, its numbers rounded to `dtype`."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(DIGITS))[:800]
    mine, others = DIGITS[order[:ROWS]], DIGITS[order[ROWS:]]
    S = mine.T @ mine
    pooled = S + others.T @ others
    probes, products = [], []
    basis = np.linalg.qr(rng.normal(size=(FEATURES, 5)))[0]
    for _ in range(rounds):
        probes.append(basis.astype(dtype).astype(float))
        products.append((S @ probes[-1]).astype(dtype).astype(float))
        basis = np.linalg.qr(pooled @ basis)[0]
    return S, np.hstack(probes), np.hstack(products)


@pytest.mark.parametrize(("dtype", "exact"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("rounds", [2, 5, 20])
def test_more_rounds_never_spoil_a_matrix_of_known_rank(rounds, dtype, exact):
    for seed in range(3):
        S, probes, products = power_iteration(seed, rounds, dtype)
        assert relative_error(solve(probes, products, rows=ROWS).gram, S) < exact, seed


def test_all_directions_would_spoil_it():
    """The control: what the choice by residual saves."""
    for seed in range(3):
        S, probes, products = power_iteration(seed, 20, np.float32)
        every = _assemble(span(probes, products), "psd", ROWS)
        assert relative_error(every, S) > 100 * relative_error(solve(probes, products, rows=ROWS).gram, S)


def test_fewer_directions_are_tried_only_where_the_rank_is_known_and_smaller():
    assert _direction_counts(40, 8)[0] == 8
    assert _direction_counts(40, 8)[-1] == 40
    assert _direction_counts(10, 8) == (8, 10)
    assert _direction_counts(40, 0) == _direction_counts(40, 40) == _direction_counts(40, 100) == (40,)


def test_products_without_any_asymmetry_are_solved():
    """One column has no pair that could be asymmetric; products of whole numbers are symmetric to the last bit."""
    factor = np.arange(1.0, 7.0)[:, None]
    S = factor @ factor.T
    for probes in (np.eye(6)[:, :1], np.eye(6)):
        np.testing.assert_allclose(solve(probes, S @ probes, rows=1).gram, S, atol=1e-9)
    np.testing.assert_array_equal(solve(np.eye(6), np.zeros((6, 6))).gram, np.zeros((6, 6)))
