"""Gradient inversion on rows of the digits: exact results, and failures that the residual shows."""

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed import Dataset, Federation, Public, RunOptions, chain
from securefed.algorithms import DSGD, SSI, FedAvg, LoSAC, Scaffold
from securefed.attacks import Attack, NaiveDescent, RoundView, SampleFit, Target, View, attacks, views
from securefed.attacks._gradient_inversion import DLG, TelescopingFit
from securefed.attacks._gradient_inversion.gradient_rounds import read_rounds
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.round_simulation import RoundSimulation
from securefed.attacks._gradient_inversion.sum_equations import SumEquations
from securefed.attacks.scores import sample_error
from securefed.defenses._fixed_point import Quantise
from securefed.errors import TranscriptError
from securefed.problems import LogisticRegression, SoftmaxRegression
from tests.combinations import each_value, first_ones

DIGITS = load_digits()
PROBLEMS = [
    SoftmaxRegression(),
    SoftmaxRegression(bias=False),
    SoftmaxRegression(bias=False, initial_scale=0.1),
    SoftmaxRegression(l2=0.1),
    LogisticRegression(),
    LogisticRegression(bias=False),
]


def methods(problem):
    return {
        "dsgd": DSGD(problem=problem),
        "fedavg": FedAvg(problem=problem),
        "scaffold": Scaffold(problem=problem),
        "scaffold-1": Scaffold(problem=problem, local_steps=1),
        "scaffold-I": Scaffold(problem=problem, option="I"),
        "losac": LoSAC(problem=problem, learning_rate=0.02),
        "losac-1": LoSAC(problem=problem, learning_rate=0.1, local_steps=1),
        "losac-paper": LoSAC(problem=problem),
    }


@cache
def scene(method, sizes=(1,) * 8, rounds=6, seed=0, defence=None, schedule=None):
    """(federation, clients) after a run on rows of the digits scaled to [0, 1]."""
    binary = isinstance(method.problem, LogisticRegression)
    order = np.random.default_rng(seed).permutation(len(DIGITS.data))[: sum(sizes)]
    labels = (DIGITS.target >= 5).astype(int) if binary else DIGITS.target
    clients = [Dataset(DIGITS.data[k] / 16, labels[k]) for k in np.split(order, np.cumsum(sizes)[:-1])]
    public = Public(len(sizes), len(sizes), 64, tuple(sizes), 2 if binary else 10, 1.0)
    federation = Federation(method, clients, defence, seed=seed, public=public, options=RunOptions(schedule=schedule))
    federation.run(rounds)
    return federation, clients


def attack_one(attack, method, seed, **setting):
    federation, clients = scene(method, seed=seed, **setting)
    target = Target(method, federation.public)
    observed = views.server(federation.transcript, 2)
    assert attack.applies(target, observed) is None
    found = attack.run(observed, target, np.random.default_rng(seed))
    return found, sample_error(found.value, clients[2].x), clients[2].y


def attack_all(attack, method, seed, **setting):
    federation, clients = scene(method, seed=seed, **setting)
    target = Target(method, federation.public)
    found = attack.run(views.sum_only(federation.transcript, None), target, np.random.default_rng(seed))
    return found, sample_error(found.value, np.vstack([c.x for c in clients])), np.concatenate([c.y for c in clients])


# ---------------------------------------------------------------------------------------------- one row, in the clear


@pytest.mark.parametrize(("problem", "name"), each_value(PROBLEMS, methods(PROBLEMS[0])), ids=str)
def test_one_row_in_the_clear_is_recovered_exactly_whatever_the_method(problem, name: str) -> None:
    method = methods(problem)[name]
    for seed in range(3):
        found, error, label = attack_one(SampleFit(), method, seed)
        assert error < 1e-10 and found.residual < 1e-10, seed
        np.testing.assert_array_equal(found.labels, label)


