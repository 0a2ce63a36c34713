"""FedPG's messages open: iterates and duals exactly, the Gram matrix from one-step runs."""

from dataclasses import replace

import numpy as np
import pytest

from securefed.algorithms import SSI, FedPE, FedPG
from securefed.algorithms._pca.operators import off, orth
from securefed.attacks import Attack, Target, attacks
from securefed.attacks._duals import FedPGDuals
from securefed.attacks._duals.fedpg import gradient_block
from securefed.attacks._duals.local_steps_fit import simulation
from securefed.attacks._duals.observed_steps import observed_steps
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.elimination import EliminatedProducts, eliminate, least_trace_shift, solve_shifted
from securefed.attacks.scores import relative_error
from securefed.errors import ConfigError, TranscriptError
from tests.attacks.consensus import digits, gram, observe
from tests.combinations import first_ones

RNG = np.random.default_rng(0)
ONE_STEP = FedPG(3, rho=1.0, step_size=0.01, local_steps=1)


@pytest.mark.parametrize("local_steps", [1, 5])
def test_iterates_and_duals_open_exactly_for_any_number_of_local_steps(local_steps):
    algorithm = replace(ONE_STEP, local_steps=local_steps, rho=2.0)
    views, _, truth = observe(algorithm, digits(20, 0), 6)
    steps = observed_steps(views[2].rounds, algorithm.rho)
    assert len(steps) == 6
    for step, observation, (before, after) in zip(steps, views[2].rounds, truth[2], strict=True):
        np.testing.assert_allclose(step.end, after.basis, atol=1e-13)
        if before.basis is not None:
            np.testing.assert_allclose(step.start, before.basis, atol=1e-13)
            dual = step.linear + algorithm.rho * observation.broadcast["basis"]
            np.testing.assert_allclose(dual, before.dual, atol=1e-13)


def test_one_step_gives_the_block_of_the_gram_matrix():
    clients = digits(20, 0)
    views, _, _ = observe(ONE_STEP, clients, 4)
    S = gram(clients[1]) / clients[1].rows
    for step in observed_steps(views[1].rounds, 1.0):
        block = gradient_block(step, ONE_STEP.step_size)
        np.testing.assert_allclose(block, off(step.start, S @ step.start), atol=1e-11)
        wrong = gradient_block(step, 2 * ONE_STEP.step_size)
        assert np.abs(wrong - off(step.start, S @ step.start)).max() > 1e-2


@pytest.mark.parametrize("seed", first_ones(range(10), 3))
def test_standardised_digits_are_recovered_in_thirteen_participations(seed):
    clients = digits(20, seed)
    views, target, _ = observe(ONE_STEP, clients, 13, seed)
    got = FedPGDuals().run(views[0], target, RNG)
    assert relative_error(got.value, gram(clients[0])) < 1e-7
    assert got.diagnostics["standardised"] and got.rank == got.unknowns == 19 * 10
    known = FedPGDuals(fit_features=0).run(views[0], target, RNG)  # by elimination
    assert known.rank == known.unknowns == 13 * 6
    np.testing.assert_allclose(known.value, got.value, rtol=1e-6, atol=1e-3)
    few, target, _ = observe(ONE_STEP, clients, 3, seed)
    assert relative_error(FedPGDuals().run(few[0], target, RNG).value, gram(clients[0])) > 1e-2


@pytest.mark.parametrize("local_steps", first_ones([2, 10]))
def test_several_local_steps_are_simulated_and_fitted(local_steps):
    clients = digits(12, 1)
    views, target, _ = observe(replace(ONE_STEP, local_steps=local_steps), clients, 20)
    got = FedPGDuals().run(views[0], target, RNG)
    assert got.diagnostics["method"] == "fitted" and got.diagnostics["standardised"]
    assert got.rank == got.unknowns == 77 and got.residual < 1e-9
    assert relative_error(got.value, gram(clients[0])) < 1e-6
    few = replace(views[0], rounds=views[0].rounds[:2])
    guess = FedPGDuals().run(few, target, RNG)
    assert guess.diagnostics["method"] == "fitted, not proven" and guess.rank < 77
    assert relative_error(guess.value, gram(clients[0])) > 0.01
    assert "limited to 10" in FedPGDuals(fit_features=10).applies(target, views[0])


@pytest.mark.parametrize("kind", [FedPG, FedPE])
def test_the_simulated_steps_are_the_clients_own_and_their_derivatives_are_right(kind):
    algorithm = kind(3, rho=1.0, step_size=0.05, local_steps=4)
    clients = digits(8, 0)
    views, _, _ = observe(algorithm, clients, 3)
    coordinates = SymmetricMatrices.of(8)
    steps = observed_steps(views[0].rounds, 1.0, orthonormal=kind is FedPG)
    client = simulation(steps, algorithm)
    own = client.sent(coordinates.coordinates(gram(clients[0]) / clients[0].rows))
    seen = np.concatenate([(step.end + step.linear).ravel() for step in steps])
    np.testing.assert_allclose(own, seen, atol=1e-12)
    x, direction = 0.3 * RNG.normal(size=36), RNG.normal(size=36)
    slope = (client.sent(x + 1e-6 * direction) - client.sent(x - 1e-6 * direction)) / 2e-6
    sent, jacobian = client.sent_and_tangents(x)
    np.testing.assert_allclose(sent, client.sent(x), atol=1e-13)
    np.testing.assert_allclose(jacobian @ direction, slope, atol=1e-7)
    shift = jacobian @ coordinates.coordinates(np.eye(8))
    assert client.blind == (kind is FedPG) == (np.abs(shift).max() < 1e-12)


