"""FedPG and FedPE against their equations, their limits, and each other."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Aggregate, Dataset, Federation, Public
from securefed.algorithms import FedPE, FedPG, RoundOutcome, centralised, reconstruction_loss
from securefed.algorithms._pca.consensus import BLOWN_UP, ConsensusPCA
from securefed.algorithms._pca.fedpe import lagrangian_gradient
from securefed.algorithms._pca.fedpg import local_step
from securefed.algorithms._pca.operators import orth
from securefed.errors import ConfigError, DivergenceError
from tests.algorithms.rounds import Loop, centred, digits, subspace_error
from tests.combinations import each_value

RNG = np.random.default_rng(0)
FEDPG = FedPG(3, rho=3.0, step_size=0.2, local_steps=3)
FEDPE = FedPE(3, rho=3.0, step_size=0.1, local_steps=6)
BOTH = pytest.mark.parametrize("method", [FEDPG, FEDPE], ids=["FedPG", "FedPE"])


def objective(U, x):
    """f(U) = ||(I - U U^T) A||_F^2 over the rows."""
    return np.linalg.norm(x - x @ U @ U.T) ** 2 / len(x)


def lagrangian(U, x, Z, Y, T, rho):
    """(6), one client's part."""
    h = np.maximum(0, U.T @ U - np.eye(U.shape[1])) ** 2  # (4)
    linear = np.sum(Y * (U - Z)) + np.sum(T * h)
    return objective(U, x) + linear + rho / 2 * (np.linalg.norm(U - Z) ** 2 + np.linalg.norm(h) ** 2)


def slope(function, U, direction, width=1e-6):
    return (function(U + width * direction) - function(U - width * direction)) / (2 * width)


def test_fedpg_step_is_the_riemannian_gradient_step():
    (data,) = digits(1, features=10)
    S = data.x.T @ data.x / data.rows
    U, Z, Y = orth(RNG.normal(size=(10, 3))), orth(RNG.normal(size=(10, 3))), RNG.normal(size=(10, 3))
    rho, eta = 2.0, 0.05
    gradient = -4 * S @ U + 2 * S @ U @ (U.T @ U) + 2 * U @ (U.T @ S @ U)  # of ||(I - U U^T) A||_F^2, in general
    g = (np.eye(10) - U @ U.T) @ (gradient + Y + rho * (U - Z))
    np.testing.assert_allclose(local_step(U, S @ U, Y - rho * Z, eta), orth(U - eta * g), atol=1e-13)
    D = RNG.normal(size=U.shape)
    np.testing.assert_allclose(np.vdot(gradient, D), slope(lambda V: objective(V, data.x), U, D), rtol=1e-6)


@pytest.mark.parametrize("length", [0.8, 1.0, 1.3])  # constraint slack, at its edge, and active
def test_fedpe_gradient_is_that_of_the_augmented_lagrangian(length):
    (data,) = digits(1, features=10)
    S, rho = data.x.T @ data.x / data.rows, 2.0
    U = length * orth(RNG.normal(size=(10, 3))) + 0.05 * RNG.normal(size=(10, 3))
    Z, Y, T = RNG.normal(size=(10, 3)), RNG.normal(size=(10, 3)), RNG.uniform(0, 5, (3, 3))
    gradient = lagrangian_gradient(U, S @ U, Y - rho * Z, T, rho)
    for _ in range(4):
        D = RNG.normal(size=U.shape)
        expected = slope(lambda V: lagrangian(V, data.x, Z, Y, T, rho), U, D)
        np.testing.assert_allclose(np.vdot(gradient, D), expected, rtol=2e-6, atol=1e-7)
    without = lagrangian_gradient(U, S @ U, Y - rho * Z, 0 * T, rho)
    assert (np.abs(without - gradient).max() > 1e-3) == (np.max(U.T @ U - np.eye(3)) > 0.01)


def test_the_penalty_is_one_sided_as_printed():
    """Short columns and obtuse angles are free: at S = 0 the gradient there is the linear part alone."""
    zero = np.zeros((4, 2))
    U = np.array([[0.5, -0.4], [0.5, 0.1], [0.0, 0.6], [0.0, 0.0]])
    assert (U.T @ U - np.eye(2) < 0).all()
    np.testing.assert_array_equal(lagrangian_gradient(U, zero, zero, np.ones((2, 2)), 3.0), 3.0 * U)
    assert np.abs(lagrangian_gradient(3 * U, zero, zero, np.ones((2, 2)), 3.0) - 9.0 * U).max() > 1


