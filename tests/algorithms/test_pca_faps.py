"""FAPS against its equations, and its rules for the inner steps."""

from dataclasses import replace

import numpy as np

from securefed import Public
from securefed.algorithms import FAPS, SSI
from securefed.algorithms._pca.faps import MaskedGram
from securefed.algorithms._pca.operators import Gram, off, orth
from tests.algorithms.rounds import Loop, digits, spectrum

RNG = np.random.default_rng(0)


def rounds_to_kkt(method, clients):
    """Rounds to a KKT residual of 1e-4 (the stop that gives the figures of faps Tables 1 and 4)."""
    return Loop(replace(method, stop="kkt"), clients).run(400).server.round


def test_faps_needs_fewer_rounds_than_ssi_on_slow_spectra():
    """faps Tables 1 and 4, at a size that runs in seconds and with five inner steps: 44 rounds against 144."""
    clients = spectrum(200, 1600, 1.02, 8, seed=4)
    assert rounds_to_kkt(FAPS(5, inner_steps=5), clients) < 0.5 * rounds_to_kkt(SSI(5), clients)


def test_first_faps_message_is_beta_and_one_block():
    """Y^0 = beta Z Z^T Z + (I - Z Z^T) S Z, whatever the number of inner steps."""
    for steps in (None, 1, 7):
        loop = Loop(FAPS(5, inner_steps=steps), digits())
        Z = loop.round()["basis"]
        for index, data in enumerate(digits()):
            S = data.x.T @ data.x
            beta = 0.15 * np.linalg.eigvalsh(S)[-1]
            expected = beta * Z + off(Z, S @ Z)
            np.testing.assert_allclose(loop.sent[index]["product"], expected, atol=1e-9 * beta)


def test_faps_operator_and_message_are_equations_12_and_18():
    (data,) = digits(1, features=12)
    S, X, Z = data.x.T @ data.x, orth(RNG.normal(size=(12, 3))), orth(RNG.normal(size=(12, 3)))
    beta, P = 0.7, X @ X.T
    W = -off(X, S @ X)
    Q = np.eye(12) - P
    H = P @ S @ P + Q @ S @ Q + beta * Z @ Z.T  # the second form of (12)
    V = RNG.normal(size=(12, 4))
    np.testing.assert_allclose(MaskedGram(Gram.of(data.x), X, W, beta, Z).times(V), H @ V, atol=1e-10)

    algorithm = FAPS(3, inner_steps=1, adaptive=False)
    client = algorithm.enroll(data, Public.of([data]), RNG)
    client = replace(client, beta=beta, basis=X, mask=W)
    tentative, sent = algorithm.contribute(client, {"basis": Z}, RNG)
    new = orth(H @ X)
    np.testing.assert_allclose(tentative.basis, new, atol=1e-10)
    P, Q = new @ new.T, np.eye(12) - new @ new.T
    mask_matrix = beta * P + Q @ S @ P + P @ S @ Q  # (18), (20)
    np.testing.assert_allclose(sent["product"], mask_matrix @ Z, atol=1e-9)
    np.testing.assert_allclose(sent["captured"], np.linalg.norm(data.x @ Z) ** 2)


def test_faps_beta_grows_only_by_rule_25():
    loop = Loop(FAPS(3), digits())
    start = loop.clients[0].beta
    for expected in (1, 1, 1, 1, 1, 1.1):  # d^0 = 0, so the sixth step (k = 5) always finds a stall
        loop.round()
        np.testing.assert_allclose(loop.clients[0].beta, expected * start)
    fixed = Loop(FAPS(3, adaptive=False), digits()).run(12)
    assert fixed.clients[0].beta == start


def test_inner_rules_differ_in_what_they_compare():
    """From bases that rotate inside an invariant subspace, the subspace test stops at once, (26) does not."""
    x = np.diag([3.0, 2.0, 0.0, 0.0])
    Z = np.vstack([orth(np.array([[1.0, 1.0], [1.0, -1.0]])), np.zeros((2, 2))])
    H = MaskedGram(Gram.of(x), Z, np.zeros_like(Z), 0.1, Z)
    turned = FAPS(2, inner_rule="bases", inner_cap=60)._inner(H)
    assert np.linalg.norm(FAPS(2)._inner(H) - orth(H.times(Z))) == 0
    assert np.linalg.norm(turned - orth(H.times(Z))) > 0.1


def test_reach_ends_once_x_has_moved_as_far_as_it_says():
    (data,) = digits(1, features=12)
    gram, X, Z = Gram.of(data.x), orth(RNG.normal(size=(12, 3))), orth(RNG.normal(size=(12, 3)))
    H = MaskedGram(gram, X, -off(X, gram.times(X)), 0.1 * gram.norm(), Z)
    away = np.linalg.norm(off(X, Z))
    path = [X]
    for _ in range(60):
        path.append(orth(H.times(path[-1])))
    moved = np.array([np.linalg.norm(off(X, V)) for V in path])
    for reach in (0.05, 0.3, 0.6):
        first = int(np.argmax(moved >= reach * away))
        assert first >= 1
        got = FAPS(3, inner_rule="reach", reach=reach, inner_tolerance=1e-12)._inner(H)
        np.testing.assert_allclose(got, path[first], atol=1e-12)
    settled = FAPS(3, inner_rule="reach", reach=1e9, inner_tolerance=1e-3)._inner(H)  # out of reach: it settles
    assert np.linalg.norm(off(settled, orth(H.times(settled)))) < 1e-3 * moved.max()