@pytest.mark.parametrize(
    ("problem", "name", "attack"),
    each_value(
        PROBLEMS[:2] + PROBLEMS[4:],
        ["scaffold", "fedavg", "losac", "scaffold-1", "scaffold-I", "losac-1"],
        [TelescopingFit(), DLG()],
    ),
    ids=str,
)
def test_the_other_strong_attacks_recover_one_row_too(problem, name: str, attack) -> None:
    if name == "fedavg" and isinstance(attack, TelescopingFit):
        return
    for seed in range(3):
        _, error, _ = attack_one(attack, methods(problem)[name], seed)
        assert error < 1e-10, seed


@pytest.mark.parametrize("name", first_ones(methods(PROBLEMS[0]), 4))
def test_the_naive_attack_fails_on_what_the_others_open(name: str) -> None:
    errors = [attack_one(NaiveDescent(), methods(PROBLEMS[0])[name], seed)[1] for seed in range(3)]
    assert 0.9 < np.mean(errors) < 1.3  # the start, uniform noise, is at 1.1


@pytest.mark.parametrize(("name", "label"), each_value(["dsgd", "fedavg", "scaffold", "losac"], [0, 1]))
def test_one_row_of_two_classes_is_recovered_with_either_label(name: str, label: int) -> None:
    """Both entries of p - y are as large then."""
    rng = np.random.default_rng(3)
    clients = [Dataset(rng.uniform(0, 1, (1, 6)), np.array([k])) for k in (label, 1 - label, label)]
    federation = Federation(methods(SoftmaxRegression())[name], clients, seed=0)
    federation.run(5)
    observed, target = views.server(federation.transcript, 0), Target(federation.algorithm, federation.public)
    found = SampleFit().run(observed, target, np.random.default_rng(0))
    assert found.labels is not None and list(found.labels) == [label]
    assert sample_error(found.value, clients[0].x) < 1e-6


def test_the_naive_attack_does_descend_and_recovers_a_gradient_given_the_steps() -> None:
    """The positive control: the same code with larger steps reduces its own distance tenfold."""
    method = methods(LogisticRegression())["dsgd"]
    few, many = (attack_one(NaiveDescent(steps=s, step_size=z), method, 0)[0] for s, z in ((0, 1e-3), (3000, 5e-2)))
    assert many.residual < 0.1 * few.residual


@pytest.mark.parametrize("name", ["fedavg", "losac"])
def test_fixed_point_messages_are_opened_to_their_rounding(name: str) -> None:
    _, error, _ = attack_one(SampleFit(), methods(PROBLEMS[0])[name], 1, defence=chain(Quantise()))
    assert 1e-14 < error < 1e-5


# ------------------------------------------------------------------------------------- several rows, sums of clients


@pytest.mark.parametrize("name", first_ones(["dsgd", "fedavg", "scaffold", "losac", "losac-1"], 3))
def test_three_rows_of_one_client_are_recovered_with_unknown_labels(name: str) -> None:
    for seed in range(3):
        found, error, labels = attack_one(SampleFit(), methods(PROBLEMS[0])[name], seed, sizes=(3,) * 4)
        assert error < 1e-9 and found.rank == found.unknowns == 9
        assert sorted(found.labels) == sorted(labels)


@pytest.mark.parametrize("problem", first_ones(PROBLEMS[4:]), ids=str)
def test_three_rows_under_losac_on_logistic_regression_with_telescoping(problem) -> None:
    method = LoSAC(problem=problem, learning_rate=0.05, local_steps=1)
    for seed in range(3):
        _, error, _ = attack_one(TelescopingFit(), method, seed, sizes=(3,) * 4, rounds=12)
        assert error < 1e-8, seed


