"""Gram reconstruction from subspace iteration: exactness, strength under noise, honesty."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed import Aggregate, Dataset, Public
from securefed._tensors import add
from securefed.algorithms import FAPS, SSI, LocalPower
from securefed.algorithms._pca.operators import orth
from securefed.attacks import Attack, PowerGram, RoundView, Target, View, attacks
from securefed.attacks._gram.linear import solve
from securefed.attacks.scores import relative_error
from securefed.errors import ConfigError, TranscriptError

RNG = np.random.default_rng(0)


def digits(parts):
    x = load_digits().data[:, :] / 16
    return [Dataset(part) for part in np.array_split(np.random.default_rng(1).permutation(x), parts)]


def gram(*clients):
    return sum(data.x.T @ data.x for data in clients)


def observe(algorithm, clients, rounds, members, *, schedule=None, noise=0.0, target=None, seed=0):
    """What a viewer has that sees, each round, the sum over the survivors among `members`."""
    rng = np.random.default_rng(seed)
    public = Public.of(clients)
    server = algorithm.start(public, rng)
    states = [algorithm.enroll(data, public, rng) for data in clients]
    seen = []
    for k in range(rounds):
        survivors = schedule(k) if schedule else tuple(range(len(clients)))
        broadcast = algorithm.broadcast(server)
        sent = {}
        for i in survivors:
            states[i], sent[i] = algorithm.contribute(states[i], broadcast, rng)
        shown = frozenset(survivors) & frozenset(members)
        if shown:
            first, *rest = (sent[i] for i in sorted(shown))
            for other in rest:
                first = add(first, other)
            scale = noise * np.abs(first["product"]).max()
            noisy = {**first, "product": first["product"] + scale * rng.normal(size=first["product"].shape)}
            seen.append(RoundView(k, broadcast, noisy, shown, frozenset(survivors)))
        total, *rest = sent.values()
        for other in rest:
            total = add(total, other)
        server = algorithm.combine(server, Aggregate(total, tuple(survivors)))
    observed = View("test", target, tuple(seen), algorithm.broadcast(server))
    return observed, Target(algorithm, public)


def error(attack, observed, target, truth):
    return relative_error(attack.run(observed, target, RNG).value, truth)


def test_exact_where_the_probes_span_the_features():
    clients = [Dataset(RNG.normal(size=(60, 20))) for _ in range(4)]
    observed, target = observe(SSI(5), clients, 12, {2})
    for estimator in ("minimum-norm", "symmetric", "psd"):
        got = PowerGram(estimator).run(observed, target, RNG)
        assert relative_error(got.value, gram(clients[2])) < 1e-9
        assert got.members == {2} and got.rank == got.unknowns == 20 and got.residual < 1e-12


def test_a_client_with_fewer_rows_than_features_is_exact_after_rows_over_rank_rounds():
    clients = [Dataset(RNG.normal(size=(rows, 60))) for rows in (12, 200, 200)]
    observed, target = observe(SSI(6), clients, 2, {0})
    assert error(PowerGram(), observed, target, gram(clients[0])) < 1e-10
    assert error(PowerGram("symmetric"), observed, target, gram(clients[0])) > 0.1
    one, target = observe(SSI(6), clients, 1, {0})  # one round is not enough: the test above has power
    assert error(PowerGram(), one, target, gram(clients[0])) > 0.1


def test_a_sum_of_clients_is_one_client_with_their_rows():
    clients = digits(6)
    observed, target = observe(SSI(5), clients, 20, {1, 3, 4})
    got = PowerGram().run(observed, target, RNG)
    assert got.members == {1, 3, 4}
    assert relative_error(got.value, gram(*(clients[i] for i in (1, 3, 4)))) < 5e-3


def test_each_estimator_improves_on_the_paper():
    clients = digits(5)
    observed, target = observe(SSI(5), clients, 10, {0})
    paper, symmetric, psd = (
        error(PowerGram(e), observed, target, gram(clients[0])) for e in ("minimum-norm", "symmetric", "psd")
    )
    assert psd < symmetric < paper < 0.05


def test_localpower_rounds_with_several_local_steps_are_left_out():
    clients = [Dataset(RNG.normal(size=(60, 20))) for _ in range(4)]
    observed, target = observe(LocalPower(5, local_steps=(4, 2, 1)), clients, 14, {0})
    got = PowerGram().run(observed, target, RNG)
    assert got.diagnostics["rounds"] == 12
    assert relative_error(got.value, gram(clients[0])) < 1e-9
    observed, target = observe(LocalPower(5, local_steps=(2,)), clients, 5, {0})
    assert "several local steps" in PowerGram().applies(target, observed)


def test_a_kkt_stop_gives_faps_away():
    clients = [Dataset(RNG.normal(size=(60, 20))) for _ in range(4)]
    observed, target = observe(FAPS(5, stop="kkt"), clients, 12, {2})
    assert error(PowerGram(), observed, target, gram(clients[2])) < 1e-9
    plain, aim = observe(FAPS(5), clients, 12, {2})
    assert "no products S Z" in PowerGram().applies(aim, plain)


@pytest.mark.parametrize("noise", [1e-9, 1e-5, 1e-2])
def test_noise_is_weighed_and_does_not_explode(noise):
    """A fixed cut of 1e-13 ends beyond 1e3 here; the noise-aware one degrades with the noise."""
    clients = digits(5)
    observed, target = observe(SSI(5), clients, 15, {0}, noise=noise)
    got = PowerGram().run(observed, target, RNG)
    assert relative_error(got.value, gram(clients[0])) < {1e-9: 0.02, 1e-5: 0.04, 1e-2: 0.15}[noise]
    largest = np.abs(observed.rounds[0].message["product"]).max()
    assert 0.1 < got.diagnostics["noise"] / (noise * largest) < 10
    Z, Y = (
        np.hstack([part(o) for o in observed.rounds])
        for part in (lambda o: o.broadcast["basis"], lambda o: o.message["product"])
    )
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    kept = s > 1e-13 * s[0]
    naive = (Y @ Vt[kept].T / s[kept]) @ U[:, kept].T
    assert relative_error(naive, gram(clients[0])) > 10 * relative_error(got.value, gram(clients[0]))


def test_the_most_seen_member_set_that_holds_the_target_is_used():
    clients = digits(4)
    observed, target = observe(
        SSI(5), clients, 15, {0, 1, 2, 3}, schedule=lambda k: (0, 1, 2, 3) if k % 3 == 0 else (0, 2, 3), target=1
    )
    got = PowerGram().run(observed, target, RNG)
    assert got.members == {0, 1, 2, 3} and got.diagnostics["rounds"] == 5
    whole = View("test", None, observed.rounds, observed.output)
    assert PowerGram().run(whole, target, RNG).members == {0, 2, 3}


def test_solve_matches_least_squares_over_symmetric_matrices():
    """An independent route: the normal form over the n (n + 1) / 2 unknowns, well conditioned here."""
    n = 8
    S = RNG.normal(size=(n, n))
    S = S @ S.T
    Z = RNG.normal(size=(n, 3 * n))
    Y = S @ Z + 1e-3 * RNG.normal(size=Z.shape)
    i, j = np.triu_indices(n)
    columns = np.zeros((n * n, len(i)))
    columns[i * n + j, np.arange(len(i))] = columns[j * n + i, np.arange(len(i))] = 1
    x = np.linalg.lstsq(np.kron(np.eye(n), Z.T) @ columns, Y.reshape(-1), rcond=None)[0]
    expected = (columns @ x).reshape(n, n)
    got = solve(Z, Y, estimator="symmetric")
    # the cross block of `solve` is empty here; the inner one is the same weighted average
    np.testing.assert_allclose(got.gram, expected, atol=1e-10)
    assert 0.5e-3 < got.noise < 2e-3


def test_a_shuffled_transcript_gives_nothing():
    clients = digits(5)
    observed, target = observe(SSI(5), clients, 12, {0})
    messages = [o.message for o in observed.rounds]
    mixed = [
        RoundView(o.round, {"basis": orth(RNG.normal(size=(64, 5)))}, m, o.members, o.survivors)
        for o, m in zip(observed.rounds, messages, strict=True)
    ]
    got = PowerGram().run(View("null", None, tuple(mixed), observed.output), target, RNG)
    assert relative_error(got.value, gram(clients[0])) > 0.5
    assert got.residual > 0.1  # and the attack says so


def test_where_the_attack_cannot_run_it_says_why():
    clients = digits(3)
    observed, target = observe(SSI(2), clients, 2, {0}, target=0)
    assert PowerGram().applies(target, observed) is None
    empty = View("output only", 0, (), observed.output)
    other = View("sum only", 2, observed.rounds, observed.output)
    faps = Target(FAPS(2), target.public)
    for view, aim, words in ((empty, target, "no messages"), (other, target, "client 2"), (observed, faps, "SSI")):
        assert words in PowerGram().applies(aim, view)
        with pytest.raises(TranscriptError, match=words):
            PowerGram().run(view, aim, RNG)


def test_settings_outside_their_domain_are_refused():
    with pytest.raises(ConfigError, match="estimator"):
        PowerGram("normal equations")
    with pytest.raises(ConfigError, match="tau"):
        PowerGram(tau=0.0)


def test_it_is_registered():
    assert isinstance(attacks.make("gram/power"), Attack)
