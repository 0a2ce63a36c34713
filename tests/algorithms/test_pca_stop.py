"""When the subspace methods stop: rule (27), and the KKT residual."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Aggregate, Dataset, Public
from securefed.algorithms import FAPS, SSI, LocalPower
from securefed.algorithms._pca.operators import off
from securefed.errors import ConfigError, DivergenceError
from tests.algorithms.rounds import Loop, digits, spectrum

KINDS = [SSI, LocalPower, FAPS]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kkt_residual_is_the_one_computed_from_all_rows(kind):
    clients = digits()
    x = np.concatenate([data.x for data in clients])
    loop = Loop(kind(3, stop="kkt"), clients)
    for _ in range(6):
        Z = loop.round()["basis"]
        np.testing.assert_allclose(loop.server.residual, np.linalg.norm(off(Z, x.T @ (x @ Z))), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_of_a_kkt_stop_meets_the_tolerance(kind):
    clients = spectrum(20, 400, 1.3, 4, seed=5)
    x = np.concatenate([data.x for data in clients])
    method = kind(3, stop="kkt", tolerance=1e-5)
    loop = Loop(method, clients).run(500)
    assert "KKT" in method.finished(loop.server)
    Z = loop.server.basis
    assert np.linalg.norm(off(Z, x.T @ (x @ Z))) <= 1e-5
    assert replace(method, tolerance=0.0).finished(loop.server) is None


def test_only_methods_that_send_something_else_pay_for_a_further_tensor():
    public = Public.of(digits())
    sizes = {}
    for stop in ("energy", "kkt"):
        for method in (SSI(3, stop=stop), LocalPower(3, stop=stop, local_steps=(1,)), LocalPower(3, stop=stop)):
            sizes[repr(method)] = method.layout(public).size
        sizes[f"faps {stop}"] = FAPS(3, stop=stop).layout(public).size
    plain, more = 64 * 3 + 1, 2 * 64 * 3 + 1
    assert list(sizes.values()) == [plain, plain, plain, plain, plain, plain, more, more]


def test_the_further_tensor_is_what_ssi_sends():
    clients = digits()
    faps, ssi = Loop(FAPS(3, stop="kkt"), clients), Loop(SSI(3), clients)
    faps.round(), ssi.round()
    np.testing.assert_array_equal(faps.sent[2]["gram_product"], ssi.sent[2]["product"])


def test_the_residual_speaks_of_the_survivors_alone():
    clients = digits()
    loop = Loop(SSI(3, stop="kkt"), clients)
    Z = loop.round((0, 2))["basis"]
    x = np.concatenate([clients[0].x, clients[2].x])
    np.testing.assert_allclose(loop.server.residual, np.linalg.norm(off(Z, x.T @ (x @ Z))), rtol=1e-9)


def test_noise_keeps_a_kkt_stop_from_ending_early():
    """Noise of standard deviation s on the sum adds about s sqrt(features x rank) to the residual."""
    method, clients, rng = (
        SSI(3, stop="kkt", tolerance=1e-2),
        spectrum(20, 400, 1.3, 4, seed=5),
        np.random.default_rng(0),
    )
    assert "KKT" in method.finished(Loop(method, clients).run(200).server)
    noisy, deviation, residuals = Loop(method, clients), 0.1, []
    for _ in range(40):
        before = noisy.server
        noisy.round()
        total = {name: sum(sent[name] for sent in noisy.sent.values()) for name in noisy.sent[0]}
        total["product"] = total["product"] + deviation * rng.normal(size=(20, 3))
        noisy.server = method.combine(before, Aggregate(total, (0, 1, 2, 3)))
        residuals.append(noisy.server.residual)
    assert min(residuals) > method.threshold
    np.testing.assert_allclose(np.median(residuals[10:]), deviation * np.sqrt(60), rtol=0.5)


def test_a_broken_further_tensor_is_refused():
    loop = Loop(FAPS(3, stop="kkt"), digits())
    loop.round()
    total = {**loop.sent[0], "gram_product": np.full((64, 3), np.nan)}
    with pytest.raises(DivergenceError, match="S_i Z"):
        loop.algorithm.combine(loop.server, Aggregate(total, (0,)))


@pytest.mark.parametrize("wrong", [{"stop": "never"}, {"stop": "kkt", "tolerance": -1.0}, {"tolerance": 1.0}])
def test_stops_outside_their_domain_are_refused(wrong):
    SSI(2, stop="kkt", tolerance=5.0)
    with pytest.raises(ConfigError, match="stop" if wrong.get("stop") == "never" else "tolerance"):
        SSI(2, **wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [np.arange(1.0, 6.0)[None], np.full((7, 5), 2.0)], ids=["one sample", "constant"])
def test_one_sample_and_constant_features_give_their_direction(kind, rows):
    """Both have one principal direction; the rest of the basis is free."""
    loop = Loop(kind(2, max_rounds=30), [Dataset(rows)] * 2).run(30)
    direction = rows[0] / np.linalg.norm(rows[0])
    np.testing.assert_allclose(np.linalg.norm(loop.server.basis.T @ direction), 1, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rank_as_large_as_the_features_spans_everything(kind):
    loop = Loop(kind(6, stop="kkt", tolerance=1e-9), digits(features=6)).run(3)
    assert "KKT" in kind(6, stop="kkt", tolerance=1e-9).finished(loop.server)
    np.testing.assert_allclose(loop.server.basis.T @ loop.server.basis, np.eye(6), atol=1e-12)


@pytest.mark.parametrize("method", [LocalPower(4, local_steps=(1,)), FAPS(4, inner_steps=3)])
def test_one_client_finds_the_centralised_subspace(method):
    (data,) = digits(1)
    loop = Loop(replace(method, tolerance=1e-14), [data]).run(400)
    truth = np.linalg.svd(data.x, full_matrices=False)[2][:4].T
    assert np.linalg.norm(off(truth, loop.server.basis)) < 1e-4
