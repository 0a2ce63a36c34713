"""LocalPower's rounds of several local products give S away: S^q by elimination, S as its root, then a fit."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset
from securefed.algorithms import SSI, LocalPower
from securefed.algorithms._pca.operators import orth
from securefed.attacks import Attack, Target, attacks
from securefed.attacks._gram import LocalPowerGram
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.repeated_products import LocalPowerRound, factors, root, simulation
from securefed.attacks.scores import relative_error
from securefed.errors import ConfigError, TranscriptError
from tests.attacks.subspaces import digits, gram, observe

RNG = np.random.default_rng(0)


def federation(features, rows, seed=0):
    """Five clients of digits, the first of them with few rows."""
    first, *others = digits(features, "random", seed=seed)
    return [Dataset(first.x[:rows]), *others]


def products(S, probes, steps):
    rounds = []
    for Z in probes:
        V = Z
        for _ in range(steps - 1):
            V = orth(S @ V)
        rounds.append(LocalPowerRound(Z, S @ V, steps, float(np.vdot(Z, S @ Z))))
    return rounds


def test_the_triangular_factors_follow_from_symmetry_up_to_one_scale():
    A = RNG.normal(size=(8, 8))
    S = A @ A.T
    rounds = products(S, [orth(RNG.normal(size=(8, 2))) for _ in range(5)], 3)
    found = factors(rounds)
    true = np.hstack([np.linalg.matrix_power(S, 3) @ r.probe for r in rounds])
    ratio = np.vdot(true, found.products) / np.vdot(true, true)
    assert ratio > 0 and found.gap > 1e6
    np.testing.assert_allclose(found.products / ratio, true, atol=1e-7 * np.abs(true).max())
    assert relative_error(root(rounds, 8), S) < 1e-5
    assert factors(rounds[:1]).gap < 10  # one round alone does not say


@pytest.mark.parametrize("columns", [2, 3])
def test_the_simulated_products_are_the_clients_own_and_their_derivatives_are_right(columns):
    A = RNG.normal(size=(6, 6))
    S = A @ A.T
    rounds = products(S, [orth(RNG.normal(size=(6, 3))) for _ in range(2)], 4)
    rounds = [replace(r, product=r.product[:, :columns]) for r in rounds]
    client, coordinates = simulation(rounds, LocalPower(3, local_steps=(4,))), SymmetricMatrices.of(6)
    x = coordinates.coordinates(S)
    seen = np.concatenate([np.append(r.product.ravel(), r.captured) for r in rounds])
    np.testing.assert_allclose(client.sent(x), seen, atol=1e-11)
    x, direction = x + 0.1 * RNG.normal(size=21), RNG.normal(size=21)
    slope = (client.sent(x + 1e-6 * direction) - client.sent(x - 1e-6 * direction)) / 2e-6
    sent, jacobian = client.sent_and_tangents(x)
    np.testing.assert_allclose(sent, client.sent(x), atol=1e-12)
    np.testing.assert_allclose(jacobian @ direction, slope, atol=1e-6 * np.abs(slope).max())


@pytest.mark.parametrize(("steps", "seed"), [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (8, 1)])
def test_clients_of_few_rows_fall_from_constant_q(steps, seed):
    clients = federation(40, 6, seed)
    observed, target = observe(LocalPower(4, local_steps=(steps,)), clients, 6, seed=seed)
    got = LocalPowerGram().run(observed, target, RNG)
    assert got.diagnostics["method"] == "fitted" and got.rank == got.unknowns == 21
    assert relative_error(got.value, gram(clients[0])) < 1e-8


def test_fewer_rows_than_columns_and_changing_q():
    """Columns beyond the rank are orthonormalised round-off; rounds of another q join the fit."""
    clients = federation(40, 3)
    observed, target = observe(LocalPower(5, local_steps=(8, 4, 4, 4, 1)), clients, 6)
    got = LocalPowerGram().run(observed, target, RNG)
    assert got.diagnostics == {"rounds": 6, "method": "fitted"}
    assert relative_error(got.value, gram(clients[0])) < 1e-10


def test_a_client_of_full_rank():
    clients = digits(12, "random")
    observed, target = observe(LocalPower(2, local_steps=(2,)), clients, 10)
    got = LocalPowerGram().run(observed, target, RNG)
    assert got.diagnostics["method"] == "fitted" and got.rank == got.unknowns == 78
    assert relative_error(got.value, gram(clients[0])) < 1e-6
    unfitted = LocalPowerGram(fit_features=5).run(observed, target, RNG)
    assert unfitted.diagnostics["method"] == "root" and np.isnan(unfitted.residual)
    assert relative_error(unfitted.value, gram(clients[0])) < 1e-3


def test_shuffled_messages_prove_nothing():
    clients = federation(40, 6)
    observed, target = observe(LocalPower(4, local_steps=(2,)), clients, 6)
    kept = [o.message for o in observed.rounds]
    rounds = tuple(replace(o, message=kept[i - 2]) for i, o in enumerate(observed.rounds))
    got = LocalPowerGram().run(replace(observed, rounds=rounds), target, RNG)
    assert got.diagnostics["method"] == "fitted, not proven" and got.residual > 1e-3
    assert relative_error(got.value, gram(clients[0])) > 0.1


def test_where_the_attack_cannot_run_it_says_why():
    clients = federation(12, 4)
    observed, target = observe(LocalPower(2, local_steps=(2,)), clients, 3)
    attack = LocalPowerGram()
    assert attack.applies(target, observed) is None
    both = tuple(replace(o, members=frozenset({0, 1})) for o in observed.rounds)
    cases = [
        (Target(SSI(2), target.public), observed, "no repeated products"),
        (Target(LocalPower(2, local_steps=(1,)), target.public), observed, "no repeated products"),
        (Target(LocalPower(2, stop="kkt"), target.public), observed, "send S Z itself"),
        (target, replace(observed, rounds=both), "client 0 alone"),
        (target, replace(observed, rounds=observed.rounds[:1]), "No two rounds"),
        (target, replace(observed, rounds=()), "no messages"),
    ]
    for aim, view, words in cases:
        assert words in attack.applies(aim, view)
        with pytest.raises(TranscriptError, match=words):
            attack.run(view, aim, RNG)
    assert "limit is" in LocalPowerGram(memory=1000).applies(target, observed)


def test_registered_and_checked():
    assert isinstance(attacks.make("gram/local-power"), Attack)
    with pytest.raises(ConfigError, match="fit_features"):
        LocalPowerGram(fit_features=-1)
