"""Every noise of the message layer keeps its epsilon; planted bugs are flagged."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from securefed import audit_noise, chain
from securefed._auditing.differential_privacy.epsilon_bounds import from_scores, tradeoff
from securefed._auditing.differential_privacy.noise_audit import _CanaryExchanges
from securefed._auditing.gate.planted_noise import HalfGaussian
from securefed.defenses import (
    FixedSizeSampling,
    Plain,
    PoissonSampling,
    PrivacyPlan,
    adaptive_clip,
    clip,
    clip_each,
    discrete_gaussian,
    epsilon_of,
    gaussian,
    local_gaussian,
    local_laplace,
    poisson,
    secure_aggregation,
    skellam,
)
from securefed.defenses._differential_privacy import (
    AdaptiveClip,
    CentralGaussian,
    Clip,
    DistributedNoise,
    PoissonCohort,
)
from securefed.defenses._differential_privacy.adaptive import BELOW
from securefed.defenses._differential_privacy.clip import ClipEach
from securefed.defenses._fixed_point import Quantise
from securefed.errors import ConfigError, PlanError
from tests.combinations import first_ones

DELTA = 1e-5
SURE = {"runs": 1000, "confidence": 1 - 1e-6}
"""Noise comes from the operating system. What keeps its claim exactly is flagged twice in 10^8 audits (500 counted
exchanges each way, both rates' bounds have to fail), and of 1000 audits resampled for each bug that is planted here the
bounds lie seven standard deviations and more above what is claimed."""

NOISES = {
    "gaussian": gaussian(2.0),
    "local_gaussian": local_gaussian(2.0),
    "local_laplace": local_laplace(2.0),
    "discrete_gaussian": discrete_gaussian(2.0),
    "skellam": skellam(2.0),
}


class Unclipped(Clip):
    """Plans a clip and does not do it."""

    def encode(self, contribution, plan):
        return contribution


class WeakCentral(CentralGaussian):
    """A tenth of the noise that the plan counts."""

    def release(self, total, plan):
        assert plan.privacy is not None
        quieter = replace(plan.privacy, noise_multiplier=plan.privacy.noise_multiplier / 10)
        return super().release(total, replace(plan, privacy=quieter))


class _TenthOfTheShare(DistributedNoise):
    def sizes(self, plan):
        found = super().sizes(plan)
        return replace(found, share=found.share / 100)


class WeakShares(DistributedNoise):
    """A tenth of the noise that the plan counts."""

    def encode(self, contribution, plan):
        return _TenthOfTheShare(self.distribution, self.noise_multiplier, self.survivors).encode(contribution, plan)


def weak(noise):
    if isinstance(noise, CentralGaussian):
        return WeakCentral(noise.noise_multiplier)
    return WeakShares(noise.distribution, noise.noise_multiplier, noise.survivors)


@pytest.mark.parametrize("seed", first_ones(range(5)))
def test_half_of_the_noise_is_flagged_at_a_multiplier_of_one(seed) -> None:
    """The bound of the deviation lies at .565 with a standard error of .018, far from both ends."""
    found = audit_noise(chain(clip(1.0), HalfGaussian(1.0), Quantise(), Plain()), DELTA, runs=500, confidence=0.9999)
    assert found.flagged
    assert 0.45 < found.deviation < 0.7
    if seed == 0:  # the control, noise of the planned size: flagged in less than 3 of 10^4 audits
        right = audit_noise(chain(clip(1.0), gaussian(1.0), Quantise(), Plain()), DELTA, runs=500, confidence=1 - 1e-9)
        assert not right.flagged
        assert 0.8 < right.deviation < 1.6


@pytest.mark.parametrize("seed", range(5))
def test_a_gaussian_trade_off_alone_flags_half_of_the_noise_and_not_the_planned_noise(seed) -> None:
    """Epsilon of a multiplier of 1 is 4.377 at this delta."""
    rng = np.random.default_rng(seed)
    claimed = epsilon_of(1.0, 1, 1e-5)
    for deviation, flagged in ((0.5, True), (1.0, False)):
        with_it, without = rng.normal(1, deviation, 2000), rng.normal(0, deviation, 2000)
        assert (tradeoff(with_it, without, 1e-5, 0.9999) > claimed) == flagged


@pytest.mark.parametrize("name", [*NOISES, "clip_each", "adaptive"])
def test_the_planned_deviation_of_every_entry_is_the_real_one(name) -> None:
    """Of 8 x 200 entries the ratio has a standard error of .018; six of them, and .9 and 1.1 lie near both bounds."""
    made = {"clip_each": clip_each(1.0), "adaptive": adaptive_clip(0.5, initial=1.0)}.get(name, clip(1.0))
    noise = NOISES.get(name, gaussian(2.0))
    game = _CanaryExchanges(chain(made, noise, secure_aggregation()), 3, (2, 4), None)
    assert game.gaussian == (name != "local_laplace")
    if game.gaussian:
        noise = game.noise([game.release(bit=False) for _ in range(200)])
        assert noise.entries.shape == (200, 8) and noise.tensors == (0, 4, 8)
        assert 0.89 < np.std(noise.entries) < 1.11


@pytest.mark.exhaustive  # planning a sampled mechanism takes seconds
def test_sampled_clients_have_no_gaussian_trade_off() -> None:
    sampled = chain(clip(1.0), poisson(0.5), gaussian(1.0, sampler=PoissonSampling(0.5)), Quantise(), Plain())
    found = audit_noise(sampled, DELTA, runs=20)
    assert found.tradeoff == 0
    assert math.isnan(found.deviation)


@pytest.mark.parametrize("name", first_ones(NOISES))
def test_correct_noise_is_not_flagged_and_a_tenth_of_it_is(name) -> None:
    right = audit_noise(chain(clip(1.0), NOISES[name], secure_aggregation()), DELTA, **SURE)
    assert not right.flagged
    assert right.claimed > 1
    wrong = audit_noise(chain(clip(1.0), weak(NOISES[name]), secure_aggregation()), DELTA, **SURE)
    assert wrong.claimed == pytest.approx(right.claimed, rel=1e-3)
    assert wrong.violated
    assert wrong.repeated > right.repeated


@pytest.mark.parametrize("name", first_ones(NOISES))
def test_a_missing_clip_is_flagged_under_central_noise_and_harmless_in_the_ring(name) -> None:
    """Noise in the ring sends a vector beyond the planned norm as zeros, and refuses nothing that depends on data."""
    end = () if name == "gaussian" else (secure_aggregation(),)
    found = audit_noise(chain(Unclipped(1.0), NOISES[name], *end), DELTA, **SURE)
    assert found.flagged == found.violated == (name == "gaussian")
    assert not found.refused


# Clips: one tensor's own, and one that moves


class OneTensorUnclipped(ClipEach):
    def encode(self, contribution, plan):
        first = plan.own.names[0]
        return super().encode(contribution, plan) | {first: contribution[first]}


class OneTensorCounted(ClipEach):
    """Sizes the noise for the last tensor alone."""

    def plan(self, plan):
        return replace(super().plan(plan), privacy=PrivacyPlan(dict(self.norms)[plan.tensors[-1].name]))


class AdaptiveUnclipped(AdaptiveClip):
    def encode(self, contribution, plan):
        bits = super().encode(contribution, plan)[BELOW]
        return {name: value / plan.learned[0] for name, value in contribution.items()} | {BELOW: bits}


class BitsForgotten(AdaptiveClip):
    """Sizes the noise for the contributions alone."""

    def plan(self, plan):
        return replace(super().plan(plan), privacy=PrivacyPlan(1.0))


class BitsBare(CentralGaussian):
    """Adds no noise to what the clip added."""

    def release(self, total, plan):
        return super().release(total, plan) | {name: total[name] for name in plan.added}


UNEQUAL = (None, (("canary0", 1.0), ("canary1", 0.1)))
CLIPS = {
    "by tensor, one unclipped": (ClipEach, OneTensorUnclipped, UNEQUAL),
    "by tensor, one counted": (ClipEach, OneTensorCounted, UNEQUAL),
    "adaptive, unclipped": (AdaptiveClip, AdaptiveUnclipped, (0.5, 3.0)),
    "adaptive, bits not counted": (AdaptiveClip, BitsForgotten, (0.5, 1.0, 0.2, 0.99)),
}


@pytest.mark.parametrize("name", first_ones(CLIPS))
def test_other_clips_are_not_flagged_and_planted_bugs_are(name) -> None:
    right, wrong, settings = CLIPS[name]
    assert not audit_noise(chain(right(*settings), gaussian(2.0)), DELTA, tensors=2, **SURE).flagged
    assert audit_noise(chain(wrong(*settings), gaussian(2.0)), DELTA, tensors=2, **SURE).violated


def test_bits_without_noise_are_flagged_by_the_statistic_that_shows_them() -> None:
    found = audit_noise(chain(adaptive_clip(0.5), BitsBare(2.0)), DELTA, **SURE)
    assert found.violated
    inside, outside = ([s for s, own in zip(found.scores, found.inside, strict=True) if own == side] for side in (1, 0))
    assert from_scores(inside, outside, DELTA) < 1 < found.repeated  # the sum of all statistics drowns it


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", [clip_each(0.5), adaptive_clip(0.5, each=True, initial=3.0)], ids=str)
def test_other_clips_keep_the_epsilon_of_noise_in_the_ring(start) -> None:
    found = audit_noise(chain(start, skellam(2.0), secure_aggregation()), DELTA, tensors=3, **SURE)
    assert not found.flagged
    weakened = chain(start, weak(skellam(2.0)), secure_aggregation())
    assert audit_noise(weakened, DELTA, tensors=3, **SURE).violated


# Cohorts


class EverybodyJoins(PoissonCohort):
    def encode(self, contribution, plan):
        return contribution


def test_coins_that_are_not_tossed_are_flagged(monkeypatch) -> None:
    """At delta .01 a client that joins with probability .02 is nearly hidden by that alone."""
    module = import_module("securefed.defenses._differential_privacy.gaussian")
    monkeypatch.setattr(module, "PLANNED_ROUNDS", (1,))
    rate = PoissonSampling(0.02)
    right, wrong = (
        audit_noise(chain(clip(1.0), link, gaussian(0.6, delta=0.01, sampler=rate)), 0.01, **SURE)
        for link in (poisson(0.02), EverybodyJoins(rate))
    )
    assert right.claimed == wrong.claimed < 0.02
    assert not right.flagged
    assert wrong.violated


def test_a_cohort_that_is_not_drawn_is_flagged() -> None:
    defense = chain(clip(1.0), gaussian(1.2, delta=0.01, sampler=FixedSizeSampling(1, 1000)))
    right = audit_noise(defense, 0.01, **SURE)
    wrong = audit_noise(defense, 0.01, draw=lambda everybody, size: everybody[:size], **SURE)
    assert not right.flagged
    assert wrong.violated


def test_more_noise_gives_a_smaller_bound() -> None:
    strong = audit_noise(chain(clip(1.0), gaussian(5.0)), DELTA, **SURE)
    little = audit_noise(chain(clip(1.0), gaussian(0.1)), DELTA)  # ten deviations: no score is on the wrong side
    assert strong.repeated < 0.5
    assert little.repeated > 3
    assert little.one_run_f > little.one_run > 1.5


def test_what_has_no_epsilon_or_too_few_runs_is_refused() -> None:
    with pytest.raises(PlanError, match="no epsilon"):
        audit_noise(chain(clip(1.0)), DELTA)
    with pytest.raises(ConfigError, match="at least 4 runs"):
        audit_noise(chain(clip(1.0), gaussian(1.0)), DELTA, runs=1)
