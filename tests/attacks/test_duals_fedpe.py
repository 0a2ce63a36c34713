"""FedPE's messages open: iterates and both duals exactly, the Gram matrix without any shift left open."""

from dataclasses import replace

import numpy as np
import pytest

from securefed.algorithms import FedPE, FedPG
from securefed.algorithms._pca.operators import off
from securefed.attacks import Attack, Target, attacks
from securefed.attacks._duals import FedPEDuals
from securefed.attacks._duals.fedpe import gradient_parts
from securefed.attacks._duals.observed_steps import observed_steps
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks.scores import relative_error
from securefed.errors import TranscriptError
from tests.attacks.consensus import digits, gram, observe
from tests.combinations import first_ones

RNG = np.random.default_rng(0)
ONE_STEP = FedPE(3, rho=1.0, step_size=0.01, local_steps=1)


@pytest.mark.parametrize("local_steps", [1, 5])
def test_iterates_and_both_duals_open_exactly(local_steps):
    algorithm = replace(ONE_STEP, local_steps=local_steps, step_size=0.03)
    views, _, truth = observe(algorithm, digits(20, 0), 6)
    steps = observed_steps(views[2].rounds, algorithm.rho, orthonormal=False)
    assert len(steps) == 6
    for step, (before, after) in zip(steps, truth[2], strict=True):
        np.testing.assert_allclose(step.end, after.basis, atol=1e-13)
        np.testing.assert_allclose(step.constraint_dual, before.constraint_dual, atol=1e-13)
    assert np.abs(steps[-1].constraint_dual).max() > 1e-6  # or the line above compares zeros


def test_one_step_gives_the_block_and_equations_of_the_corner():
    clients = digits(20, 0)
    views, _, _ = observe(ONE_STEP, clients, 6)
    S = gram(clients[1]) / clients[1].rows
    for step in observed_steps(views[1].rounds, 1.0, orthonormal=False):
        Q, block, inner = gradient_parts(step, ONE_STEP.step_size, 1.0)
        np.testing.assert_allclose(block, off(Q, S @ Q), atol=1e-11)
        theta = SymmetricMatrices.of(3).coordinates(Q.T @ S @ Q)
        np.testing.assert_allclose(np.tensordot(theta, inner.images, 1), inner.right, atol=1e-11)
        _, wrong, _ = gradient_parts(step, 2 * ONE_STEP.step_size, 1.0)
        assert np.abs(wrong - off(Q, S @ Q)).max() > 1e-2


@pytest.mark.parametrize("seed", range(10))
def test_standardised_digits_are_recovered_without_knowing_their_trace(seed):
    clients = digits(20, seed)
    views, target, _ = observe(ONE_STEP, clients, 13, seed)
    got = FedPEDuals().run(views[0], target, RNG)
    assert got.rank == got.unknowns == 13 * 6 and got.residual < 1e-12
    assert relative_error(got.value, gram(clients[0])) < 1e-6
    few = replace(views[0], rounds=views[0].rounds[:4])
    assert relative_error(FedPEDuals().run(few, target, RNG).value, gram(clients[0])) > 1e-2


def test_raw_unnormalised_rows_and_partial_participation():
    clients = [replace(data, x=data.x / np.sqrt(data.rows)) for data in digits(20, 5, standardised=False)]
    schedule = lambda k: ((0, 1, 2), (0, 3, 4), (1, 2, 4))[k % 3]  # noqa: E731
    views, target, _ = observe(replace(ONE_STEP, normalise=False), clients, 24, schedule=schedule)
    assert len(views[0].rounds) == 16
    assert relative_error(FedPEDuals().run(views[0], target, RNG).value, gram(clients[0])) < 1e-5


def test_two_participations_are_too_few_and_take_the_shift_of_least_rank():
    clients = digits(20, 0)
    views, target, _ = observe(ONE_STEP, clients, 2)
    got = FedPEDuals().run(views[0], target, RNG)
    assert relative_error(got.value, gram(clients[0])) > 0.3


@pytest.mark.parametrize("local_steps", first_ones([2, 10]))
def test_several_local_steps_are_simulated_and_fitted(local_steps):
    clients = digits(12, 1)
    views, target, _ = observe(replace(ONE_STEP, local_steps=local_steps), clients, 20)
    got = FedPEDuals().run(views[0], target, RNG)
    assert got.diagnostics["method"] == "fitted" and got.rank == got.unknowns == 78
    assert relative_error(got.value, gram(clients[0])) < 1e-6
    few = replace(views[0], rounds=views[0].rounds[:2])
    assert FedPEDuals().run(few, target, RNG).diagnostics["method"] == "fitted, not proven"


def test_shuffled_messages_do_not_give_the_matrix():
    clients = digits(20, 0)
    views, target, _ = observe(ONE_STEP, clients, 13)
    messages = [o.message for o in views[0].rounds]
    rounds = tuple(replace(o, message=messages[i - 3]) for i, o in enumerate(views[0].rounds))
    got = FedPEDuals().run(replace(views[0], rounds=rounds), target, RNG)
    assert got.residual > 1e-6 and relative_error(got.value, gram(clients[0])) > 0.3


def test_where_the_attack_cannot_run_it_says_why():
    views, target, _ = observe(ONE_STEP, digits(20, 0), 3)
    view, attack = views[0], FedPEDuals()
    assert attack.applies(target, view) is None
    pooled = replace(view, rounds=tuple(replace(o, members=frozenset({0, 1})) for o in view.rounds))
    cases = [
        (Target(FedPG(3), target.public), view, "dual variables of FedPE"),
        (target, pooled, "not linear"),
        (target, replace(view, rounds=view.rounds[:1]), "Two participations"),
    ]
    for aim, seen, words in cases:
        assert words in attack.applies(aim, seen)
        with pytest.raises(TranscriptError, match=words):
            attack.run(seen, aim, RNG)
    assert isinstance(attacks.make("duals/fedpe"), Attack)
