"""What FedPCA is compared with: the pooled optimum, and each client alone."""

import numpy as np
import pytest

from securefed import Dataset, Federation, Public
from securefed.algorithms import SelfLearningPCA, centralised, reconstruction_loss
from securefed.algorithms._pca.centralised import leading
from securefed.algorithms._pca.operators import Gram, off, orth
from securefed.errors import ConfigError
from tests.algorithms.rounds import centred

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(200, 12), (8, 30)])  # from S, and from the rows
def test_leading_components_are_those_of_the_singular_value_decomposition(shape):
    x = RNG.normal(size=shape)
    _, singular, rows = np.linalg.svd(x, full_matrices=False)
    found = leading(Gram.of(x), 3)
    np.testing.assert_allclose(np.abs(np.sum(found.basis * rows[:3].T, axis=0)), 1, atol=1e-9)
    np.testing.assert_allclose(found.captured, np.sum(singular[:3] ** 2))
    np.testing.assert_allclose(found.loss, reconstruction_loss(found.basis, [Dataset(x)]))


def test_no_basis_does_better_than_the_optimum():
    clients = centred()
    best = centralised(clients, 3)
    assert best.loss == pytest.approx(reconstruction_loss(best.basis, clients), rel=1e-10)
    for _ in range(20):
        near = best.basis + 0.1 * RNG.normal(size=best.basis.shape)
        assert reconstruction_loss(near, clients) > best.loss


def test_normalised_clients_count_alike():
    """Twice the rows of one client move the pooled components, not the normalised ones."""
    clients = centred()
    doubled = [Dataset(np.concatenate([clients[0].x] * 5)), *clients[1:]]
    for normalise, moved in ((True, False), (False, True)):
        plain = centralised(clients, 3, normalise=normalise).basis
        other = centralised(doubled, 3, normalise=normalise).basis
        assert (np.linalg.norm(off(plain, other)) > 1e-3) == moved
    scaled = centralised(doubled, 3, normalise=True)
    assert scaled.loss == pytest.approx(reconstruction_loss(scaled.basis, doubled, normalise=True), rel=1e-9)


def test_fewer_rows_than_components_fill_up():
    x = np.zeros((2, 6))
    x[0, 0], x[1, 1] = 3.0, 2.0
    for rows in (x, x[:1], np.zeros((1, 6))):
        found = leading(Gram.of(rows), 4)
        np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(4), atol=1e-12)
        np.testing.assert_allclose(found.loss, 0, atol=1e-12)
        np.testing.assert_allclose(rows @ found.basis @ found.basis.T, rows, atol=1e-12)


def test_self_learning_keeps_each_clients_own_components():
    clients = centred()
    result = Federation(SelfLearningPCA(3), clients).run(1)
    shares = []
    for index, data in enumerate(clients):
        own = result.personal[index]["basis"]
        assert np.linalg.norm(off(centralised([data], 3).basis, own)) < 1e-9
        shares.append(np.linalg.norm(data.x @ own) ** 2 / np.linalg.norm(data.x) ** 2)
    np.testing.assert_allclose(result.output["share"], np.mean(shares))
    assert set(result.output) == {"share"}  # no basis leaves a client
    pooled = centralised(clients, 3).basis
    assert np.linalg.norm(off(pooled, result.personal[0]["basis"])) > 0.01


def test_one_client_alone_is_centralised_pca():
    (data,) = centred(1)
    own = Federation(SelfLearningPCA(4), [data]).run(1).personal[0]["basis"]
    assert np.linalg.norm(off(centralised([data], 4).basis, own)) < 1e-9


@pytest.mark.parametrize("x", [np.zeros((3, 5)), np.ones((1, 5)), np.full((4, 5), 2.0)])
def test_poor_data_work_alone(x):
    result = Federation(SelfLearningPCA(2), [Dataset(x), Dataset(RNG.normal(size=(9, 5)))]).run(1)
    assert 0 < result.output["share"] <= 1
    np.testing.assert_allclose(orth(result.personal[0]["basis"]).shape, (5, 2))


def test_more_components_than_features_are_refused():
    public = Public.of([Dataset(np.ones((3, 5)))])
    for call in (SelfLearningPCA(6).layout, lambda p: SelfLearningPCA(6).start(p, RNG)):
        with pytest.raises(ConfigError, match="between 1 and 5"):
            call(public)
    with pytest.raises(ConfigError, match="between 1 and 5"):
        centralised([Dataset(np.ones((3, 5)))], 6)
    with pytest.raises(ConfigError, match="rank"):
        SelfLearningPCA(0)
