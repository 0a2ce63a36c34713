"""FedPG's messages under a clip, or with noise of known size."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, Public, chain
from securefed.algorithms import FedPG
from securefed.attacks import Target, views
from securefed.attacks._duals import FedPGDuals, JointDuals, PooledDuals, pooled_client
from securefed.attacks.scores import relative_error
from securefed.defenses import clip, gaussian
from securefed.errors import TranscriptError
from tests.attacks.steady import SteadyGaussian
from tests.combinations import first_ones

FEATURES, RANK, CLIENTS = 10, 2, 4
ALGORITHM = FedPG(RANK, local_steps=1, tolerance=0.0)


def clients():
    rng = np.random.default_rng(2)
    mixing = rng.normal(size=(FEATURES, FEATURES))
    rows = [rng.normal(size=(60, FEATURES)) @ mixing for _ in range(CLIENTS)]
    return [Dataset((own - own.mean(axis=0)) / own.std(axis=0)) for own in rows]


def run(norm, multiplier, rounds=12, seed=1):
    parts = clients()
    public = Public.of(parts)
    defense = chain(clip(norm), SteadyGaussian(gaussian(multiplier), 4))
    transcript = Federation(ALGORITHM, parts, defense, seed=seed, public=public).run(rounds).transcript
    return transcript, Target(ALGORITHM, public)


def attacked(attack, observed, target):
    return attack.run(observed, target, np.random.default_rng(0))


def told_nothing(observed):
    return replace(observed, rounds=tuple(replace(o, clips=(), noise={}) for o in observed.rounds))


def gram(parts):
    return sum(data.x.T @ data.x for data in parts)


def test_a_clipped_client_is_exact():
    """Noise on the sums drives the duals, and the messages, beyond the norm."""
    transcript, target = run(2.0, 1.0)
    observed, truth = views.server(transcript, 0), gram(clients()[:1])
    assert relative_error(attacked(FedPGDuals(), observed, target).value, truth) < 1e-8
    with pytest.raises(TranscriptError, match="do not fit the messages"):
        attacked(FedPGDuals(), told_nothing(observed), target)


def test_a_clip_that_did_nothing_changes_nothing():
    transcript, target = run(1e3, 1e-4)
    observed = views.sum_only(transcript, 0)
    found, plain = (attacked(PooledDuals(), view, target) for view in (observed, told_nothing(observed)))
    np.testing.assert_array_equal(found.value, plain.value)


def test_clipped_sums_are_put_back_and_shrunk():
    transcript, target = run(2.0, 1.0)
    observed, truth = views.sum_only(transcript, 0), gram(clients())
    assert relative_error(attacked(PooledDuals(), observed, target).value, truth) < 0.9


@pytest.mark.parametrize("rounds", [12, 30])
def test_steps_whose_clipping_was_not_undone_are_left_out(rounds):
    """The later the round, the less are clipped clients one client; a step undone wrongly is far too large."""
    transcript, target = run(2.0, 1.0, rounds, seed=5)
    observed, truth = views.sum_only(transcript, 0), gram(clients())
    got = attacked(PooledDuals(), observed, target)
    assert got.diagnostics["steps"] < rounds and got.diagnostics["apart"] < 0.05
    assert relative_error(got.value, truth) < 0.9
    few = replace(observed, rounds=observed.rounds[9:])  # as if these were the first: wrong duals, wrong clipping
    with pytest.raises(TranscriptError, match="fewer than two steps"):
        attacked(PooledDuals(), few, target)


def test_noise_is_not_amplified_and_refused_where_it_hides_everything():
    transcript, target = run(4.0, 2e-3)
    observed, truth = views.released(transcript, 0), gram(clients())
    shrunk = relative_error(attacked(PooledDuals(), observed, target).value, truth)
    assert shrunk < 1.0 < relative_error(attacked(PooledDuals(), told_nothing(observed), target).value, truth)
    transcript, target = run(4.0, 1.0)
    with pytest.raises(TranscriptError, match="hides an entry"):
        attacked(PooledDuals(), views.released(transcript, 0), target)
    many = JointDuals(fit_unknowns=10_000)
    assert "Noise was added" in many.applies(target, views.released(transcript, 0))


def test_the_estimate_of_noised_sums_is_the_most_likely_positive_semidefinite_matrix(monkeypatch):
    """First-order conditions over S >= 0: the gradient is positive semidefinite, and vanishes on the range of S."""
    rng, error = np.random.default_rng(0), 0.5
    factor = rng.normal(size=(FEATURES, 3))
    U = np.linalg.qr(rng.normal(size=(6, FEATURES, RANK)))[0]
    Y = factor @ factor.T @ U + error * rng.normal(size=U.shape)
    blocks = Y - U @ (U.mT @ Y)
    monkeypatch.setattr(pooled_client, "_ALTERNATIONS", 400)
    found = pooled_client._posterior_mode(U, blocks, error, FEATURES)
    signal = (np.mean(blocks**2) - error**2) * FEATURES / (FEATURES - RANK)
    pull = np.sum((found @ U - U @ (U.mT @ found @ U) - blocks) @ U.mT, axis=0) / error**2
    slope = (pull + pull.T) / 2 + found / signal
    assert np.linalg.eigvalsh(slope)[0] > -1e-3 * np.linalg.norm(slope)
    assert np.linalg.norm(slope @ found) < 1e-3 * np.linalg.norm(slope) * np.linalg.norm(found)


@pytest.mark.parametrize("rounds", first_ones([12, 40]))
def test_weak_noise_on_sums_tells_most(rounds):
    transcript, target = run(4.0, 2e-5, rounds)
    found = attacked(PooledDuals(), views.released(transcript, 0), target).value
    assert relative_error(found, gram(clients())) < {12: 0.55, 40: 0.46}[rounds]