def test_raw_data_take_the_shift_of_least_rank():
    clients = digits(64, 3, standardised=False)
    views, target, _ = observe(ONE_STEP, clients, 40)
    got = FedPGDuals().run(views[0], target, RNG)
    assert not got.diagnostics["standardised"]
    assert relative_error(got.value, gram(clients[0])) < 0.01


def test_partial_participation_costs_participations_not_exactness():
    clients = digits(20, 5)
    schedule = lambda k: ((0, 1, 2), (0, 3, 4), (1, 2, 4))[k % 3]  # noqa: E731
    views, target, _ = observe(ONE_STEP, clients, 24, schedule=schedule)
    assert len(views[0].rounds) == 16
    assert relative_error(FedPGDuals().run(views[0], target, RNG).value, gram(clients[0])) < 1e-6


def test_steps_whose_result_was_not_seen_are_left_out():
    """Without the broadcast that followed, the next dual is unknown: the step there does not open, later ones do."""
    views, _, _ = observe(ONE_STEP, digits(20, 6), 8, schedule=lambda k: (0, 1) if k != 3 else (1, 2))
    rounds = [replace(o, followed={}) for o in views[0].rounds]  # rounds 0, 1, 2, 4, 5, 6, 7
    steps = observed_steps(rounds, ONE_STEP.rho)
    assert len(observed_steps(views[0].rounds, ONE_STEP.rho)) == 7
    assert len(steps) == 5
    for step in steps:
        np.testing.assert_allclose(step.end.T @ step.end, np.eye(3), atol=1e-10)


def test_elimination_finds_the_hidden_blocks_up_to_one_shift():
    n, p, count = 12, 2, 9
    S = RNG.normal(size=(n, n))
    S = S @ S.T
    bases = [orth(RNG.normal(size=(n, p))) for _ in range(count)]
    seen = eliminate(bases, [off(U, S @ U) for U in bases])
    assert seen.rank == seen.unknowns == count * p * (p + 1) // 2
    difference = S @ seen.probes - seen.products
    shift = np.vdot(seen.probes, difference) / np.vdot(seen.probes, seen.probes)
    np.testing.assert_allclose(difference, shift * seen.probes, atol=1e-8)
    solution, _ = solve_shifted(seen, trace=float(np.trace(S)))
    assert relative_error(solution.gram, S) < 1e-8


def test_without_a_trace_the_shift_is_that_of_a_singular_matrix():
    n = 12
    A = RNG.normal(size=(n, n - 3))
    bases = [orth(RNG.normal(size=(n, 2))) for _ in range(9)]
    for S, close in ((A @ A.T, 1e-7), (A @ A.T + np.eye(n), None)):
        solution, _ = solve_shifted(eliminate(bases, [off(U, S @ U) for U in bases]))
        wrong = relative_error(solution.gram, S)
        assert wrong < close if close else wrong > 0.01


def test_a_shuffled_transcript_gives_nothing():
    views, target, _ = observe(ONE_STEP, digits(20, 0), 13)
    messages = [o.message for o in views[0].rounds]
    rounds = tuple(replace(o, message=messages[i - 3], followed={}) for i, o in enumerate(views[0].rounds))
    with pytest.raises(TranscriptError, match="do not fit"):
        FedPGDuals().run(replace(views[0], rounds=rounds), target, RNG)


def test_where_the_attack_cannot_run_it_says_why():
    views, target, _ = observe(ONE_STEP, digits(20, 0), 3)
    view, attack = views[0], FedPGDuals()
    assert attack.applies(target, view) is None
    pooled = replace(view, rounds=tuple(replace(o, members=frozenset({0, 1})) for o in view.rounds))
    cases = [
        (Target(SSI(3), target.public), view, "dual variables"),
        (target, pooled, "not linear"),
        (target, replace(view, rounds=view.rounds[:1]), "Two participations"),
    ]
    for aim, seen, words in cases:
        assert words in attack.applies(aim, seen)
        with pytest.raises(TranscriptError, match=words):
            attack.run(seen, aim, RNG)


def test_memory_limits_the_elimination_and_not_the_fit_of_several_steps():
    views, target, _ = observe(ONE_STEP, digits(20, 0), 3)
    assert "Eliminating" in FedPGDuals(memory=1).applies(target, views[0])
    several = replace(target, algorithm=replace(ONE_STEP, local_steps=2))
    assert FedPGDuals(memory=1).applies(several, views[0]) is None


def test_registered_and_checked():
    assert isinstance(attacks.make("duals/fedpg"), Attack)
    with pytest.raises(ConfigError, match="fit_features"):
        FedPGDuals(fit_features=-1)


def test_messages_of_no_one_matrix_are_refused_where_every_direction_is_lost() -> None:
    rng = np.random.default_rng(0)
    probes = np.linalg.qr(rng.normal(size=(8, 4)))[0]
    gram = probes @ np.diag([4.0, 3, 2, 1]) @ probes.T
    skew = rng.normal(size=(8, 8))
    assert least_trace_shift(EliminatedProducts(probes, gram @ probes, 4, 4, 1.0, 0.0)) < 1e-6  # the control
    with pytest.raises(TranscriptError, match="no one matrix"):
        least_trace_shift(EliminatedProducts(probes, (skew - skew.T) @ probes, 4, 4, 1.0, 0.0))
