"""Everything that is registered: importing this module fills the registries of algorithms, defences and attacks."""

from __future__ import annotations

from typing import Any

import securefed.algorithms.graph
import securefed.algorithms.optimization
import securefed.algorithms.pca
import securefed.algorithms.personalized
import securefed.attacks.distances
import securefed.attacks.duals
import securefed.attacks.gradient_inversion
import securefed.attacks.gram
import securefed.attacks.networks
import securefed.attacks.personal
import securefed.defenses.named
import securefed.detection.baselines  # noqa: F401 - registers on import, like the others
from securefed.algorithms.base import algorithms
from securefed.attacks.base import attacks
from securefed.defenses.base import defenses

__all__ = ["algorithms", "attacks", "defenses"]


def _private_fedavg(**settings: Any) -> Any:
    from securefed.records import private_fedavg  # noqa: PLC0415 - loads torch, and needs an extra

    return private_fedavg(**settings)


algorithms.register(
    "private/fedavg",
    _private_fedavg,
    summary="FedAvg of a torch network whose local steps are DP-SGD: single rows are private (extra `records`)",
    source="Abadi et al., CCS 2016, Algorithm 1; McMahan et al. 2017, Algorithm 1",
    transmits="weighted local update, noise included",
)
