"""Everything that is registered: importing this module fills the registries of algorithms, defences and attacks.

A class registers itself by a decorator when its module is imported, so the imports below register the package's own
classes. `load_installed` adds the algorithms of other installed packages. The command line, the audit and the tests
look names up here.
"""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import Any

import securefed.algorithms._graph
import securefed.algorithms._optimization
import securefed.algorithms._pca
import securefed.algorithms._personalized
import securefed.attacks._distances
import securefed.attacks._duals
import securefed.attacks._gradient_inversion
import securefed.attacks._gram
import securefed.attacks._networks
import securefed.attacks._personal
import securefed.defenses._registered_defenses
import securefed.detection._baselines  # noqa: F401 - registers on import, like the others
from securefed._extras import needed_for
from securefed.algorithms._base import algorithms
from securefed.attacks._base import attacks
from securefed.defenses._base import defenses

__all__ = ["algorithms", "attacks", "defenses"]


def _private_fedavg(**settings: Any) -> Any:
    with needed_for("private/fedavg"):
        from securefed.algorithms._private.dp_fedavg import private_fedavg  # noqa: PLC0415 - loads torch

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
    decorated with `@algorithms.register(...)`. One that cannot be loaded, or whose class is not registered afterwards,
    is left out with a warning.
    """
    for point in entry_points(group="securefed.algorithms"):
        where = f"entry point {point.name!r} of group securefed.algorithms"
        try:
            loaded = point.load()
        except Exception as error:  # an import may fail in any way, and must not stop the others
            warnings.warn(f"{where} cannot be loaded: {error!r}", stacklevel=2)
            continue
        if isinstance(loaded, type) and algorithms.entry_of(loaded) is None:
            advice = "decorate the class with @algorithms.register(name, summary=..., source=...)"
            warnings.warn(f"{where}: {loaded.__name__} is not registered; {advice}", stacklevel=2)


load_installed()
