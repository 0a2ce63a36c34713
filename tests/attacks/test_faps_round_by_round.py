"""FAPS with one inner step, or with subproblems solved: its subspaces follow from the messages round by round."""

from dataclasses import replace

import numpy as np
import pytest

from securefed.algorithms import FAPS, RoundOutcome
from securefed.algorithms._pca.operators import off
from securefed.attacks import ConsensusGram
from securefed.attacks._gram.faps.exact_round import exact_round
from securefed.attacks._gram.faps.near_consensus import near_consensus
from securefed.attacks._gram.faps.one_step_round import one_step_round
from securefed.attacks._gram.faps.round_by_round import _solve_subspaces, is_solvable_by_rounds, solve_round_by_round
from securefed.attacks.scores import relative_error
from tests.attacks.subspaces import digits, gram, observe
from tests.combinations import first_ones

RNG = np.random.default_rng(0)
SOLVED = {"inner_tolerance": 1e-10, "inner_cap": 5000}


def subspaces(algorithm, target, data, rounds):
    """X_1, X_2, ... of the client itself."""
    client = algorithm.enroll(data, target.public, RNG)
    out = []
    for observation in rounds:
        client, _ = algorithm.contribute(client, observation.broadcast, RNG)
        client = algorithm.commit(client, RoundOutcome(True, None))
        out.append(client.basis)
    return out


def estimated(rounds, clients):
    return near_consensus(rounds, 0.15, clients[0].rows).gram


@pytest.mark.parametrize(
    ("setting", "solve_round", "close"), [({"inner_steps": 1}, one_step_round, 1e-9), (SOLVED, exact_round, 1e-6)]
)
def test_each_link_is_the_clients_own_subspace_with_its_block(setting, solve_round, close):
    algorithm, clients = FAPS(3, **setting), digits(16, "random")
    observed, target = observe(algorithm, clients, 12)
    solved = _solve_subspaces(observed.rounds, algorithm, solve_round, estimated(observed.rounds, clients))
    S, true = gram(clients[0]), subspaces(algorithm, target, clients[0], observed.rounds)
    assert len(solved) == 12  # with rule (25): beta has grown on the way
    for subspace, X in zip(solved, true, strict=True):
        assert np.linalg.norm(off(X, subspace.X)) < close
        assert np.linalg.norm(subspace.G - off(subspace.X, S @ subspace.X)) < close * np.linalg.norm(S)
        if subspace.inside is not None:
            np.testing.assert_allclose(subspace.inside, subspace.X.T @ S @ subspace.X, atol=close * np.linalg.norm(S))


@pytest.mark.parametrize("seed", first_ones(range(3)))
def test_one_inner_step_gives_the_matrix_at_36_features(seed):
    clients = digits(36, "random", seed=seed)
    observed, target = observe(FAPS(4, inner_steps=1), clients, 11, seed=seed)
    got = ConsensusGram(fit_unknowns=0).run(observed, target, RNG)
    assert got.diagnostics["method"] == "round by round" and got.diagnostics["rounds solved"] == 11
    assert relative_error(got.value, gram(clients[0])) < 1e-6
    few = replace(observed, rounds=observed.rounds[:4])
    part = ConsensusGram(fit_unknowns=0).run(few, target, RNG)
    assert relative_error(part.value, gram(clients[0])) > 1e-3


@pytest.mark.parametrize("kind", ["random", "sorted"])
def test_solved_subproblems_cancel_the_matrix(kind):
    clients = digits(16, kind)
    observed, target = observe(FAPS(3, **SOLVED), clients, 12)
    got = ConsensusGram(fit_unknowns=0).run(observed, target, RNG)
    assert got.diagnostics["method"] == "round by round" and got.residual < 1e-4
    assert relative_error(got.value, gram(clients[0])) < 1e-4


@pytest.mark.exhaustive
def test_shuffled_or_noisy_messages_break_the_chain():
    clients = digits(12, "random")
    observed, target = observe(FAPS(2, inner_steps=1), clients, 10)
    kept = [o.message for o in observed.rounds]
    rounds = [replace(o, message=kept[(i + 3) % 10]) for i, o in enumerate(observed.rounds)]
    assert solve_round_by_round(rounds, target.algorithm, clients[0].rows, gram(clients[0])) is None
    noisy, _ = observe(FAPS(2, inner_steps=1), clients, 10, noise=1e-3)
    assert solve_round_by_round(noisy.rounds, target.algorithm, clients[0].rows, gram(clients[0])) is None


def test_which_algorithms_are_followed():
    assert is_solvable_by_rounds(FAPS(2, inner_steps=1)) and is_solvable_by_rounds(FAPS(2, **SOLVED))
    assert not is_solvable_by_rounds(FAPS(2)) and not is_solvable_by_rounds(FAPS(2, inner_steps=3))
    assert not is_solvable_by_rounds(FAPS(2, inner_rule="bases", inner_tolerance=1e-9))
