"""Problems in float32, and rows kept in it: the same gradients to its digits, and float64 where a method needs it."""

import numpy as np
import pytest

from securefed import Dataset, Federation, Public
from securefed.algorithms import FedAvg
from securefed.algorithms._pca.operators import Gram
from securefed.errors import ConfigError
from securefed.problems import LogisticRegression, SoftmaxRegression, SupportVectorMachine

KINDS = [LogisticRegression, SoftmaxRegression, SupportVectorMachine]


def rows(classes, seed=0):
    rng = np.random.default_rng(seed)
    return Dataset(rng.uniform(-1, 1, (9, 6)), np.append(rng.integers(0, classes, 8), classes - 1))


def test_rows_stay_in_the_precision_they_are_given_in():
    data = rows(3)
    assert data.x.dtype == np.float64
    assert data.single().x.dtype == np.float32
    assert data.single().take(np.array([2, 0])).x.dtype == np.float32
    assert Dataset(np.ones((2, 2), np.int64)).x.dtype == np.float64


def test_second_moments_of_single_rows_are_summed_in_float64():
    x = rows(2).x.astype(np.float32)
    assert np.array_equal(Gram.of(x).matrix, x.astype(np.float64).T @ x.astype(np.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_to_the_digits_of_float32(kind):
    classes = 2 if kind is LogisticRegression else 3
    data, public = rows(classes), Public(1, 1, 6, (9,), classes, 1.0)
    double, single = kind(l2=0.1), kind(l2=0.1, precision="float32")
    rng = np.random.default_rng(1)
    at = {name: rng.normal(size=shape) for name, shape in double.shapes(public).items()}
    small = {name: value.astype(np.float32) for name, value in at.items()}
    exact, rounded = double.gradient(at, data.x, data.y), single.gradient(small, data.single().x, data.y)
    stacked = {name: value[None] for name, value in small.items()}
    weights = np.full((1, 9), 1 / 9, np.float32)
    together = single.gradients(stacked, data.single().x[None], data.y[None], weights)
    for name, value in exact.items():
        assert rounded[name].dtype == together[name].dtype == np.float32
        np.testing.assert_allclose(rounded[name], value, rtol=0, atol=3e-6)
        np.testing.assert_allclose(together[name][0], value, rtol=0, atol=3e-6)
        assert not np.array_equal(rounded[name], value)  # it was float32 that computed


def test_a_federation_in_float32_follows_the_one_in_float64():
    clients = [rows(3, seed) for seed in range(4)]

    def run(precision, data):
        problem = SoftmaxRegression(precision=precision)
        return Federation(FedAvg(problem=problem, learning_rate=0.1), data, seed=0).run(5).output

    double, single = run("float64", clients), run("float32", [data.single() for data in clients])
    for name, value in double.items():
        assert single[name].dtype == np.float32
        np.testing.assert_allclose(single[name], value, rtol=0, atol=1e-5)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="one of 'float32', 'float64'"):
        SoftmaxRegression(precision="float16")
