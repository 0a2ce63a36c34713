"""Every noise of the message layer keeps its epsilon; planted bugs are flagged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from securefed.auditing.epsilon_noise import audit_noise
from securefed.defenses.compose import chain
from securefed.defenses.differential_privacy import (
    clip,
    discrete_gaussian,
    gaussian,
    local_gaussian,
    local_laplace,
    skellam,
)
from securefed.defenses.differential_privacy.clip import Clip
from securefed.defenses.differential_privacy.distributed import DistributedNoise
from securefed.defenses.differential_privacy.gaussian import CentralGaussian
from securefed.defenses.secure_aggregation import secure_aggregation
from securefed.errors import ConfigError, PlanError

DELTA = 1e-5
SURE = {"runs": 450, "confidence": 1 - 1e-6}
"""Noise comes from the operating system: a test may be wrong once in 10^5 runs."""
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
        return super().release(total, replace(plan, noise_multiplier=plan.noise_multiplier / 10))


class _TenthOfTheShare(DistributedNoise):
    def sizes(self, plan):
        found = super().sizes(plan)
        return replace(found, share=found.share / 100)


class WeakShares(DistributedNoise):
    """A tenth of the noise that the plan counts."""

    def encode(self, contribution, plan):
        return _TenthOfTheShare(self.law, self.noise_multiplier, self.survivors).encode(contribution, plan)


def weak(noise):
    if isinstance(noise, CentralGaussian):
        return WeakCentral(noise.noise_multiplier)
    return WeakShares(noise.law, noise.noise_multiplier, noise.survivors)


@pytest.mark.parametrize("name", NOISES)
def test_correct_noise_is_not_flagged_and_a_tenth_of_it_is(name) -> None:
    right = audit_noise(chain(clip(1.0), NOISES[name], secure_aggregation()), DELTA, **SURE)
    assert not right.flagged
    assert right.claimed > 1
    wrong = audit_noise(chain(clip(1.0), weak(NOISES[name]), secure_aggregation()), DELTA, **SURE)
    assert wrong.claimed == pytest.approx(right.claimed, rel=1e-3)
    assert wrong.violated
    assert wrong.repeated > right.repeated


@pytest.mark.parametrize("name", NOISES)
def test_a_missing_clip_is_flagged(name) -> None:
    """Under central noise by the bound; noise in the ring refuses what is not clipped, by name."""
    end = () if name == "gaussian" else (secure_aggregation(),)
    found = audit_noise(chain(Unclipped(1.0), NOISES[name], *end), DELTA, **SURE)
    assert found.flagged
    assert found.violated == (name == "gaussian")
    assert ("clip" in found.refused) == (name != "gaussian")


def test_more_noise_gives_a_smaller_bound() -> None:
    strong, little = (audit_noise(chain(clip(1.0), gaussian(z)), DELTA, runs=2000) for z in (5.0, 0.2))
    assert strong.repeated < 0.5
    assert little.repeated > 3
    assert little.one_run_f > little.one_run > 1.5


def test_what_has_no_epsilon_or_too_few_runs_is_refused() -> None:
    with pytest.raises(PlanError, match="no epsilon"):
        audit_noise(chain(clip(1.0)), DELTA)
    with pytest.raises(ConfigError, match="at least 4 runs"):
        audit_noise(chain(clip(1.0), gaussian(1.0)), DELTA, runs=1)