@pytest.mark.parametrize("name", first_ones(["scaffold", "dsgd", "fedavg", "losac"]))
def test_the_sum_of_eight_one_row_clients_gives_most_pools_away(name: str) -> None:
    """Pools with four or five rows of one class are the ones that may resist; they say so by their residual."""
    exact = 0
    for seed in range(5):
        found, error, labels = attack_all(SampleFit(), methods(PROBLEMS[0])[name], seed)
        exact += error < 1e-6
        assert (error < 1e-6) == (found.residual < 1e-9), "the residual tells success from failure"
        if error < 1e-6:
            assert sorted(found.labels) == sorted(labels)
    assert exact >= 3


def test_members_that_come_and_go_are_simulated_as_such() -> None:
    """SCAFFOLD's memory moves only in rounds that count a client; the attacker's simulation must follow."""
    method = methods(PROBLEMS[0])["scaffold"]
    federation, clients = scene(method, sizes=(1,) * 4, rounds=6, seed=3, schedule=alternating)
    target = Target(method, federation.public)
    found = SampleFit().run(views.sum_only(federation.transcript, 3), target, np.random.default_rng(0))
    assert found.members == frozenset(range(4))
    assert sample_error(found.value, np.vstack([c.x for c in clients])) < 1e-8


def alternating(number: int) -> list[int]:
    return [0, 1, 2, 3] if number % 2 == 0 else [0, 1, 2]


# -------------------------------------------------------------------------------------------------- the simulation


@pytest.mark.parametrize(("name", "problem"), each_value(methods(PROBLEMS[0]), PROBLEMS))
def test_the_simulation_of_the_true_rows_sends_what_was_sent(problem, name: str) -> None:
    method = methods(problem)[name]
    system, samples, labels = true_system(method)
    assert system.relative_residual(samples, labels) < 1e-12
    assert system.relative_residual(1.1 * samples, labels) > 1e-3


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "losac"])
def test_the_jacobian_is_the_derivative(name: str) -> None:
    system, samples, labels = true_system(methods(PROBLEMS[3])[name])
    point = samples + 0.1
    _, jacobian = system.linearised(point, labels)
    direction = np.random.default_rng(0).normal(size=point.shape)
    step = 1e-6
    ahead, behind = (system.residual(point + s * direction, labels) for s in (step, -step))
    np.testing.assert_allclose(jacobian @ direction.ravel(), (ahead - behind) / (2 * step), atol=1e-6)


def true_system(method):
    """The system of two clients of unequal size, with their true rows in its coordinates."""
    federation, clients = scene(method, sizes=(2, 3), rounds=5, seed=4)
    target = Target(method, federation.public)
    seen = read_rounds(views.sum_only(federation.transcript, None), target)
    simulation = RoundSimulation(method, LinearModel.of(target), federation.public, seen, (0, 1))
    system = SumEquations.in_row_space(simulation)
    rows = np.vstack([c.x for c in clients])
    # Logistic rounds may span less than the rows; what lies outside the span is not in the messages at W = 0.
    if len(system.basis) < len(rows):
        basis = np.linalg.svd(rows, full_matrices=False)[2]
        system = SumEquations.in_basis(simulation, basis, system.scales)
    return system, rows @ system.basis.T, np.concatenate([c.y for c in clients])


# ------------------------------------------------------------------------------------------------ what cannot be had


def changed(observed: View, change) -> View:
    rounds = tuple(
        RoundView(o.round, o.broadcast, {k: change(v) for k, v in o.message.items()}, o.members, o.survivors)
        for o in observed.rounds
    )
    return View(observed.view, observed.target, rounds, observed.output)


@pytest.mark.parametrize("attack", [SampleFit(), DLG(), TelescopingFit(), NaiveDescent()], ids=lambda a: a.name)
@pytest.mark.parametrize(("scale", "pooled"), each_value([1.0, 1e8], [False, True]))
def test_under_noise_attacks_end_with_a_finite_estimate_and_a_large_residual(attack, scale, pooled) -> None:
    method = methods(PROBLEMS[0])["losac"]
    federation, _ = scene(method, sizes=(1,) * 3)
    rng = np.random.default_rng(0)
    clear = views.sum_only(federation.transcript, None) if pooled else views.server(federation.transcript, 2)
    noised = changed(clear, lambda v: v + rng.normal(0, scale, v.shape))
    found = attack.run(noised, Target(method, federation.public), rng)
    assert found.value.shape == ((3 if pooled else 1), 64)
    assert np.isfinite(found.value).all() and np.abs(found.value).max() <= 1.0
    assert found.residual > 0.05


