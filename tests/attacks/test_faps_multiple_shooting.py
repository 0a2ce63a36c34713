"""FAPS taken apart into its rounds: the equations, their derivative and the search."""

import numpy as np
import pytest
from numpy.linalg import LinAlgError

from securefed.algorithms import FAPS
from securefed.attacks._fitting.levenberg_marquardt import gauss_newton
from securefed.attacks._gram.faps.client_equations import ClientEquations
from securefed.attacks._gram.faps.multiple_shooting import MultipleShooting
from securefed.attacks._gram.faps.simulated_client import inner_operator, iterate_by_rule, rule_counts
from securefed.errors import DivergenceError
from tests.attacks.subspaces import digits, gram, observe
from tests.combinations import each_value


def seen(inner_steps):
    """A client of 10 features: its equations, its S and its counts."""
    algorithm, clients = FAPS(2, adaptive=False, inner_steps=inner_steps), digits(10, "random")
    observed, _ = observe(algorithm, clients, 6)
    S = gram(clients[0])
    scale = float(np.linalg.eigvalsh(S)[-1])
    equations = ClientEquations.of(observed.rounds, algorithm, 0, scale)
    counts = rule_counts(S / scale, equations.received, algorithm) if inner_steps is None else np.full(5, 3)
    return MultipleShooting(equations), equations, S / scale, counts


def test_the_equations_are_differentiated_correctly():
    shooting, equations, S, _ = seen(None)
    rng = np.random.default_rng(0)
    point = np.concatenate([equations.parametrisation.coordinates(S), 0.3 * rng.normal(size=5 * 16)])
    direction, counts = rng.normal(size=len(point)), np.array([1, 3, 2, 12, 1])
    ahead, behind = (shooting.residual(point + step * direction, counts) for step in (1e-6, -1e-6))
    residual, jacobian = shooting.linearised(point, counts)
    np.testing.assert_allclose(residual, shooting.residual(point, counts), rtol=0, atol=1e-13)
    np.testing.assert_allclose(jacobian @ direction, (ahead - behind) / 2e-6, atol=1e-7)


def test_the_clients_own_subspaces_leave_nothing_and_its_counts_are_the_rules():
    shooting, equations, S, counts = seen(None)
    X, parts = equations.received.probes[0], [equations.parametrisation.coordinates(S)]
    for k, Z in enumerate(equations.received.probes[1:], start=1):
        X = iterate_by_rule(inner_operator(S, X, 0.15, Z), equations.algorithm)[1]
        parts.append(shooting._coordinates_of(k, X).reshape(-1))
    point = np.concatenate(parts)
    assert shooting.counts(point).tolist() == counts.tolist()
    assert np.linalg.norm(shooting.residual(point, counts)) < 1e-12
    assert np.linalg.norm(shooting.residual(point, counts + 1)) > 1e-5


def test_the_search_ends_at_the_client():
    shooting, equations, S, _ = seen(3)
    noise = np.random.default_rng(1).normal(size=S.shape)
    start = S + 0.05 * np.linalg.norm(S) / np.linalg.norm(noise + noise.T) * (noise + noise.T)
    landed = shooting.search(equations.parametrisation.coordinates(start), 30)
    assert landed.norm < 1e-8 and landed.counts.tolist() == [3] * 5
    assert np.linalg.norm(equations.parametrisation.matrix(landed.x) - S) < 1e-3


def test_gauss_newton_keeps_the_digits_that_normal_equations_lose():
    rng = np.random.default_rng(2)
    A = np.linalg.qr(rng.normal(size=(30, 8)))[0] * np.logspace(0, -9, 8) @ np.linalg.qr(rng.normal(size=(8, 8)))[0]
    truth = rng.normal(size=8)

    def linearised(x):
        return A @ np.sinh(x) - A @ np.sinh(truth), A * np.cosh(x)

    fit = gauss_newton(linearised, truth + 1e-3, 8)
    assert fit.norm < 1e-14 and np.linalg.norm(fit.point - truth) < 1e-5
    lost = np.linalg.solve(A.T @ A + 1e-18 * np.eye(8), A.T @ (A @ truth))
    assert np.linalg.norm(lost - truth) > 1e-4
    assert not gauss_newton(lambda x: (np.full(1, np.nan), np.ones((1, 8))), truth, 8).norm < 1


@pytest.mark.parametrize(("failure", "good_points"), each_value([LinAlgError, DivergenceError, "NaN"], [0, 1, 2]))
def test_a_search_whose_counts_fail_at_a_new_point_keeps_the_last_good_one(failure, good_points, monkeypatch):
    """The counts of a new point follow from its S and may be larger than those of the step that led there."""
    shooting, equations, S, counts = seen(None)
    start = equations.parametrisation.coordinates(1.2 * S)
    before = shooting.search(start, max(good_points - 1, 0))
    calls = 0

    def failing(point):
        nonlocal calls
        calls += 1
        if calls <= good_points:
            return MultipleShooting.counts(shooting, point)
        if failure == "NaN":
            monkeypatch.setattr(shooting, "residual", lambda *_: np.full(1, np.nan))
            return counts
        raise failure("an iterate is not finite")

    monkeypatch.setattr(shooting, "counts", failing)
    found = shooting.search(start, 5)
    if good_points:
        assert found.norm == before.norm < np.inf
        np.testing.assert_array_equal(found.x, before.x)
        np.testing.assert_array_equal(found.counts, before.counts)
    else:
        assert found.norm == np.inf
