"""Counts of labels that one gradient allows hold the true ones, and these come early."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.attacks.gradient_inversion.counts import likely, outside


def gradient(
    seed: int, rows: int, *, scale: float = 1.0, classes: int = 10, features: int = 30
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R (rows, classes), R^T [X 1] (classes, features + 1) and the counts of labels."""
    rng = np.random.default_rng(seed)
    x, labels = rng.random((rows, features)), rng.integers(0, classes, rows)
    logits = scale * x @ rng.uniform(-1, 1, (features, classes)) / np.sqrt(features / 3)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    R = p / p.sum(axis=1, keepdims=True) - np.eye(classes)[labels]
    return R, R.T @ np.column_stack([x, np.ones(rows)]), np.bincount(labels, minlength=classes)


@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.floats(0.1, 3.0))
def test_all_that_a_gradient_allows_are_listed_once(seed: int, rows: int, scale: float) -> None:
    R, seen, counts = gradient(seed, rows, scale=scale)
    sums = R.sum(axis=0)
    found = likely(sums, rows, np.full(10, 0.1), outside(seen, rows))
    if not len(found):  # more than can be listed
        assert np.maximum(np.ceil(-sums - 1e-9), 0).sum() < rows - 5
        return
    assert (found == counts).all(axis=1).sum() == 1
    assert (found >= -sums - 1e-9).all()
    assert (found.sum(axis=1) == rows).all()
    assert len(np.unique(found, axis=0)) == len(found)


@pytest.mark.parametrize(("rows", "directions"), [(3, 6), (8, 1), (9, 0), (12, 0)])
def test_what_lies_outside_is_at_right_angles_to_every_row(rows: int, directions: int) -> None:
    R, seen, _ = gradient(rows, rows)
    a = outside(seen, rows)
    assert a.shape == (10, directions)
    np.testing.assert_allclose(a.T @ a, np.eye(directions), atol=1e-12)
    np.testing.assert_allclose(R @ a, 0.0, atol=1e-9)
    np.testing.assert_allclose(a.sum(axis=0), 0.0, atol=1e-12)


def test_rows_that_depend_on_each_other_and_rows_hidden_in_rounding_leave_no_direction() -> None:
    _, seen, _ = gradient(0, 5)
    assert outside(seen, 6).shape == (10, 0)  # a row more than there are
    assert outside(seen.astype(np.float32).astype(float), 5).shape == (10, 4)
    left, values, right = np.linalg.svd(seen, full_matrices=False)
    values[4] = 1e-9 * values[0]
    assert outside(((left * values) @ right).astype(np.float32).astype(float), 5).shape == (10, 0)


def test_the_true_counts_come_early_and_without_what_lies_outside_later() -> None:
    """Mean rank among the counts that a gradient allows: drawn at random it would be .5; 60 and more gradients."""
    ranks, expected = [], np.full(10, 0.1)
    for seed in range(100):
        R, seen, counts = gradient(seed, 8, scale=1.5)
        both = [likely(R.sum(axis=0), 8, expected, a) for a in (outside(seen, 8), np.zeros((10, 0)))]
        if len(both[0]) > 20:
            ranks.append([np.flatnonzero((found == counts).all(axis=1))[0] / len(found) for found in both])
    told, untold = np.mean(ranks, axis=0)
    assert len(ranks) >= 60
    assert told < 0.15
    assert 1.7 * told < untold < 0.4
