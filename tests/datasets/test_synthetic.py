"""Drawn data: the rules and matrices behind it can be found again, with the moments that the sources state."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from securefed.datasets import _synthetic as synthetic
from securefed.errors import ConfigError


def agreement(train, test):
    """How often a softmax regression fitted to `train`, nearly without penalty, says the labels of `test`."""
    return LogisticRegression(C=1e4, max_iter=2000).fit(train.x, train.y).score(test.x, test.y)


@pytest.mark.parametrize("seed", range(3))
def test_each_client_follows_one_linear_rule_of_its_own_unless_alike(seed):
    first, second = synthetic.linear_rules([2000, 2000], np.random.default_rng(seed))
    assert (first.features, second.features) == (60, 60)
    assert agreement(first, first) > 0.99
    assert agreement(first, second) < 0.8
    first, second = synthetic.linear_rules([2000, 2000], np.random.default_rng(seed), alike=True, input_spread=0.0)
    assert agreement(first, second) > 0.8
    assert max(np.abs(client.x.mean(axis=0)).max() for client in (first, second)) < 0.1


def test_the_features_have_the_stated_variances_and_the_centres_the_stated_spread():
    """10000 rows: a variance within 5 % (3.5 standard errors); 400 centres: their spread within 15 %."""
    (client,) = synthetic.linear_rules([10000], np.random.default_rng(1))
    expected = np.arange(1.0, 61) ** -1.2
    assert np.abs(client.x.var(axis=0) / expected - 1).max() < 0.08
    assert np.abs(client.x.var(axis=0) / expected**0.5 - 1).max() > 0.5
    clients = synthetic.linear_rules([1] * 400, np.random.default_rng(2), input_spread=2.0, features=400)
    means = np.array([client.x.mean() for client in clients])
    assert abs(means.std() / 2.0 - 1) < 0.15
    assert abs(means.std() / 2.0**0.5 - 1) > 0.15  # the spread is a standard deviation


def test_noise_free_readings_determine_the_matrix_of_low_rank():
    problem = synthetic.low_rank(3, 20, 2, np.random.default_rng(0), dimension=6, noise=0.0)
    readings = np.concatenate([client.x for client in problem.clients])
    found = np.linalg.lstsq(readings, np.concatenate([c.responses() for c in problem.clients]), rcond=None)[0]
    assert np.allclose(found.reshape(6, 6), problem.truth)
    assert np.linalg.matrix_rank(problem.truth) == 2
    assert problem.truth.trace() == 2


def test_readings_have_the_stated_mean_and_noise():
    """40000 entries: the mean within .02 (4 standard errors); 2000 residuals: their spread within 10 % (6)."""
    problem = synthetic.low_rank(2, 1000, 3, np.random.default_rng(0), dimension=5)
    x = np.concatenate([client.x for client in problem.clients])
    assert abs(x.mean() - 0.1) < 0.02
    assert abs(x.std() - 1) < 0.02
    residual = np.concatenate([c.responses() - c.x @ problem.truth.ravel() for c in problem.clients])
    assert abs(residual.std() / 0.1 - 1) < 0.1


def test_the_same_generator_gives_the_same_data():
    for draw in (
        lambda rng: synthetic.linear_rules([5, 6], rng),
        lambda rng: synthetic.low_rank(2, 5, 1, rng, dimension=3).clients,
    ):
        one, two, other = (draw(np.random.default_rng(seed)) for seed in (0, 0, 1))
        assert all(np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y) for a, b in zip(one, two, strict=True))
        assert not np.array_equal(one[0].x, other[0].x)


@pytest.mark.parametrize(
    ("call", "condition"),
    [
        (lambda rng: synthetic.linear_rules([], rng), "at least one row"),
        (lambda rng: synthetic.linear_rules([4, 0], rng), "at least one row"),
        (lambda rng: synthetic.linear_rules([4], rng, rule_spread=-1), "rule_spread"),
        (lambda rng: synthetic.linear_rules([4], rng, classes=1), "classes must be an integer of at least 2"),
        (lambda rng: synthetic.low_rank(2, 5, 65, rng), "rank must be an integer between 1 and 64"),
        (lambda rng: synthetic.low_rank(0, 5, 1, rng), "must be an integer of at least 1"),
        (lambda rng: synthetic.low_rank(2, 5, 1, rng, noise=-0.1), "noise"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, condition):
    with pytest.raises(ConfigError, match=condition):
        call(np.random.default_rng(0))