@BOTH
def test_participants_alone_move_and_their_duals_follow_their_own_round(method):
    """Z+ = mean of the participants' M_i  (8); Y_i = rho (M_i - Z+)  (9); everybody else keeps U_i and Y_i."""
    loop = Loop(method, centred())
    for survivors in ((0, 1, 2, 3), (0, 2), (1, 2, 3), (3,), (0, 1, 2, 3)):
        before = loop.clients[:]
        loop.round(survivors)
        points = [loop.sent[i]["point"] for i in survivors]
        np.testing.assert_allclose(loop.server.mean, np.mean(points, axis=0), atol=1e-14)
        for i, client in enumerate(loop.clients):
            if i not in survivors:
                assert client is before[i]
                continue
            dual = before[i].dual if before[i].dual is not None else 0
            expected = dual + method.rho * (client.basis - loop.server.mean)
            np.testing.assert_allclose(client.dual, expected, atol=1e-12)
            np.testing.assert_allclose(client.dual, method.rho * (loop.sent[i]["point"] - loop.server.mean), atol=1e-12)
        if len(survivors) == 4:  # (11) holds then, and only then
            duals = np.sum([client.dual for client in loop.clients], axis=0)
            assert np.abs(duals).max() < 1e-12


def test_fedpg_iterates_stay_orthonormal():
    loop = Loop(FEDPG, centred()).run(25)
    for client in loop.clients:
        np.testing.assert_allclose(client.basis.T @ client.basis, np.eye(3), atol=1e-12)


def test_fedpe_constraint_duals_collect_rho_h():
    """T_i <- T_i + rho h(U_i^{k+1})  (10), once a round and at commit, so a dropped round leaves no trace."""
    method = replace(FEDPE, step_size=0.15)
    loop, total = Loop(method, centred()), np.zeros((3, 3))
    for k in range(8):
        loop.round((0, 1) if k % 2 else (1, 2, 3), dropped=(2,) if k % 2 else (0,))
        U = loop.clients[1].basis
        total += method.rho * np.maximum(0, U.T @ U - np.eye(3)) ** 2
        np.testing.assert_allclose(loop.clients[1].constraint_dual, total, atol=1e-14)
    assert total.max() > 0


@BOTH
def test_one_client_is_the_local_method(method):
    """N = 1: Z+ = U + Y / rho with Y = 0 after every round, so the rounds are proximal steps of PCA on its rows."""
    (data,) = centred(1)
    loop = Loop(method, [data])
    S, Z = data.x.T @ data.x / data.rows, loop.server.mean
    U, T = Z, np.zeros((3, 3))
    for _ in range(5):
        for _ in range(method.local_steps):
            if isinstance(method, FedPG):
                U = np.linalg.qr(U - method.step_size * (np.eye(64) - U @ U.T) @ (-2 * S @ U + method.rho * (U - Z)))[0]
                U = U * np.sign(np.sum(U * Z, axis=0))  # QR leaves signs open; near Z they are those of Z
            else:
                U = U - method.step_size * lagrangian_gradient(U, S @ U, -method.rho * Z, T, method.rho)
        T = T + method.rho * np.maximum(0, U.T @ U - np.eye(3)) ** 2
        Z = U
        loop.round()
        np.testing.assert_allclose(loop.server.mean, Z, atol=1e-10)
        assert np.abs(loop.clients[0].dual).max() < 1e-12
    assert "Z changed" in method.finished(loop.run(800).server)
    assert subspace_error(loop.server.mean, data.x, 3) < 1e-4


@BOTH
def test_the_pooled_subspace_is_a_fixed_point(method):
    """U_i = Z = V and Y_i = -grad f_i(V): every local step stays, and so do Z and Y."""
    clients = centred()
    public = Public.of(clients)
    V = centralised(clients, 3, normalise=True).basis
    states, expected = [], []
    for data in clients:
        state = method.enroll(data, public, RNG)
        S = data.x.T @ data.x / data.rows
        dual = 2 * (S @ V - V @ (V.T @ S @ V))
        states.append(replace(state, basis=V, dual=dual))
        expected.append(dual)
    assert np.abs(np.sum(expected, axis=0)).max() < 1e-12 < np.abs(expected).max()
    server = replace(method.start(public, RNG), mean=V)
    steps = [method.contribute(state, {"basis": V}, RNG) for state in states]
    after = method.combine(server, Aggregate({"point": sum(sent["point"] for _, sent in steps)}, (0, 1, 2, 3)))
    np.testing.assert_allclose(after.mean, V, atol=1e-12)
    for (tentative, _), dual in zip(steps, expected, strict=True):
        settled = method.commit(tentative, RoundOutcome(True, {"basis": after.mean}))
        np.testing.assert_allclose(settled.basis, V, atol=1e-12)
        np.testing.assert_allclose(settled.dual, dual, atol=1e-11)


