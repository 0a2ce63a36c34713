"""Differential privacy: clipping, central Gaussian noise, distributed noise in the ring, and their accountants."""

from securefed.defenses.differential_privacy.accountant import FixedSize, Poisson, Sampler, calibrate, epsilon_of
from securefed.defenses.differential_privacy.adaptive import AdaptiveClip, adaptive_clip
from securefed.defenses.differential_privacy.budget import Budget
from securefed.defenses.differential_privacy.clip import Clip, ClipEach, clip, clip_each
from securefed.defenses.differential_privacy.distributed import (
    DistributedNoise,
    discrete_gaussian,
    local_gaussian,
    local_laplace,
    skellam,
)
from securefed.defenses.differential_privacy.gaussian import (
    CentralGaussian,
    InsecureGaussian,
    gaussian,
    sensitivity,
)
from securefed.defenses.differential_privacy.joining import PoissonCohort, poisson
from securefed.defenses.differential_privacy.losses import DiscreteGaussianLoss, LaplaceLoss, Loss, SkellamLoss
from securefed.defenses.differential_privacy.records import Records, records

__all__ = [
    "AdaptiveClip",
    "Budget",
    "CentralGaussian",
    "Clip",
    "ClipEach",
    "DiscreteGaussianLoss",
    "DistributedNoise",
    "FixedSize",
    "InsecureGaussian",
    "LaplaceLoss",
    "Loss",
    "Poisson",
    "PoissonCohort",
    "Records",
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
