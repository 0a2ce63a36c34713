"""Everything that is registered: importing this module fills the registries of algorithms, defences and attacks."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
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
import securefed.defenses.registered_defenses
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
    test_settings={"widths": (6, 3), "learning_rate": 0.02, "local_steps": 1, "batch_size": 2},
)


def load_installed() -> None:
    """Register the algorithms of installed packages, which these name in the entry-point group `securefed.algorithms`.

    An entry point names a class or a module, `ridge = "my_package.ridge:Ridge"`; importing it registers what is
    decorated with `@algorithms.register(...)`. One that cannot be loaded is left out with a warning.
    """
    for point in entry_points(group="securefed.algorithms"):
        try:
            point.load()
        except Exception as error:  # a package's import may fail in any way, and the others shall work
            message = f"entry point {point.name!r} of group securefed.algorithms cannot be loaded: {error!r}"
            warnings.warn(message, stacklevel=2)


load_installed()