def test_noise_that_leaves_no_class_a_row_still_leaves_labels_for_all() -> None:
    rng = np.random.default_rng(0)
    clients = [Dataset(rng.uniform(0, 1, (1, 4)), np.array([k % 2])) for k in range(5)]
    federation = Federation(DSGD(), clients, seed=0)  # two classes: both counts turn out negative easily
    federation.run(2)
    noised = changed(views.sum_only(federation.transcript, None), lambda v: v + (20.0 if v.shape == (2,) else 0.0))
    found = SampleFit().run(noised, Target(federation.algorithm, federation.public), rng)
    assert found.labels is not None and found.labels.shape == (5,)
    assert found.value.shape == (5, 4) and np.isfinite(found.value).all()


@pytest.mark.parametrize("name", ["dsgd", "scaffold"])
def test_a_shuffled_transcript_shows_in_the_residual(name: str) -> None:
    method = methods(PROBLEMS[0])[name]
    federation, _ = scene(method)
    observed = views.shuffled(views.server(federation.transcript, 2), np.random.default_rng(1))
    found = SampleFit().run(observed, Target(method, federation.public), np.random.default_rng(0))
    assert np.isfinite(found.value).all() and found.residual > 0.05


def test_messages_without_signal_fit_nothing() -> None:
    federation, _ = scene(methods(PROBLEMS[0])["dsgd"])
    silent = changed(views.server(federation.transcript, 2), np.zeros_like)
    found = SampleFit().run(silent, Target(federation.algorithm, federation.public), np.random.default_rng(0))
    assert np.isnan(found.residual) and np.isfinite(found.value).all()


def test_too_many_rows_are_not_fitted_and_say_so() -> None:
    method = FedAvg()
    found, error, _ = attack_one(SampleFit(), method, 0, sizes=(40,) * 3, rounds=4)
    assert found.unknowns > SampleFit().limit and found.rank == 0
    assert found.residual > 1e-3 and error < 1.5


def test_mini_batches_are_declared_as_not_repeatable() -> None:
    found, _, _ = attack_one(DLG(), FedAvg(batch_size=2), 0, sizes=(3,) * 3)
    assert found.diagnostics["full batches assumed"] and found.residual > 1e-3
    found, _, _ = attack_one(SampleFit(), FedAvg(batch_size=2), 0)
    assert not found.diagnostics["full batches assumed"], "a one-row client has nothing to draw"


def test_attacks_say_why_they_do_not_apply() -> None:
    federation, _ = scene(methods(PROBLEMS[0])["dsgd"])
    target = Target(federation.algorithm, federation.public)
    observed = views.server(federation.transcript, 2)
    nothing = views.output_only(federation.transcript, 2)
    foreign = Target(SSI(3), federation.public)
    for attack in (SampleFit(), DLG(), NaiveDescent()):
        assert attack.applies(target, observed) is None
        assert "no messages" in str(attack.applies(target, nothing))
        assert "sends none" in str(attack.applies(foreign, observed))
        with pytest.raises(TranscriptError):
            attack.run(nothing, target, np.random.default_rng(0))
    assert "SCAFFOLD and LoSAC" in str(TelescopingFit().applies(target, observed))


@pytest.mark.parametrize("name", ["naive", "dlg", "telescoping", "fit"])
def test_the_registry_builds_the_attacks(name: str) -> None:
    attack = attacks.make(f"gradient_inversion/{name}")
    assert isinstance(attack, Attack) and attack.secret == "samples"
