from __future__ import annotations

import numpy as np
import pytest

from securefed.attacks.scores import (
    fit_by_chance,
    leakage,
    match,
    relative_error,
    rows_not_held,
    sample_error,
    subspace_baseline,
)

RNG = np.random.default_rng(0)


def test_relative_error_and_leakage_at_their_anchors() -> None:
    truth = RNG.normal(size=(4, 4))
    assert relative_error(truth, truth) == 0
    assert relative_error(2 * truth, truth) == pytest.approx(1)
    assert relative_error(np.full((4, 4), np.nan), truth) == np.inf
    assert leakage(0.0, 0.3) == 1
    assert leakage(0.3, 0.3) == 0
    assert leakage(0.6, 0.3) == pytest.approx(-1)
    assert leakage(0.0, 0.0) == leakage(0.5, 0.0) == 0  # a guess that is exact leaves nothing to find
    assert np.isnan(leakage(0.5, np.nan))


def test_matching_ignores_the_order_and_fills_what_is_missing_with_the_mean() -> None:
    truth = RNG.normal(size=(5, 7))
    order = RNG.permutation(5)
    assert sample_error(truth[order], truth) == 0
    np.testing.assert_array_equal(match(truth[order], truth), truth)
    part = match(truth[:3], truth)
    np.testing.assert_array_equal(part[:3], truth[:3])
    np.testing.assert_allclose(part[3:], np.broadcast_to(truth[:3].mean(axis=0), (2, 7)))
    assert sample_error(np.full((5, 7), np.inf), truth) == np.inf


def test_the_subspace_baseline_is_the_best_multiple_of_the_projection() -> None:
    x = RNG.normal(size=(30, 6))
    gram, basis = x.T @ x, np.linalg.qr(RNG.normal(size=(6, 2)))[0]
    projection = basis @ basis.T
    scales = np.linspace(0, 100, 20001)
    best = min(relative_error(c * projection, gram) for c in scales[::50])
    assert subspace_baseline(gram, basis) == pytest.approx(best, abs=1e-4)
    assert subspace_baseline(projection, basis) == pytest.approx(0, abs=1e-7)


def test_rows_that_took_no_part_are_fitted_as_well_by_an_estimate_of_their_kind_only() -> None:
    data = np.clip(RNG.normal(size=(400, 3)) @ RNG.normal(size=(3, 6)), -4, 4)  # rows near a subspace, as real rows are
    mean, secret, others, plausible = data.mean(axis=0), data[:20], data[20:150], data[150:250]

    def leak(estimate: np.ndarray) -> float:
        guess = relative_error(np.broadcast_to(mean, secret.shape), secret)
        return leakage(sample_error(estimate, secret), guess * fit_by_chance(estimate, others, 20, mean))

    # scored beside the mean alone, rows of the same kind that know nothing of the secret ones look like a leak
    assert fit_by_chance(plausible, others, 20, mean) < 0.8
    assert leakage(sample_error(plausible, secret), relative_error(np.broadcast_to(mean, secret.shape), secret)) > 0.2
    assert abs(leak(plausible)) < 0.12
    assert leak(np.concatenate([secret, plausible])) == 1
    assert leak(np.concatenate([secret + 0.03 * RNG.normal(size=secret.shape), plausible])) > 0.8
    assert fit_by_chance(secret[:1], others, 1, mean) == 1  # one wrong row is worse than the mean


def test_the_fit_by_chance_is_that_of_the_mean_where_there_is_nothing_to_compare() -> None:
    rows = RNG.normal(size=(5, 4))
    assert fit_by_chance(rows, np.zeros((0, 4)), 5, rows.mean(axis=0)) == 1
    assert fit_by_chance(rows, np.ones((3, 4)), 5, np.ones(4)) == 1
    assert fit_by_chance(rows, rows[:2], 5, rows.mean(axis=0)) == 0  # fewer others than rows: all at once


def test_rows_that_a_client_holds_took_part() -> None:
    rows = np.array([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0], [4.0, 5.0], [2.0, 3.0]])
    held = rows_not_held(rows, [np.array([[0.0, 1.0]]), np.array([[9.0, 9.0], [4.0, 5.0]])])
    np.testing.assert_array_equal(held, [[2.0, 3.0]])
    np.testing.assert_array_equal(rows_not_held(rows, []), [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])


def test_single_rows_fit_by_chance_as_rows_matched_one_by_one() -> None:
    rng = np.random.default_rng(4)
    estimate, others, mean = rng.normal(size=(3, 5)), rng.normal(size=(40, 5)), np.zeros(5)
    apart = sum(float(np.square(match(estimate, row[None]) - row).sum()) for row in others)
    expected = min(1.0, float(np.sqrt(apart / np.square(others).sum())))
    assert fit_by_chance(estimate, others, 1, mean) == pytest.approx(expected, rel=1e-12)
