"""Sums of non-linear messages give the single Gram matrices away: FedPG, FedPE and FAPS under secure aggregation."""

from dataclasses import replace

import numpy as np
import pytest

from securefed.algorithms import FAPS, SSI, FedPE, FedPG
from securefed.algorithms._pca.operators import orth
from securefed.attacks import Attack, RoundView, Target, View, attacks
from securefed.attacks._duals import FedPGDuals, JointDuals, PooledDuals
from securefed.attacks._duals.joint_fit import simulated_run
from securefed.attacks._engine.fit import jacobian_rank
from securefed.attacks._gram import JointGram
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.faps.summed_clients import faps_simulation
from securefed.attacks.scores import relative_error, subspace_baseline
from securefed.errors import ConfigError, TranscriptError
from tests.attacks import consensus, subspaces
from tests.combinations import first_ones

RNG = np.random.default_rng(0)


def summed(views, target):
    """Everybody's sum of each round."""
    everybody = frozenset(views)
    rounds = [
        RoundView(
            o.round,
            o.broadcast,
            {"point": sum(view.rounds[k].message["point"] for view in views.values())},
            everybody,
            everybody,
            o.followed,
        )
        for k, o in enumerate(views[0].rounds)
    ]
    return View("sum only", None, tuple(rounds), views[0].output), target


def consensus_sums(algorithm, clients, rounds, seed=0):
    views, target, _ = consensus.observe(algorithm, clients, rounds, seed)
    return summed(views, target)


def faps_sums(clients, seed=0, inner_steps=1):
    members = tuple(range(len(clients)))
    return subspaces.observe(FAPS(2, inner_steps=inner_steps), clients, 11, members, seed=seed)


def worst(found, truths):
    """The relative error of the worst client, each compared with the matrix that is nearest."""
    return max(min(relative_error(gram, truth) for gram in found) for truth in truths)


@pytest.mark.parametrize("seed", first_ones([0, 2]))
def test_fedpg_sums_of_two_clients_give_each_of_them(seed):
    clients = consensus.digits(6, seed, parts=2)
    observed, target = consensus_sums(FedPG(2, step_size=0.05, local_steps=5), clients, 12, seed)
    got = JointDuals().run(observed, target, np.random.default_rng(seed))
    truths = [consensus.gram(data) / data.rows for data in clients]
    mean = sum(truths) / 2
    assert got.diagnostics["method"] == "fitted" and got.rank == got.unknowns == 2 * 20
    assert worst(got.diagnostics["clients"], truths) < 1e-7
    assert worst([mean], truths) > 0.02  # what the pooled matrix says of the single ones
    assert relative_error(got.value, sum(consensus.gram(data) for data in clients)) < 1e-4


def test_the_open_multiple_of_the_identity_counts_rows_where_fedpg_does_not_divide_by_them():
    clients = consensus.digits(6, 0, parts=2)
    rows = clients[0].rows
    algorithm = FedPG(2, rho=1.0 * rows, step_size=0.05 / rows, local_steps=5, normalise=False)
    observed, target = consensus_sums(algorithm, clients, 12)
    got = JointDuals().run(observed, target, np.random.default_rng(0))
    assert got.diagnostics["method"] == "fitted"
    assert relative_error(got.value, sum(consensus.gram(data) for data in clients)) < 1e-6


def test_fedpe_sums_leave_no_shift_open():
    algorithm = FedPE(2, step_size=0.03, local_steps=5)
    clients = consensus.digits(6, 0, parts=2)
    observed, target = consensus_sums(algorithm, clients, 14)
    sender = simulated_run(observed, target)
    assert sender.determined == sender.count == 21
    x = [SymmetricMatrices.of(6).coordinates(consensus.gram(data) / data.rows) for data in clients]
    rank, _ = jacobian_rank(np.hstack([sender.sent_and_tangents(own)[1] for own in x]), 42)
    assert rank == 42


