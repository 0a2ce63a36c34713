"""ColumnScaling: fitted on some rows, the same for others; constant columns; compositions."""

import numpy as np
import pytest

from securefed import Dataset
from securefed.datasets.scaling import column_maximum, fit, log1p, maximum, unit_range, z_score


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, (40, 5)) * np.array([1, 10, 1e6, 1, 1])
    x[:, 3] = 0.1  # its standard deviation is a round-off of 1e-17, not 0
    x[:, 4] = 0.0
    return Dataset(x, rng.integers(0, 2, 40))


def test_the_z_score_centres_fitted_rows_and_leaves_constant_columns_zero(rows):
    scaled = z_score(rows)(rows)
    assert np.allclose(scaled.x.mean(axis=0), 0, atol=1e-12)
    assert np.allclose(scaled.x[:, :3].std(axis=0), 1)
    assert not scaled.x[:, 3:].any()
    assert np.array_equal(scaled.y, rows.y)


def test_other_rows_are_scaled_by_what_was_fitted(rows):
    train, other = rows.take(np.arange(30)), rows.take(np.arange(30, 40))
    scaled = z_score(train)(other)
    expected = (other.x[:, :3] - train.x[:, :3].mean(axis=0)) / train.x[:, :3].std(axis=0)
    assert np.allclose(scaled.x[:, :3], expected)
    own = z_score(other)(other)
    assert not np.allclose(scaled.x[:, :3], own.x[:, :3])
    assert not z_score(train)(Dataset(np.full((1, 5), 7.0))).x[:, 3:].any()


def test_unit_range_and_maxima_reach_their_ends(rows):
    scaled = unit_range(rows)(rows).x
    assert np.array_equal(scaled[:, :3].min(axis=0), np.zeros(3))
    assert np.allclose(scaled[:, :3].max(axis=0), 1)
    assert not scaled[:, 3:].any()
    by_column = column_maximum(rows)(rows).x
    assert np.allclose(np.abs(by_column).max(axis=0), [1, 1, 1, 1, 0])
    whole = maximum(rows)(rows).x
    assert np.isclose(np.abs(whole).max(), 1)
    assert np.allclose(whole * np.abs(rows.x).max(), rows.x)


def test_the_logarithm_keeps_signs_and_zero():
    data = Dataset(np.array([[-1.0, 0.0, np.e - 1]]))
    assert np.allclose(log1p(data)(data).x, [[-np.log(2), 0.0, 1.0]])


def test_several_scalings_are_fitted_one_after_the_other(rows):
    train, other = rows.take(np.arange(30)), rows.take(np.arange(30, 40))
    both = fit(train, log1p, z_score)
    step = log1p(train)
    assert np.allclose(both(other).x, z_score(step(train))(step(other)).x)
    assert not np.allclose(both(other).x[:, :3], z_score(train)(other).x[:, :3])
    assert np.array_equal(fit(train)(other).x, other.x)


def test_a_step_that_is_itself_several_scalings_keeps_all_of_them(rows):
    train = rows.take(np.arange(30))
    together = fit(train, lambda data: fit(data, log1p, z_score))
    assert np.allclose(together(train).x, fit(train, log1p, z_score)(train).x)
    behind = fit(train, unit_range, lambda data: fit(data, log1p, z_score))
    assert np.allclose(behind(train).x, fit(train, unit_range, log1p, z_score)(train).x)


def test_scaling_leaves_its_rows_alone(rows):
    before = rows.x.copy()
    for scaling in (z_score, unit_range, column_maximum, maximum, log1p):
        scaling(rows)(rows)
    assert np.array_equal(rows.x, before)
