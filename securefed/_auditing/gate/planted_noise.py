"""Noise of the planned size, and noise with a fault, by which `self_check` checks the audit.

The plan of a defence states the noise, from which epsilon follows. The noise audit must flag all but noise as planned:
noise of half the size, one deviate in all entries, noise that is cut at two deviations, and noise that two exchanges
share.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from securefed._auditing.differential_privacy.noise_audit import audit_noise
from securefed._auditing.differential_privacy.noise_engine import NoiseAudit
from securefed._tensors import Array, Tensors
from securefed.defenses._base import Plan
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import CentralGaussian, clip
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._plain import Plain

_MULTIPLIER: Final = 1.0  # the noise's standard deviation, over the clip
_DELTA: Final = 1e-5
_RUNS: Final = 300
"""Exchanges (noised sums) with a canary, a made-up client, and as many without. The standard deviation of n normal
numbers has a relative standard error of 1 / sqrt(2 n), here .04; that of half of the noise lies more than 20 of its
standard errors below the planned one."""
_CONFIDENCE: Final = 1 - 1e-6
"""Probability with which each bound of the noise audit holds. Noise comes from the operating system and has no seed, so
that a check may fail by chance: noise of the planned size is flagged in at most 2.75 of 10^6 checks (see
`NoiseAudit.violated`)."""


@dataclass(frozen=True)
class HalfGaussian(CentralGaussian):
    """Gaussian noise of half the standard deviation that its plan counts."""

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        """Add the noise of half the multiplier."""
        assert plan.privacy is not None
        quieter = replace(plan.privacy, noise_multiplier=plan.privacy.noise_multiplier / 2)
        return super().release(total, replace(plan, privacy=quieter))


class ChangedGaussian(CentralGaussian):
    """Gaussian noise that is changed before it is added."""

    @abstractmethod
    def changed(self, noise: Array, deviation: float) -> Array:
        """Return the noise of one tensor to add in place of that which was drawn."""

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        """Draw the noise of a sum of zeros, change it, and add it."""
        drawn = super().release({name: np.zeros_like(value) for name, value in total.items()}, plan)
        deviations = self.distortion(plan, 1).released
        return {name: total[name] + self.changed(drawn[name], deviations[name]) for name in total}


class SharedDeviate(ChangedGaussian):
    """One deviate in all entries of a tensor, so that differences of entries have no noise."""

    def changed(self, noise: Array, deviation: float) -> Array:
        return np.full_like(noise, noise.flat[0])


class CutGaussian(ChangedGaussian):
    """Noise that is cut at two deviations."""

    def changed(self, noise: Array, deviation: float) -> Array:
        return np.clip(noise, -2 * deviation, 2 * deviation)


@dataclass(frozen=True)
class ReusedGaussian(CentralGaussian):
    """Noise of which every draw serves two exchanges, so that their difference has none."""

    kept: list[dict[str, Array]] = field(default_factory=list, compare=False, repr=False)

    def release(self, total: Tensors, plan: Plan) -> dict[str, Array]:
        """Add the noise of the exchange before, in every second one."""
        shapes = {name: value.shape for name, value in total.items()}
        noise = self.kept.pop() if self.kept else {}
        if {name: value.shape for name, value in noise.items()} != shapes:  # none is kept, or that of another audit
            noise = super().release({name: np.zeros_like(value) for name, value in total.items()}, plan)
            self.kept.append(noise)
        return {name: total[name] + noise[name] for name in total}


PLANTED_NOISE: Final = (
    ("noise of half the planned size", HalfGaussian(_MULTIPLIER), True),
    ("one deviate in all entries", SharedDeviate(_MULTIPLIER), True),
    ("noise cut at two deviations", CutGaussian(_MULTIPLIER), True),
    ("noise that two exchanges share", ReusedGaussian(_MULTIPLIER), True),
    ("noise of the planned size", CentralGaussian(_MULTIPLIER), False),
)
"""A name, the noise, and whether the audit must flag it."""


def audited(noise: CentralGaussian) -> NoiseAudit:
    """Audit a noise behind a clip of norm 1."""
    return audit_noise(chain(clip(1.0), noise, Quantise(), Plain()), _DELTA, runs=_RUNS, confidence=_CONFIDENCE)
