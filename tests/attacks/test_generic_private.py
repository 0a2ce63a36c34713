"""Generic attacks under clips and noise that a transcript states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from securefed import Dataset, Federation, Public, chain
from securefed.algorithms import DSGD
from securefed.attacks import FitRows, Target, views
from securefed.attacks._generic import RegressRows, Replay
from securefed.attacks.scores import sample_error
from securefed.defenses import clip, gaussian
from securefed.errors import TranscriptError
from securefed.problems import SoftmaxRegression
from tests.attacks.steady import SteadyGaussian

FEATURES, ROUNDS = 4, 3
FIT, LEARN = FitRows(starts=1), RegressRows(fewest=80, most=80)


def scene(*parts, seed=0):
    """(view of the one client, its rows, a prior like them) of gradient descent on a linear problem."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0.2, 1, (41, FEATURES))
    data = Dataset(rows[:1], rng.integers(0, 2, 1))
    public = Public(1, 1, FEATURES, (1,), 2, 1.0)
    method = DSGD(problem=SoftmaxRegression(), learning_rate=0.5)
    federation = Federation(method, [data], chain(*parts), seed=seed, public=public)
    federation.run(ROUNDS)
    target = Target(method, public)
    view = views.released(federation.transcript, 0)
    return Replay(view, target, data.y, prior=rows[1:]), rows[:1], target


def undistorted(replay):
    """The same numbers, by an attacker who does not know the defence."""
    view = replay.observed
    rounds = tuple(replace(item, clips=(), noise={}) for item in view.rounds)
    return replace(replay, observed=replace(view, rounds=rounds))


def noisy(multiplier, seed=0):
    return clip(5.0), SteadyGaussian(gaussian(multiplier), seed)


def test_a_replayed_client_clips_as_the_defence_does() -> None:
    replay, rows, _ = scene(clip(0.1))
    np.testing.assert_allclose(replay(rows), replay.messages, rtol=1e-12)
    assert np.linalg.norm(undistorted(replay)(rows) - replay.messages) > 0.1


def test_rows_are_fitted_through_a_clip() -> None:
    replay, rows, _ = scene(clip(0.3))
    found = FIT.run(replay, replay.target, np.random.default_rng(0))
    assert found.diagnostics["explained"] and sample_error(found.value, rows) < 1e-3
    blind = FIT.run(undistorted(replay), replay.target, np.random.default_rng(0))
    assert sample_error(blind.value, rows) > 0.1


def test_under_noise_rows_go_from_exact_to_the_guess() -> None:
    errors = []
    for multiplier in (1e-5, 1e-3, 0.1):
        mine, blind, guess = [], [], []
        for seed in range(2):
            replay, rows, _ = scene(*noisy(multiplier, seed), seed=seed)
            try:
                mine.append(sample_error(FIT.run(replay, replay.target, np.random.default_rng(0)).value, rows))
            except TranscriptError:  # drowned: regression takes over
                mine.append(sample_error(LEARN.run(replay, replay.target, np.random.default_rng(0)).value, rows))
            other = FIT.run(undistorted(replay), replay.target, np.random.default_rng(0))
            blind.append(sample_error(other.value, rows))
            guess.append(sample_error(np.broadcast_to(replay.prior.mean(axis=0), rows.shape), rows))
        errors.append((np.mean(mine), np.mean(blind), np.mean(guess)))
    assert errors[0][0] < 1e-3
    assert all(mine < 1.1 * guess for mine, _, guess in errors)
    assert errors[-1][0] < 0.8 * errors[-1][1]


def test_regression_learns_from_messages_as_noisy_as_those_seen() -> None:
    for multiplier in (0.3, 3.0):
        mine, blind, guess = [], [], []
        for seed in range(3):
            replay, rows, _ = scene(*noisy(multiplier, seed), seed=seed)
            mine.append(sample_error(LEARN.run(replay, replay.target, np.random.default_rng(0)).value, rows))
            blind.append(
                sample_error(LEARN.run(undistorted(replay), replay.target, np.random.default_rng(0)).value, rows)
            )
            guess.append(sample_error(np.broadcast_to(replay.prior.mean(axis=0), rows.shape), rows))
        assert np.mean(mine) < min(1.1 * np.mean(guess), 0.7 * np.mean(blind))
