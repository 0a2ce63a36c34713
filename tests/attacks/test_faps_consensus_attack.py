"""FAPS gives its Gram matrices away: near consensus on any view, exactly on single clients."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset
from securefed.algorithms import FAPS, SSI
from securefed.algorithms._pca.operators import off
from securefed.attacks import Attack, ConsensusGram, Target, attacks
from securefed.attacks._engine import DualArray
from securefed.attacks._gram.coordinates import LowRankFactor, SymmetricMatrices
from securefed.attacks._gram.faps.consensus_attack import replay_residual
from securefed.attacks._gram.faps.near_consensus import largest_eigenvalue, near_consensus
from securefed.attacks._gram.faps.simulated_client import ReceivedRounds, messages, rule_counts
from securefed.attacks.scores import relative_error
from securefed.errors import ConfigError, TranscriptError
from tests.attacks.subspaces import digits, gram, observe
from tests.combinations import first_ones

RNG = np.random.default_rng(0)


def course(observed, algorithm, count):
    betas = [algorithm.beta_scale * (1.1 if algorithm.adaptive and k > 5 else 1.0) for k in range(count)]
    return ReceivedRounds([o.broadcast["basis"] for o in observed.rounds[:count]], betas, algorithm.inner_steps)


@pytest.mark.parametrize("inner_steps", [None, 1, 4])
def test_the_simulated_client_sends_what_faps_sends(inner_steps):
    algorithm, clients = FAPS(3, inner_steps=inner_steps), digits(14)
    observed, _ = observe(algorithm, clients, 9)
    S = gram(clients[0])
    scale = np.linalg.eigvalsh(S)[-1]
    np.testing.assert_allclose(largest_eigenvalue(observed.rounds[0], 0.15), scale, rtol=1e-10)
    path = course(observed, algorithm, 9)
    counts = rule_counts(S / scale, path, algorithm) if inner_steps is None else np.zeros(0)
    for Y, observation in zip(messages(S / scale, counts, path), observed.rounds, strict=True):
        np.testing.assert_allclose(Y, observation.message["product"] / scale, atol=1e-11)


@pytest.mark.parametrize("inner_steps", [None, 3])
def test_the_simulation_is_differentiated_correctly(inner_steps):
    algorithm, clients = FAPS(3, inner_steps=inner_steps), digits(8)
    observed, _ = observe(algorithm, clients, 4)
    path, coordinates = course(observed, algorithm, 4), SymmetricMatrices.of(8)
    S = gram(clients[0]) / np.linalg.eigvalsh(gram(clients[0]))[-1]
    x = np.concatenate([coordinates.coordinates(S), np.array([2.3, 3.6, 1.5])[: path.free_counts]])
    direction = RNG.normal(size=len(x))

    def at(values):
        sent = messages(coordinates.matrix(values[:36]), values[36:], path)
        return np.concatenate([Y.reshape(-1) for Y in sent])

    slope = (at(x + 1e-6 * direction) - at(x - 1e-6 * direction)) / 2e-6
    sent = at(DualArray.variables(x))
    np.testing.assert_allclose(sent.value, at(x), atol=1e-13)
    np.testing.assert_allclose(sent.slopes @ direction, slope, atol=1e-7)


@pytest.mark.parametrize(
    ("inner_steps", "kind"),
    first_ones([(None, "sorted"), (1, "random"), (None, "random"), (1, "sorted"), (5, "sorted"), (5, "random")], 2),
)
def test_single_clients_are_recovered_exactly_at_twelve_features(kind, inner_steps):
    clients = digits(12, kind)
    observed, target = observe(FAPS(2, inner_steps=inner_steps), clients, 40)
    got = ConsensusGram().run(observed, target, RNG)
    assert got.diagnostics["method"] == ("round by round" if inner_steps == 1 else "exact fit")
    assert got.rank == got.unknowns and got.residual < 1e-7
    assert relative_error(got.value, gram(clients[0])) < 1e-5


@pytest.mark.parametrize(("rows", "inner_steps"), first_ones([(6, 2), (6, None), (2, None)]))
def test_clients_of_few_rows_fall_from_three_messages_at_full_width(rows, inner_steps):
    """What the first message shows is exact, and the rest has the rank of the public rows."""
    first, *others = digits(40, "random")
    clients = [Dataset(first.x[:rows]), *others]
    observed, target = observe(FAPS(4, inner_steps=inner_steps), clients, 5)
    got = ConsensusGram().run(observed, target, RNG)
    assert got.diagnostics["method"] == "exact fit" and got.rank == got.unknowns
    assert relative_error(got.value, gram(clients[0])) < 1e-7


def test_float32_messages_do_not_protect():
    clients = digits(12)
    observed, target = observe(FAPS(2, inner_steps=2), clients, 12)
    cut = [{name: np.asarray(value, np.float32) for name, value in o.message.items()} for o in observed.rounds]
    rounds = tuple(replace(o, message=m) for o, m in zip(observed.rounds, cut, strict=True))
    got = ConsensusGram().run(replace(observed, rounds=rounds), target, RNG)
    assert got.diagnostics["method"] == "exact fit"
    assert 1e-9 < relative_error(got.value, gram(clients[0])) < 1e-3


def test_fitted_inner_counts_are_the_integers_of_the_rule():
    algorithm, clients = FAPS(2), digits(12)
    observed, target = observe(algorithm, clients, 30)
    got = ConsensusGram().run(observed, target, RNG)
    S = gram(clients[0])
    true = rule_counts(S / np.linalg.eigvalsh(S)[-1], course(observed, algorithm, 11), algorithm)
    # a count is seen only where the subspace still moves
    np.testing.assert_allclose(got.diagnostics["inner counts"][:4], true[:4], atol=1e-3)


@pytest.mark.parametrize("members", [(0,), (0, 2, 3), (0, 1, 2, 3, 4)])
def test_near_consensus_works_at_full_width_and_on_sums(members):
    clients = digits(64)
    observed, target = observe(FAPS(3), clients, 60, members)
    got = ConsensusGram().run(observed, target, RNG)
    truth = gram(*(clients[i] for i in members))
    assert got.members == set(members) and got.diagnostics["method"] == "near consensus"
    assert relative_error(got.value, truth) < 0.08
    pooled = gram(*clients) * sum(clients[i].rows for i in members) / 1797
    if len(members) == 1:  # the baseline of a viewer who knows the pooled matrix: .30
        assert relative_error(got.value, truth) < 0.3 * relative_error(pooled, truth)


def test_the_estimate_improves_as_consensus_comes():
    clients = digits(64)
    observed, _ = observe(FAPS(3), clients, 60)
    rows = clients[0].rows
    errors = [
        relative_error(near_consensus(observed.rounds[:k], 0.15, rows).gram, gram(clients[0])) for k in (10, 25, 60)
    ]
    assert errors[0] > errors[1] > errors[2]
    distances = near_consensus(observed.rounds, 0.15, rows).distances
    assert distances[0] < 1e-12 and distances[-1] < distances[3]


def test_the_first_message_and_a_converged_one_hold_the_block():
    clients = digits(20)
    observed, _ = observe(FAPS(3), clients, 80)
    S = gram(clients[0])
    for index, tolerance in ((0, 1e-12), (79, 1e-5)):
        Z, Y = observed.rounds[index].broadcast["basis"], observed.rounds[index].message["product"]
        assert np.linalg.norm(off(Z, Y) - off(Z, S @ Z)) < tolerance * np.linalg.norm(S)


def test_small_noise_leaves_most_of_the_matrix_and_the_attack_says_how_much():
    clients = digits(12, "random")
    observed, target = observe(FAPS(2, adaptive=False, inner_steps=2), clients, 12, noise=1e-6)
    got = ConsensusGram().run(observed, target, RNG)
    assert got.diagnostics["method"] == "fit to noise, not proven"
    error = relative_error(got.value, gram(clients[0]))
    assert 1e-5 < error < 3 * got.diagnostics["hidden error"] < 0.1


def test_under_noise_only_the_estimate_is_reported():
    clients = digits(12)
    observed, target = observe(FAPS(2), clients, 40, noise=1e-3)
    got = ConsensusGram(starts=1).run(observed, target, RNG)
    assert got.diagnostics["method"] == "near consensus"
    assert got.residual > 1e-4
    assert relative_error(got.value, gram(clients[0])) < 0.4


def test_a_shuffled_transcript_is_not_fitted():
    clients = digits(12)
    observed, target = observe(FAPS(2), clients, 12)
    kept = [o.message for o in observed.rounds]
    rounds = tuple(replace(o, message=kept[(i + 5) % 12]) for i, o in enumerate(observed.rounds))
    got = ConsensusGram(starts=1).run(replace(observed, rounds=rounds), target, RNG)
    assert got.diagnostics["method"] == "near consensus" and got.residual > 0.05


def test_replay_knows_the_truth_from_its_neighbour():
    clients = digits(12)
    observed, target = observe(FAPS(2), clients, 20)
    S = gram(clients[0])
    assert replay_residual(S, observed.rounds, target) < 1e-6
    assert replay_residual(1.01 * S, observed.rounds, target) > 1e-3


def test_where_the_attack_cannot_run_it_says_why():
    clients = digits(12)
    observed, target = observe(FAPS(2), clients, 2)
    attack = ConsensusGram()
    assert attack.applies(target, observed) is None
    cases = [
        (attack, Target(SSI(2), target.public), observed, "masked products"),
        (attack, target, replace(observed, rounds=()), "no messages"),
        (attack, target, replace(observed, target=3), "client 3"),
        (ConsensusGram(largest=8), target, observed, "the limit here is"),
    ]
    for make, aim, view, words in cases:
        assert words in make.applies(aim, view)
        with pytest.raises(TranscriptError, match=words):
            make.run(view, aim, RNG)


def test_registered_and_checked():
    assert isinstance(attacks.make("gram/consensus"), Attack)
    for wrong in ({"fit_unknowns": -1}, {"starts": 0}, {"largest": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ConsensusGram(**wrong)


def test_a_low_rank_factor_gives_back_its_matrix():
    factor = LowRankFactor(6, 2)
    S = factor.matrix(RNG.normal(size=factor.count))
    np.testing.assert_allclose(factor.matrix(factor.coordinates(S)), S, atol=1e-9)


def test_symmetric_coordinates_are_orthonormal():
    coordinates = SymmetricMatrices.of(6)
    left, right = (RNG.normal(size=(6, 6)) for _ in range(2))
    left, right = left + left.T, right + right.T
    np.testing.assert_allclose(coordinates.matrix(coordinates.coordinates(left)), left)
    np.testing.assert_allclose(coordinates.coordinates(left) @ coordinates.coordinates(right), np.vdot(left, right))