@pytest.mark.parametrize(("parts", "seed"), first_ones([(2, 0), (3, 0)]))
def test_faps_sums_give_each_client(parts, seed):
    clients = subspaces.digits(6, "random", parts=parts, seed=seed)
    observed, target = faps_sums(clients, seed)
    got = JointGram().run(observed, target, np.random.default_rng(seed))
    truths = [subspaces.gram(data) for data in clients]
    assert got.diagnostics["method"] == "fitted" and got.rank == got.unknowns == 21 * parts
    assert worst(got.diagnostics["clients"], truths) < 1e-3
    assert worst([sum(truths) / parts], truths) > 0.02
    assert relative_error(got.value, sum(truths)) < 1e-7


@pytest.mark.parametrize("kind", [FedPG, FedPE])
def test_a_simulated_run_of_consensus_is_the_clients_own_and_its_derivative(kind):
    clients = consensus.digits(6, 0, parts=2)
    views, target, _ = consensus.observe(kind(2, step_size=0.03, local_steps=3), clients, 5)
    sender = simulated_run(views[0], target)
    x = SymmetricMatrices.of(6).coordinates(consensus.gram(clients[0]) / clients[0].rows)
    seen = np.concatenate([o.message["point"].reshape(-1) for o in views[0].rounds])
    np.testing.assert_allclose(sender.sent(x), seen, atol=1e-12)
    assert_differentiated(sender, x)


def test_a_simulated_run_of_faps_is_the_clients_own_and_its_derivative():
    clients = subspaces.digits(6, "random", parts=2)
    observed, target = subspaces.observe(FAPS(2, inner_steps=3), clients, 8)
    sender = faps_simulation([o.broadcast["basis"] for o in observed.rounds], target.algorithm)
    x = SymmetricMatrices.of(6).coordinates(subspaces.gram(clients[0]))
    messages = [o.message["product"].reshape(-1) for o in observed.rounds]
    seen = np.concatenate([*messages, [o.message["captured"] for o in observed.rounds]])
    np.testing.assert_allclose(sender.sent(x), seen, atol=1e-10 * np.abs(seen).max())
    assert_differentiated(sender, x)


def test_messages_that_show_nothing_have_rank_zero():
    for nothing in (np.zeros((0, 0)), np.zeros((5, 3))):
        rank, condition = jacobian_rank(nothing, 3)
        assert rank == 0 and np.isnan(condition)


def assert_differentiated(sender, x):
    step = 1e-6 * np.abs(x).max()
    direction = RNG.normal(size=len(x))
    slope = (sender.sent(x + step * direction) - sender.sent(x - step * direction)) / (2 * step)
    sent, tangents = sender.sent_and_tangents(x)
    np.testing.assert_allclose(sent, sender.sent(x), atol=1e-12 * np.abs(sent).max())
    np.testing.assert_allclose(tangents @ direction, slope, atol=1e-6 * np.abs(slope).max())


def test_equal_clients_are_a_saddle_where_only_the_sum_shows():
    clients = consensus.digits(6, 0, parts=2)
    observed, target = consensus_sums(FedPG(2, step_size=0.05, local_steps=5), clients, 12)
    sender = simulated_run(observed, target)
    x = [SymmetricMatrices.of(6).coordinates(consensus.gram(data) / data.rows) for data in clients]
    assert jacobian_rank(np.hstack([sender.sent_and_tangents(own)[1] for own in x]), 40)[0] == 40
    assert jacobian_rank(np.hstack([sender.sent_and_tangents(x[0])[1]] * 2), 40)[0] == 20


def test_shuffled_sums_prove_nothing():
    clients = subspaces.digits(6, "random", parts=2)
    observed, target = faps_sums(clients)
    kept = [o.message for o in observed.rounds]
    rounds = tuple(replace(o, message=kept[i - 4]) for i, o in enumerate(observed.rounds))
    got = JointGram(starts=1, jacobians=40).run(replace(observed, rounds=rounds), target, RNG)
    assert got.diagnostics["method"] == "fitted, not proven" and got.residual > 1e-3


