"""Counts of labels from the gradient of the layer that outputs the logits."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.attacks._fitting.label_counts import mean_layer_input, minimum_counts, nearest_counts, round_to_total


@given(st.lists(st.floats(-3, 9), min_size=1, max_size=5), st.integers(0, 7))
def test_all_counts_come_once_and_by_distance(values: list[float], left: int) -> None:
    least = np.arange(len(values)) % 2
    total = left + int(least.sum())
    listed = list(nearest_counts(np.array(values), least, total))
    found = np.array(listed)
    many = len(listed)
    assert many == np.prod([(left + i) / i for i in range(1, len(values))]).round()
    assert len(np.unique(found, axis=0)) == many
    assert (found >= least).all()
    assert (found.sum(axis=1) == total).all()
    distances = np.square(found - np.array(values)).sum(axis=1)
    assert (np.diff(distances) >= -1e-9).all()


@pytest.mark.parametrize(
    ("values", "total", "expected"), [([1.4, 0.7], 2, [1, 1]), ([-1.0, 0.0], 2, None), ([0.2], 5, [5])]
)
def test_rounding_keeps_the_sum(values: list[float], total: int, expected: list[int] | None) -> None:
    found = round_to_total(np.array(values), total)
    assert found.sum() == total
    assert (found >= 0).all()
    assert expected is None or found.tolist() == expected


def scene(seed: int, rows: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Weights, slopes R, rows X, which are positive as pixels are, and their labels."""
    rng = np.random.default_rng(seed)
    x, labels = rng.random((rows, 30)), rng.integers(0, 10, rows)
    weights = scale * rng.uniform(-1, 1, (10, 30))
    powers = np.exp(x @ weights.T)
    return weights, powers / powers.sum(axis=1, keepdims=True) - np.eye(10)[labels], x, labels


def probabilities(weights: np.ndarray, row: np.ndarray) -> np.ndarray:
    powers = np.exp(weights @ row)
    return powers / powers.sum()


def place(values: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> int:
    """Of the true counts among those tried."""
    tried = islice(nearest_counts(values, minimum_counts(sums), int(counts.sum())), 50)
    return next((k for k, one in enumerate(tried) if (one == counts).all()), 50)


@pytest.mark.parametrize(("rows", "scale"), [(4, 0.5), (8, 0.5), (24, 0.2)])
def test_the_mean_row_gives_the_counts_and_a_row_of_zeros_does_not(rows: int, scale: float) -> None:
    told, untold = [], []
    for seed in range(40):
        weights, R, x, labels = scene(seed, rows, scale)
        sums, counts = R.sum(axis=0), np.bincount(labels, minlength=10)
        p = probabilities(weights, mean_layer_input(R.T @ x, sums))
        told.append(place(rows * p - sums, sums, counts))
        untold.append(place(rows * probabilities(weights, np.zeros(30)) - sums, sums, counts))
    assert np.mean(np.array(told) == 0) >= 0.8
    assert max(told) < 20
    assert np.mean(untold) > 3 * np.mean(told) + 0.3


def test_every_class_has_the_fewest_rows_that_its_sum_allows_though_sums_were_rounded() -> None:
    """Confident models leave next to nothing above -n_c, so that what rounding takes away would add a row."""
    wrong = 0
    for seed in range(20):
        _, R, _, labels = scene(seed, 8, 4.0)
        sums, counts, step = R.sum(axis=0), np.bincount(labels, minlength=10), 0.03
        rounded = step * np.rint(sums / step)
        assert (minimum_counts(sums) <= counts).all()
        assert (minimum_counts(sums) > -sums - 0.001001).all()
        assert (minimum_counts(rounded, step / 2) <= counts).all()
        wrong += (minimum_counts(rounded) > counts).any()
    assert wrong > 5


def test_a_row_counts_against_the_mean_where_its_class_has_fewer_than_expected() -> None:
    against = 0
    for seed in range(10):
        _, R, _, labels = scene(seed, 24, 0.5)
        sums = R.sum(axis=0)
        weights = mean_layer_input(R.T @ np.eye(24), sums)  # the mean is linear in the rows
        assert weights.sum() == pytest.approx(1.0)
        np.testing.assert_array_equal(weights < 0, sums[labels] > 0)
        against += int((weights < 0).sum())
    assert 0 < against < 120


def test_the_mean_of_alike_rows_is_theirs() -> None:
    R = np.array([[0.2, -0.7, 0.5], [0.1, -0.9, 0.8]])
    x = np.array([[1.0, 2.0], [1.0, 2.0]])
    np.testing.assert_allclose(mean_layer_input(R.T @ x, R.sum(axis=0)), [1.0, 2.0])
