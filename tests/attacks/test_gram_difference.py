"""Changing survivors give single clients away, even where every message is a sum."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed import Aggregate, Dataset, Public
from securefed.algorithms import SSI, FedPG, LocalPower
from securefed.attacks import Attack, DifferenceGram, RoundView, Target, View, attacks
from securefed.attacks._gram.client_deviations import deviations
from securefed.attacks._gram.clipped_products import PerturbedProducts, PerturbedSolution
from securefed.attacks._gram.clipped_sums import ClippedSums
from securefed.attacks._gram.survivor_differences import SurvivorSystem, coming_together, round_noise
from securefed.attacks.scores import relative_error
from securefed.errors import ConfigError, TranscriptError
from tests.combinations import each_value, first_ones

RNG = np.random.default_rng(0)


def digits(parts, kind="random", seed=0):
    data = load_digits()
    order = (
        np.random.default_rng(seed).permutation(1797) if kind == "random" else np.argsort(data.target, kind="stable")
    )
    return [Dataset(data.data[rows] / 16) for rows in np.array_split(order, parts)]


def sums(algorithm, clients, rounds, schedule, *, target=0, noise=0.0, seed=0):
    """The sum-only view of a run of SSI or LocalPower."""
    rng = np.random.default_rng(seed)
    public = Public.of(clients)
    server = algorithm.start(public, rng)
    states = [algorithm.enroll(data, public, rng) for data in clients]
    seen = []
    for k in range(rounds):
        survivors = tuple(int(i) for i in schedule(k, rng))
        broadcast = algorithm.broadcast(server)
        sent = [algorithm.contribute(states[i], broadcast, rng)[1] for i in survivors]
        total = {name: sum(message[name] for message in sent) for name in sent[0]}
        server = algorithm.combine(server, Aggregate(total, survivors))
        spread = noise * np.abs(total["product"]).max()
        noisy = {**total, "product": total["product"] + spread * rng.normal(size=total["product"].shape)}
        seen.append(RoundView(k, broadcast, noisy, frozenset(survivors), frozenset(survivors)))
    return View("sum only", target, tuple(seen), {}), Target(algorithm, public)


def every_second(parts):
    return lambda k, rng: range(parts) if k % 2 == 0 else range(1, parts)


def some_drop(parts):
    return lambda k, rng: np.flatnonzero(rng.random(parts) > 0.2)


def gram(data):
    return data.x.T @ data.x


@pytest.mark.parametrize(("kind", "schedule"), each_value(["random", "sorted"], [every_second, some_drop]))
def test_one_client_is_told_apart(kind, schedule):
    """Absent in every second of 30 rounds, or 20 % drop-outs: within .05 (the plain difference: .08)."""
    clients = digits(10, kind)
    observed, target = sums(SSI(5), clients, 30, schedule(10))
    got = DifferenceGram().run(observed, target, RNG)
    assert got.members == {0}
    assert relative_error(got.value, gram(clients[0])) < 0.05
    assert got.residual < 1e-3
    np.testing.assert_array_less(-1e-9, np.linalg.eigvalsh(got.value))


def test_exact_where_the_rounds_determine_every_client():
    clients = [Dataset(RNG.normal(size=(40, 10))) for _ in range(3)]
    observed, target = sums(SSI(5), clients, 40, lambda k, rng: ((0, 1, 2), (1, 2), (0, 2), (0, 1))[k % 4], target=1)
    got = DifferenceGram(sweeps=200).run(observed, target, RNG)
    assert got.rank == got.unknowns == 30
    assert relative_error(got.value, gram(clients[1])) < 1e-5


def test_clients_that_come_and_go_together_are_told_apart_only_as_a_group():
    clients = digits(6)
    observed, target = sums(SSI(5), clients, 30, lambda k, rng: range(6) if k % 2 == 0 else range(2, 6), target=1)
    got = DifferenceGram().run(observed, target, RNG)
    assert got.members == {0, 1} and got.diagnostics["groups"] == 2
    assert relative_error(got.value, gram(clients[0]) + gram(clients[1])) < 0.05


@pytest.mark.parametrize("noise", first_ones([1e-6, 1e-3]))
def test_noise_is_measured_and_does_not_explode(noise):
    clients = digits(5, "sorted")
    observed, target = sums(SSI(3), clients, 30, some_drop(5), noise=noise)
    got = DifferenceGram().run(observed, target, RNG)
    assert relative_error(got.value, gram(clients[0])) < (0.06 if noise == 1e-6 else 0.2)
    level = noise * np.mean([np.abs(o.message["product"]).max() for o in observed.rounds])
    assert 0.5 < round_noise(observed.rounds) / level < 2


def test_predictions_of_the_true_matrices_are_the_sums():
    clients = digits(5)
    observed, target = sums(SSI(3), clients, 8, some_drop(5))
    groups = coming_together(observed.rounds)
    system = SurvivorSystem.of(observed.rounds, groups, target.public)
    truth = np.stack([sum(gram(clients[i]) for i in group) for group in groups])
    assert system.residual(truth) < 1e-13
    assert system.residual(truth[::-1]) > 1e-3
    projected = system.project(system.shares(), 40)
    assert system.residual(projected) < 1e-4


def test_localpower_uses_its_single_step_rounds():
    clients = digits(5)
    observed, target = sums(LocalPower(5, local_steps=(2, 2, 1)), clients, 32, every_second(5))
    got = DifferenceGram().run(observed, target, RNG)
    assert got.diagnostics["rounds"] == 30
    assert relative_error(got.value, gram(clients[0])) < 0.05


def test_where_the_attack_cannot_run_it_says_why():
    clients = digits(4)
    observed, target = sums(SSI(3), clients, 6, every_second(4))
    attack = DifferenceGram()
    assert attack.applies(target, observed) is None
    same, _ = sums(SSI(3), clients, 4, lambda k, rng: range(4))
    never, _ = sums(SSI(3), clients, 4, lambda k, rng: range(1, 4) if k % 2 else range(2, 4))
    alone = View(
        "server",
        0,
        tuple(RoundView(o.round, o.broadcast, o.message, frozenset({0}), o.survivors) for o in observed.rounds),
        {},
    )
    cases = [
        (Target(FedPG(3), target.public), observed, "SSI and LocalPower"),
        (target, View("sum only", None, observed.rounds, {}), "one client"),
        (target, same, "nothing to subtract"),
        (target, never, "holds client 0"),
        (target, alone, "alone"),
        (target, View("output only", 0, (), {}), "holds no messages"),
    ]
    for aim, view, words in cases:
        assert words in attack.applies(aim, view)
        with pytest.raises(TranscriptError, match=words):
            attack.run(view, aim, RNG)


def test_registered_and_checked():
    assert isinstance(attacks.make("gram/difference"), Attack)
    with pytest.raises(ConfigError, match="sweeps"):
        DifferenceGram(sweeps=0)


def test_deviations_explain_sums_without_noise():
    """Two rounds of one direction show no asymmetry, so that the noise counts as 0: then all is deviation."""
    rng = np.random.default_rng(3)
    own = [1e3 * (rows.T @ rows) for rows in rng.normal(size=(2, 5, 4))]
    bases, shares = np.eye(4)[:2, :, None], np.array([[0.5, 0.5], [0.0, 0.5]])
    products = np.stack([(own[0] + own[1]) @ bases[0], own[1] @ bases[1]])
    empty = np.zeros(0)
    rounds = PerturbedProducts(bases, products, empty, np.zeros(2), empty, ClippedSums(np.full(2, 1e9), shares, 1.0))
    pooled = PerturbedSolution(own[0] + own[1], shares, residual=0.0, noise=0.0, explained=True)
    found, residual = deviations(rounds, pooled, [[0], [1]])
    assert np.isfinite(found).all()
    assert residual < 0.5


def test_deviations_are_found_where_the_stated_noise_is_zero_and_the_clip_factors_are_not_exact():
    """The errors of the factors then count as noise, of a size that nobody stated."""
    rng = np.random.default_rng(5)
    own = [rows.T @ rows for rows in rng.normal(size=(2, 30, 6)) * np.array([[[1.0]], [[1.3]]])]
    bases = np.stack([np.linalg.qr(rng.normal(size=(6, 2)))[0] for _ in range(12)])
    present = np.array([[1.0, 1.0], [0.0, 1.0]] * 6)
    shares = 0.5 * present
    products = np.stack([(here[0] * own[0] + here[1] * own[1]) @ Z for here, Z in zip(present, bases, strict=True)])
    empty = np.zeros(0)
    rounds = PerturbedProducts(bases, products, empty, np.zeros(12), empty, ClippedSums(np.full(12, 1e9), shares, 1.0))
    wrong = shares * (1 + 0.01 * rng.normal(size=(12, 1)))
    pooled = PerturbedSolution(own[0] + own[1], wrong, residual=0.0, noise=0.0, explained=True)
    found, _ = deviations(rounds, pooled, [[0], [1]])
    truth = own[0] - (own[0] + own[1]) / 2
    assert relative_error(found[0], truth) < 0.3