def test_where_the_attacks_cannot_run_they_say_why():
    clients = subspaces.digits(6, "random", parts=2)
    observed, target = faps_sums(clients)
    attack = JointGram()
    assert attack.applies(target, observed) is None
    alone = replace(observed, rounds=tuple(replace(o, members=frozenset({0})) for o in observed.rounds))
    first, *rest = observed.rounds
    changing = replace(observed, rounds=(replace(first, members=frozenset({0, 1, 2})), *rest))
    cases = [
        (attack, Target(SSI(2), target.public), observed, "no masked products"),
        (attack, Target(FAPS(2), target.public), observed, "fixed number"),
        (JointDuals(), target, observed, "no points of FedPG"),
        (attack, target, replace(observed, rounds=()), "no messages"),
        (attack, target, alone, "shows one client"),
        (attack, target, changing, "change"),
        (attack, target, replace(observed, rounds=observed.rounds[:2]), "26 entries of the sums cannot determine 42"),
        (JointGram(fit_unknowns=30), target, observed, "the limit is 30"),
    ]
    for make, aim, view, words in cases:
        assert words in make.applies(aim, view)
        with pytest.raises(TranscriptError, match=words):
            make.run(view, aim, RNG)


def test_registered_and_checked():
    assert isinstance(attacks.make("gram/joint"), Attack) and isinstance(attacks.make("duals/joint"), Attack)
    for wrong in ({"fit_unknowns": -1}, {"starts": 0}, {"jacobians": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            JointGram(**wrong)


@pytest.mark.parametrize(("parts", "features"), [(2, 10), (3, 20), (5, 20)])
def test_the_mean_of_fedpg_clients_is_nearly_a_client(parts, features):
    """Where they are alike it is one; elsewhere the pooled matrix is far nearer than what the output alone says."""
    algorithm = FedPG(3, rho=1.0, step_size=0.01, local_steps=1)
    clients = consensus.digits(features, 0, parts=parts)
    pooled = sum(consensus.gram(data) for data in clients)
    observed, target = consensus_sums(algorithm, clients, 13)
    got = PooledDuals().run(observed, target, RNG)
    assert relative_error(got.value, pooled) < 0.6 * subspace_baseline(pooled, orth(observed.output["basis"]))
    assert got.members == frozenset(range(parts)) and 1e-6 < got.diagnostics["apart"] < 0.1
    alike, target = consensus_sums(algorithm, [clients[0]] * parts, 13)
    got = PooledDuals().run(alike, target, RNG)
    assert got.diagnostics["apart"] < 1e-12
    single, _, _ = consensus.observe(algorithm, [clients[0]] * parts, 13)
    alone = FedPGDuals(fit_features=0).run(single[0], target, RNG)
    shift = np.trace(parts * alone.value - got.value) / features  # least rank, not the trace
    np.testing.assert_allclose(got.value + shift * np.eye(features), parts * alone.value, atol=5e-3 * got.value.max())


def test_where_the_mean_is_not_solved_it_says_why():
    algorithm = FedPG(2, step_size=0.05, local_steps=1)
    clients = consensus.digits(6, 0, parts=2)
    observed, target = consensus_sums(algorithm, clients, 4)
    attack = PooledDuals()
    assert attack.applies(target, observed) is None
    alone = replace(observed, rounds=tuple(replace(o, members=frozenset({0})) for o in observed.rounds))
    first, *rest = observed.rounds
    cases = [
        (Target(SSI(2), target.public), observed, "no dual variables"),
        (Target(replace(algorithm, local_steps=2), target.public), observed, "several local steps"),
        (target, replace(observed, rounds=(first,)), "Two sums"),
        (target, alone, "one client"),
        (target, replace(observed, rounds=(replace(first, members=frozenset({0, 1, 2})), *rest)), "change"),
    ]
    for aim, view, words in cases:
        assert words in attack.applies(aim, view)
        with pytest.raises(TranscriptError, match=words):
            attack.run(view, aim, RNG)
    assert "limit" in PooledDuals(memory=10).applies(target, observed)
