"""Clip contributions, add central or distributed noise, and account for it (differential privacy)."""

from securefed.defenses._differential_privacy.accountant import (
    FixedSizeSampling,
    PoissonSampling,
    Sampler,
    calibrate,
    epsilon_of,
)
from securefed.defenses._differential_privacy.adaptive import AdaptiveClip, adaptive_clip
from securefed.defenses._differential_privacy.budget import Budget
from securefed.defenses._differential_privacy.clip import Clip, clip, clip_each
from securefed.defenses._differential_privacy.distributed import (
    DistributedNoise,
    discrete_gaussian,
    local_gaussian,
    local_laplace,
    skellam,
)
from securefed.defenses._differential_privacy.gaussian import CentralGaussian, InsecureGaussian, gaussian, sensitivity
from securefed.defenses._differential_privacy.poisson_sampling import PoissonCohort, poisson
from securefed.defenses._differential_privacy.privacy_loss import DiscreteGaussianLoss, SkellamLoss
from securefed.defenses._differential_privacy.record_privacy import records

__all__ = [
    "AdaptiveClip",
    "Budget",
    "CentralGaussian",
    "Clip",
    "DiscreteGaussianLoss",
    "DistributedNoise",
    "FixedSizeSampling",
    "InsecureGaussian",
    "PoissonCohort",
    "PoissonSampling",
    "Sampler",
    "SkellamLoss",
    "adaptive_clip",
    "calibrate",
    "clip",
    "clip_each",
    "discrete_gaussian",
    "epsilon_of",
    "gaussian",
    "local_gaussian",
    "local_laplace",
    "poisson",
    "records",
    "sensitivity",
    "skellam",
]
