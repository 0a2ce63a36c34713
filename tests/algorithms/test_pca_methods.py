"""The PCA methods against their equations, their limits, and each other."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed import Aggregate, Dataset, Public
from securefed._persistence.packing import pack, restore
from securefed.algorithms import FAPS, SSI, FedPE, FedPG, LocalPower, RoundOutcome
from securefed.algorithms._pca.consensus import ConsensusPCA
from securefed.algorithms._pca.operators import Gram, off, orth
from securefed.errors import ConfigError, DivergenceError
from tests.algorithms.rounds import Loop, digits, spectrum, subspace_error

RNG = np.random.default_rng(0)
METHODS = [
    SSI(3),
    LocalPower(3),
    FAPS(3),
    FAPS(3, inner_rule="bases", adaptive=False),
    FAPS(3, inner_steps=4),
    FAPS(3, inner_rule="reach"),
    LocalPower(3, stop="kkt", rounds_each=2),
    FedPG(3, rho=3.0, step_size=0.2, local_steps=3),
    FedPG(3, rho=3.0, step_size=0.2, local_steps=3, normalise=False),
    FedPE(3, rho=3.0, step_size=0.005, local_steps=3),
]


def test_one_client_is_centralised_subspace_iteration():
    (data,) = digits(1)
    loop = Loop(SSI(4), [data])
    V = loop.server.basis
    for _ in range(6):
        V = np.linalg.qr(data.x.T @ (data.x @ V))[0]
    loop.run(6)
    assert np.linalg.norm(off(V, loop.server.basis)) < 1e-12


@pytest.mark.parametrize("rows", [400, 40])  # S_i formed, and not
def test_ssi_of_many_clients_is_ssi_of_the_pooled_rows(rows):
    clients = [data.take(np.arange(rows)) for data in digits(3)]
    pooled = Dataset(np.concatenate([data.x for data in clients]))
    many, one = Loop(SSI(4), clients).run(5), Loop(SSI(4), [pooled]).run(5)
    np.testing.assert_allclose(many.server.basis, one.server.basis, atol=1e-11)


def test_localpower_with_one_step_is_ssi():
    left, right = Loop(LocalPower(3, local_steps=(1,)), digits()).run(5), Loop(SSI(3), digits()).run(5)
    np.testing.assert_array_equal(left.server.basis, right.server.basis)


def test_localpower_follows_its_schedule():
    (data,) = digits(1)
    local = Loop(LocalPower(3, local_steps=(4, 2, 1)), [data]).run(4)  # 4 + 2 + 1 + 1 products
    ssi = Loop(SSI(3), [data]).run(8)
    assert np.linalg.norm(off(ssi.server.basis, local.server.basis)) < 1e-11
    twice = Loop(LocalPower(3, local_steps=(3, 1), rounds_each=2), [data]).run(4)  # 3 + 3 + 1 + 1 products
    assert np.linalg.norm(off(ssi.server.basis, twice.server.basis)) < 1e-11
    wrong = Loop(SSI(3), [data]).run(7)
    assert np.linalg.norm(off(wrong.server.basis, local.server.basis)) > 1e-4


@pytest.mark.parametrize("method", METHODS[:6], ids=repr)
def test_subspace_methods_find_the_dominant_subspace(method):
    clients = spectrum(30, 200, 1.2, 4, seed=3)
    loop = Loop(method, clients).run(1000)
    assert "rule (27)" in method.finished(loop.server)
    assert subspace_error(loop.server.basis, np.concatenate([c.x for c in clients]), 3) < 1e-3


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_packed_and_restored_states_continue_the_same_run(method):
    clients = digits()
    straight = Loop(method, clients).run(4)
    left = Loop(method, clients).run(2)
    fresh = Loop(method, clients)
    fresh.server = restore(fresh.server, pack(left.server))
    fresh.clients = [restore(new, pack(old)) for new, old in zip(fresh.clients, left.clients, strict=True)]
    fresh.run(2)
    for name, value in method.broadcast(straight.server).items():
        np.testing.assert_array_equal(method.broadcast(fresh.server)[name], value)
    assert not any("gram" in name for name in pack(fresh.clients[0]))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_dropped_client_resumes_from_its_last_committed_state(method):
    """Whether a client computed and was dropped, or was never asked, the run is the same."""
    dropped, absent = Loop(method, digits()), Loop(method, digits())
    for k in range(6):
        survivors, missing = ((0, 1, 3), (2,)) if k % 2 else ((0, 2, 3), (1,))
        dropped.round(survivors, dropped=missing)
        absent.round(survivors)
    for name, value in method.broadcast(absent.server).items():
        np.testing.assert_array_equal(method.broadcast(dropped.server)[name], value)


@pytest.mark.parametrize("method", [*METHODS[:3], *METHODS[4:8]], ids=repr)
def test_partial_participation_still_converges(method):
    clients = spectrum(20, 400, 1.3, 4, seed=5)
    loop = Loop(replace(method, tolerance=0.0), [Dataset(c.x * 20) for c in clients])
    for k in range(80):
        loop.round(tuple(i for i in range(4) if i != k % 4))
    Z = method.broadcast(loop.server)["basis"]
    # three of four clients at a time: every method turns around the pooled subspace
    assert subspace_error(Z, np.concatenate([c.x for c in clients]), 3) < 0.3


def test_the_stop_rule_compares_only_rounds_of_the_same_survivors():
    method = SSI(3, tolerance=0.5)
    loop = Loop(method, digits())
    for survivors in ((0, 1), (0, 2), (0, 1)):
        loop.round(survivors)
        assert method.finished(loop.server) is None
    loop.round((0, 1))
    assert "rule (27)" in method.finished(loop.server)
    assert replace(method, tolerance=0.0).finished(loop.server) is None
    assert "maximum" in replace(method, tolerance=0.0, max_rounds=4).finished(loop.server)


@pytest.mark.parametrize("method", METHODS, ids=repr)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**16), rows=st.integers(1, 40), kind=st.sampled_from(["random", "constant", "zero"]))
def test_contributions_keep_the_public_bounds(method, seed, rows, kind):
    rng = np.random.default_rng(seed)
    x = {"random": rng.uniform(-2, 2, (rows, 8)), "constant": np.full((rows, 8), 2.0), "zero": np.zeros((rows, 8))}
    public = Public.of([Dataset(x[kind])], feature_bound=2.0)
    layout = method.layout(public)
    client = method.enroll(Dataset(x[kind]), public, rng)
    server = method.start(public, rng)
    if kind == "constant" and "basis" in method.broadcast(server) and not isinstance(method, ConsensusPCA):
        ones = np.column_stack([np.ones(8), rng.normal(size=(8, 2))])
        server = replace(server, basis=orth(ones))  # the worst case: every bound is met with equality
    for _ in range(2):
        broadcast = method.broadcast(server)
        tentative, sent = method.contribute(client, broadcast, rng)
        layout.check(sent)
        evaluation = method.evaluate(client, broadcast)
        method.evaluation_layout(public).check(evaluation)
        if isinstance(method, FedPG) and not method.normalise:
            break  # rho far below lambda_1: this setting diverges, as its documentation says
        for spec in (*layout, *method.evaluation_layout(public)):
            value = sent.get(spec.name, evaluation.get(spec.name))
            assert np.abs(value).max() <= spec.bound
        server = method.combine(server, Aggregate(sent, (0,)))
        client = method.commit(tentative, RoundOutcome(True, method.broadcast(server)))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_any_finite_sum_combines_and_a_broken_one_is_refused(method):
    clients = digits()
    loop = Loop(method, clients)
    layout = method.layout(loop.public)
    zero = {spec.name: np.zeros(spec.shape) for spec in layout}
    noise = {spec.name: -RNG.normal(size=spec.shape) for spec in layout}
    for total in (zero, noise):
        assert np.isfinite(method.broadcast(method.combine(loop.server, Aggregate(total, (0, 1))))["basis"]).all()
    for spec in layout:
        broken = {**noise, spec.name: np.full(spec.shape, np.nan)}
        with pytest.raises(DivergenceError):
            method.combine(loop.server, Aggregate(broken, (0, 1)))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_evaluation_sums_captured_and_total_energy(method):
    clients = digits()
    loop = Loop(method, clients).run(2)
    broadcast = method.broadcast(loop.server)
    Z = orth(broadcast["basis"])
    got = [method.evaluate(client, broadcast) for client in loop.clients]
    np.testing.assert_allclose([float(g["captured"]) for g in got], [np.linalg.norm(c.x @ Z) ** 2 for c in clients])
    np.testing.assert_allclose([float(g["total"]) for g in got], [np.linalg.norm(c.x) ** 2 for c in clients])
    assert method.personal(loop.clients[0]) is None


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_more_components_than_features_are_refused(method):
    clients = digits(features=5)
    public = Public.of(clients)
    fits, wide = replace(method, rank=5), replace(method, rank=6)
    fits.layout(public), fits.start(public, RNG), fits.enroll(clients[0], public, RNG)
    for call in (wide.layout, lambda p: wide.start(p, RNG), lambda p: wide.enroll(clients[0], p, RNG)):
        with pytest.raises(ConfigError, match="between 1 and 5"):
            call(public)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (SSI, {"rank": 0}),
        (SSI, {"tolerance": 1.0}),
        (SSI, {"max_rounds": 0}),
        (LocalPower, {"local_steps": ()}),
        (LocalPower, {"local_steps": (2, 0)}),
        (LocalPower, {"rounds_each": 0}),
        (FAPS, {"beta_scale": 0.0}),
        (FAPS, {"inner_rule": "basis"}),
        (FAPS, {"inner_tolerance": 0.0}),
        (FAPS, {"inner_cap": 0}),
        (FAPS, {"inner_steps": 0}),
        (FAPS, {"reach": 0.0}),
    ],
)
def test_parameters_outside_their_domain_are_refused(make, wrong):
    make(**{"rank": 2})
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        make(**{"rank": 2, **wrong})


def test_largest_eigenvalue_agrees_on_all_routes():
    for shape in ((300, 80), (80, 300), (20, 300), (3, 2), (1, 1)):
        x = RNG.normal(size=shape)
        np.testing.assert_allclose(Gram.of(x).norm(), np.linalg.norm(x, 2) ** 2, rtol=1e-10)
        V = RNG.normal(size=(shape[1], 2))
        np.testing.assert_allclose(Gram.of(x).times(V), x.T @ x @ V, atol=1e-10)
