"""Personal models under clips and noise: exact as they vanish, else no worse than those of a client without rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, Public, chain
from securefed.algorithms import FLAME, Ditto, FedADMM, PFedMe
from securefed.algorithms._optimization.model import Model
from securefed.attacks import Target, views
from securefed.attacks._personal import ADMMRecursion, PersonalModelReplay
from securefed.attacks._personal.message_denoising import ConstantGradientModel, denoised, posterior_mean
from securefed.attacks.scores import relative_error
from securefed.defenses import clip, gaussian
from tests.attacks.steady import SteadyGaussian
from tests.combinations import first_ones

CLIENTS, ROWS, ROUNDS = 4, 3, 8
OPENED = {
    "flame": (FLAME(anchor="global"), ADMMRecursion()),
    "fedadmm": (FedADMM(), ADMMRecursion()),
    "pfedme": (PFedMe(local_steps=1), ADMMRecursion()),
    "ditto": (Ditto(local_steps=5), PersonalModelReplay()),
}


def scene(method, *parts, seed=0, rounds=ROUNDS):
    """(federation, target) on random rows in [0, 1], three classes."""
    rng = np.random.default_rng(seed)
    clients = [Dataset(rng.uniform(0, 1, (ROWS, 8)), rng.integers(0, 3, ROWS)) for _ in range(CLIENTS)]
    public = Public(CLIENTS, CLIENTS, 8, (ROWS,) * CLIENTS, 3, 1.0)
    federation = Federation(method, clients, chain(*parts), seed=seed, public=public)
    federation.run(rounds)
    return federation, Target(method, public)


def noisy(norm, multiplier, seed=0):
    return clip(norm), SteadyGaussian(gaussian(multiplier), seed)


def mean_model(federation):
    return np.mean([federation.nodes[k].state.committed.memory[0] for k in range(CLIENTS)], axis=0)


def error(federation, target, attack, observed):
    value = attack.run(observed, target, np.random.default_rng(0)).value[0]
    return relative_error(value, mean_model(federation))


def undistorted(observed):
    """The same numbers, by an attacker who does not know the defence."""
    return replace(observed, rounds=tuple(replace(item, clips=(), noise={}) for item in observed.rounds))


def test_without_clips_and_noise_a_view_stays_itself() -> None:
    federation, target = scene(FLAME())
    observed = views.sum_only(federation.transcript, None)
    assert denoised(observed, target) is observed


@pytest.mark.parametrize("name", OPENED)
def test_messages_are_known_plus_response_times_constant_gradients(name) -> None:
    federation, target = scene(OPENED[name][0], *noisy(1.0, 1.0))
    observed, method = views.sum_only(federation.transcript, None), target.algorithm
    model = Model(method.problem, target.public)
    received = [method.read(model, item.broadcast) for item in observed.rounds]
    steps = ConstantGradientModel.of(method, model, target.public, observed)
    gradients = np.random.default_rng(1).normal(size=(ROUNDS, model.layout.size))
    sent = steps(received, steps.start, gradients)
    np.testing.assert_allclose(steps.known(received) + steps.response(received) @ gradients, sent, atol=1e-10)


def test_the_posterior_mean_beats_the_messages_and_their_absence_and_has_both_as_limits() -> None:
    rng = np.random.default_rng(2)
    response = np.tril(rng.uniform(0.5, 1, (6, 6)))
    for size in np.geomspace(1e-3, 1e3, 13):
        noise = np.full(6, size)
        raw = nothing = mended = 0.0
        for _ in range(20):
            signal = response @ (rng.normal(size=100) + 0.3 * rng.normal(size=(6, 100)))
            seen = signal + size * rng.normal(size=signal.shape)
            found = posterior_mean(seen, response, noise, 30.0)
            raw += np.sum((seen - signal) ** 2)
            nothing += np.sum(signal**2)
            mended += np.sum((found - signal) ** 2)
        assert mended < 1.05 * min(raw, nothing)
        assert mended < 0.8 * min(raw, nothing) or not 0.2 < size < 5
    np.testing.assert_array_equal(posterior_mean(seen, response, np.zeros(6), 30.0), seen)


@pytest.mark.parametrize("name", first_ones(OPENED, 2))
def test_under_noise_estimates_are_exact_in_the_limit_and_no_worse_than_without_messages(name) -> None:
    method, attack = OPENED[name]
    for multiplier in (1e-5, 0.1, 10.0):
        mended, naive = [], []
        for seed in range(3):
            federation, target = scene(method, *noisy(5.0, multiplier, seed), seed=seed)
            observed = views.released(federation.transcript, None)
            mended.append(error(federation, target, attack, observed))
            naive.append(error(federation, target, attack, undistorted(observed)))
        if multiplier < 1e-3:
            exact = 2e-3 if isinstance(attack, ADMMRecursion) else 0.1  # a gradient is not quite constant in a round
            assert max(mended) < exact
        else:
            assert np.mean(mended) < 0.6 * np.mean(naive) and max(mended) < 1.05


@pytest.mark.parametrize("name", OPENED)
def test_what_broadcasts_alone_tell_is_stated_beside_and_is_the_limit_of_much_noise(name) -> None:
    """Noise in the broadcasts draws personal models along: an estimate near to them may tell nothing of a client."""
    method, attack = OPENED[name]
    federation, target = scene(method, *noisy(5.0, 30.0))
    found = attack.run(views.released(federation.transcript, None), target, np.random.default_rng(0))
    assert relative_error(found.value[0], found.guess) < 1e-2
    assert relative_error(found.guess, mean_model(federation)) < 0.1
    clear, target = scene(method)
    found = attack.run(views.sum_only(clear.transcript, None), target, np.random.default_rng(0))
    assert found.guess is None


def test_a_clip_is_undone_where_it_shows_what_was_expected() -> None:
    """Noise in the broadcast makes messages long and known, so that only the clip's factor is to be found."""
    found, naive = [], []
    for seed in range(12):
        federation, target = scene(FLAME(anchor="global"), *noisy(1.0, 1.0, seed), seed=seed)
        observed = views.server(federation.transcript, 1)
        own = federation.nodes[1].state.committed.memory[0]
        for errors, view in ((found, observed), (naive, undistorted(observed))):
            errors.append(relative_error(ADMMRecursion().run(view, target, np.random.default_rng(0)).value[0], own))
    assert np.mean(found) < 0.3 * np.mean(naive)
    assert max(found) < min(max(naive), 0.1)


def test_a_clip_that_cuts_nothing_off_leaves_a_single_message_as_it_is() -> None:
    federation, target = scene(FLAME(), clip(100.0))
    own = federation.nodes[1].state.committed.memory[0]
    found = ADMMRecursion().run(views.server(federation.transcript, 1), target, np.random.default_rng(0))
    assert relative_error(found.value[0], own) < 1e-13