@BOTH
def test_converges_to_the_optimum_where_rho_exceeds_twice_the_largest_eigenvalue(method):
    clients = centred()
    largest = max(np.linalg.norm(c.x, 2) ** 2 / c.rows for c in clients)
    assert method.rho > 2 * largest
    loop = Loop(method, clients).run(600)
    optimum = centralised(clients, 3).loss
    assert 1 - 1e-12 <= reconstruction_loss(loop.server.mean, clients) / optimum < 1.0001
    assert subspace_error(loop.server.mean, np.concatenate([c.x for c in clients]), 3) < 1e-2


@BOTH
def test_half_of_the_clients_a_round_end_near_the_optimum(method):
    """Label-sorted digits: the duals of absent clients keep; the mean over all participants' last points is exact."""
    x = np.concatenate([c.x for c in centred(1)])
    clients = [Dataset(part) for part in np.array_split(x[np.argsort(x[:, 20], kind="stable")], 8)]
    loop, rng = Loop(replace(method, rho=8.0, step_size=0.05), clients), np.random.default_rng(3)
    for _ in range(250):
        loop.round(tuple(sorted(int(i) for i in rng.choice(8, 4, replace=False))))
    assert reconstruction_loss(loop.server.mean, clients) / centralised(clients, 3).loss < 1.01


@BOTH
def test_a_cohort_at_once_is_the_loop(method):
    """Formed and unformed Gram matrices, newcomers and settled clients, in one stack."""
    clients = [Dataset(c.x[: 300 if i % 3 else 20]) for i, c in enumerate(centred(5))]
    loop = Loop(method, clients)
    loop.round((0, 1, 2))
    loop.round((1, 2, 4))
    broadcast = method.broadcast(loop.server)
    together = method.contribute_together(loop.clients, broadcast, [RNG] * 5)
    for client, (state, sent) in zip(loop.clients, together, strict=True):
        alone, message = method.contribute(client, broadcast, RNG)
        np.testing.assert_allclose(sent["point"], message["point"], atol=1e-10)
        np.testing.assert_allclose(state.basis, alone.basis, atol=1e-10)
        np.testing.assert_array_equal(state.dual, alone.dual)


@pytest.mark.parametrize(
    ("kind", "method"), each_value(["one row", "constant features", "zeros"], [FEDPG, FEDPE]), ids=repr
)
def test_poor_data_work(method, kind):
    clients = centred()
    poor = {"one row": clients[0].x[:1], "constant features": np.ones((5, 64)) / 8, "zeros": np.zeros((5, 64))}[kind]
    method = replace(method, step_size=0.01, local_steps=30)  # one row of norm 3 has lambda_1 = 9
    result = Federation(method, [Dataset(poor), *clients[1:]], seed=1).run(30)
    assert np.isfinite(result.output["basis"]).all()
    ratio = reconstruction_loss(result.output["basis"], clients) / centralised(clients, 3).loss
    assert ratio < 1.1  # an odd one among four does not spoil the others' subspace


def test_divergence_is_named_with_the_remedy():
    """FedPE leaves the numbers where eta (8 lambda_1 + rho) is far beyond 2: the client says so, the run stops."""
    clients = [Dataset(30 * c.x) for c in centred()]
    with pytest.raises(DivergenceError, match="lower the step size"):
        Federation(FEDPE, clients).run(20)
    loop = Loop(FEDPE, clients)
    with pytest.raises(DivergenceError, match=r"lower step_size \(now 0.1\)"):
        loop.run(20)
    failed = FEDPE.contribute_together(loop.clients, FEDPE.broadcast(loop.server), [RNG] * 4)
    assert any(isinstance(outcome, DivergenceError) for outcome in failed)
    Federation(replace(FEDPE, step_size=1e-4, rho=2000.0), clients).run(20)  # positive control
    with pytest.raises(DivergenceError, match="round 0: the mean point reached"):
        FEDPG.combine(loop.server, Aggregate({"point": np.full((64, 3), 5 * BLOWN_UP)}, (0, 1)))


def test_settling_needs_the_rounds_own_result():
    loop = Loop(FEDPG, digits())
    tentative, _ = FEDPG.contribute(loop.clients[0], FEDPG.broadcast(loop.server), RNG)
    with pytest.raises(ConfigError, match="followed"):
        FEDPG.commit(tentative, RoundOutcome(True, None))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 0},
        {"rho": -1.0},
        {"rho": 0.0},
        {"step_size": float("inf")},
        {"step_size": float("nan")},
        {"step_size": 2.5},  # step_size * rho = 2.5
        {"local_steps": 0},
        {"tolerance": -1e-3},
        {"max_rounds": 0},
    ],
)
@pytest.mark.parametrize("kind", [FedPG, FedPE])
def test_parameters_outside_their_domain_are_refused(kind, wrong):
    assert isinstance(kind(rank=2), ConsensusPCA)
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        kind(**{"rank": 2, **wrong})
