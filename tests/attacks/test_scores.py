from __future__ import annotations

import numpy as np
import pytest

from securefed.attacks.scores import leakage, match, relative_error, sample_error, subspace_baseline

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
