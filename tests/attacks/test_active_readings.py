"""Formulas of active attacks: what they compute from one message, and the signs by which a broadcast is noticed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from securefed.attacks import broadcast_signs
from securefed.attacks._active.bin_reading import label_codes, read_bins
from securefed.attacks._active.class_thresholds import LinearClassifier
from securefed.attacks._active.found_rows import FoundRows
from securefed.problems import SoftmaxRegression


def test_bins_hold_the_rows_between_two_thresholds_exactly() -> None:
    rng = np.random.default_rng(0)
    x, slopes = rng.normal(size=(5, 3)), rng.uniform(1, 2, 5)
    thresholds = np.sort(np.append(x[:, 0], [-9.0])) - 1e-9  # one row above each but the lowest
    active = x[:, 0] > thresholds[:, None]
    bins = read_bins((active * slopes) @ x, active @ slopes, 1e-6)
    np.testing.assert_allclose(bins.rows, x[np.argsort(x[:, 0])], atol=1e-12)
    np.testing.assert_allclose(bins.slopes, slopes[np.argsort(x[:, 0])], atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_slopes_of_two_rows_are_never_that_of_one(classes: int) -> None:
    codes = label_codes(classes)
    assert min(abs(a + b - c) for a in codes for b in codes for c in codes) > 0.05
    assert np.diff(codes).min() > 0.05


def test_every_row_of_an_estimate_has_a_label_which_may_be_unknown() -> None:
    """Three rows, one of them labelled, for clients that hold two rows: the labels fit the rows that are reported."""
    row, other, third = np.eye(3)
    target = SimpleNamespace(public=SimpleNamespace(features=3))
    client = SimpleNamespace(rows=2, target=target, dialogue=SimpleNamespace(members=frozenset({0})))
    found = FoundRows(3)
    found.add(row, 1)
    found.newest = [other]
    estimate = found.reconstruction(client)  # type: ignore[arg-type]
    assert estimate.labels is not None and list(estimate.labels) == [1, -1]
    for one in (other, third):
        found.add(one, 0)
    estimate = found.reconstruction(client)  # type: ignore[arg-type]
    assert estimate.labels is not None and list(estimate.labels) == [1, 0]
    assert len(estimate.value) == estimate.diagnostics["single rows"] == 2


def test_thresholds_put_rows_into_the_intervals_of_their_projection() -> None:
    """The gradient's row c holds the rows between two thresholds, by the closed form of softmax."""
    rng = np.random.default_rng(1)
    x, direction, thresholds = rng.uniform(0, 1, (9, 3)), rng.normal(size=3), np.array([-0.2, 0.1, 0.4])
    model = LinearClassifier.of({"weight": (4, 3), "bias": (4,)}, 3)
    assert model is not None
    parameters = model.parameters(direction, thresholds, 1e6)
    found = SoftmaxRegression().gradient(parameters, x, np.zeros(9, int))
    sums, counts = model.above(9 * found["weight"], 9 * found["bias"])
    above = x @ direction > thresholds[:, None]
    np.testing.assert_allclose(sums, above @ x, atol=1e-9)
    np.testing.assert_allclose(counts, above.sum(axis=1), atol=1e-9)


def test_a_row_that_two_rounds_hold_is_a_row() -> None:
    rng = np.random.default_rng(0)
    row, other, third = rng.uniform(1, 2, (3, 5))
    found = FoundRows(5)
    found.add_bins(np.stack([row, other]))
    assert found.single == []
    found.add_bins(row[None])
    assert found.single == []  # a message of one bin may hold the mean of all rows
    found.add_bins(np.stack([third, row * (1 + 1e-6)]))
    assert len(found.single) == 1
    np.testing.assert_allclose(found.single[0], row, rtol=1e-5)


def test_a_row_that_was_found_without_a_label_takes_the_one_that_is_read_later() -> None:
    row, other = np.eye(2)
    found = FoundRows(2)
    found.add(row)
    found.add(other, 3)
    assert found.labels == [-1, 3]
    found.add(row, 1)
    assert [(list(one), label) for one, label in found.labelled] == [([1.0, 0.0], 1), ([0.0, 1.0], 3)]
    found.add(row)  # neither a find without a label nor another label takes it away
    found.add(row, 2)
    assert found.labels == [1, 3]


def test_signs_of_a_broadcast_by_closed_forms() -> None:
    before = {"w": np.eye(3), "b": np.zeros(3)}
    same = broadcast_signs(before, before)
    assert (same.change, same.alike, same.largest) == (0.0, 0.0, 1.0)
    trap = {"w": np.outer([1.0, -2.0, 3.0], [1.0, 1.0, 1.0]), "b": np.zeros(3)}
    signs = broadcast_signs(trap, before)
    assert signs.alike == pytest.approx(1.0)
    assert signs.largest == 3.0
    assert signs.change == pytest.approx(np.linalg.norm(trap["w"] - np.eye(3)) / 3**0.5)
    assert broadcast_signs(before, {"w": np.zeros((3, 3)), "b": np.zeros(3)}).change == np.inf


def test_a_broadcast_that_cannot_be_compared_is_not_called_unchanged() -> None:
    before = {"w": np.eye(3), "b": np.zeros(3)}
    for wrong in (np.nan, np.inf):
        signs = broadcast_signs({"w": np.eye(3), "b": np.full(3, wrong)}, before)
        assert (signs.change, signs.alike, signs.largest) == (np.inf, np.inf, np.inf)
        rows = np.eye(3)
        rows[1] = wrong
        assert broadcast_signs({"w": rows, "b": np.zeros(3)}, before).alike == np.inf
    assert broadcast_signs({"other": np.eye(3)}, before).change == np.inf
