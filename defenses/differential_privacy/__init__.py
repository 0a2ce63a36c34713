"""Differential privacy of what leaves the aggregator: clipping, central Gaussian noise, and the accountant."""

from securefed.defenses.differential_privacy.accountant import Poisson, Sampler, calibrate, epsilon_of
from securefed.defenses.differential_privacy.budget import Budget
from securefed.defenses.differential_privacy.clip import Clip, clip
from securefed.defenses.differential_privacy.gaussian import (
    CentralGaussian,
    InsecureGaussian,
    gaussian,
    sensitivity,
)

__all__ = [
    "Budget",
    "CentralGaussian",
    "Clip",
    "InsecureGaussian",
    "Poisson",
    "Sampler",
    "calibrate",
    "clip",
    "epsilon_of",
    "gaussian",
    "sensitivity",
]
