"""Small, quick settings of every registered algorithm, for the batteries over the registry."""

from __future__ import annotations

from typing import Any

import numpy as np

from securefed import catalogue
from securefed.algorithms.optimization import L1, Nuclear
from securefed.datasets.base import Dataset
from securefed.defenses.differential_privacy.stream import InsecureStream
from securefed.records import PrivateFedAvg

CLIENTS = 5
# Small and quick settings; a new algorithm is added here with its registration, or the battery fails.
SETTINGS: dict[str, dict[str, Any]] = {
    "graph/ppgl": {"local_steps": 2},
    "graph/igl": {"local_steps": 2},
    "graph/fedavg": {"local_steps": 2},
    "graph/fedprox": {"local_steps": 2},
    "graph/mrmtl": {"local_steps": 2},
    "graph/ditto": {"local_steps": 2},
    "pca/ssi": {"rank": 2, "tolerance": 0.0},
    "pca/localpower": {"rank": 2, "tolerance": 0.0},
    "pca/faps": {"rank": 2, "tolerance": 0.0},
    "pca/faps-guarded": {"rank": 2, "tolerance": 0.0, "patience": 1},
    "pca/fedpg": {"rank": 2, "tolerance": 0.0},
    "pca/fedpe": {"rank": 2, "tolerance": 0.0},
    "pca/self": {"rank": 2},
    "detection/fedae": {"widths": (3,), "code": 2},
    "detection/fedae-2": {"widths": (3, 2, 2), "code": 2},
    "detection/fedbigan": {"widths": (3,), "code": 2},
    "detection/fedbigan-2": {"widths": (3, 2, 2), "code": 2},
    "optimization/dsgd": {"learning_rate": 0.05},
    "optimization/fedavg": {"learning_rate": 0.02, "local_steps": 2},
    "optimization/scaffold": {"learning_rate": 0.02, "local_steps": 2},
    "optimization/losac": {"learning_rate": 0.002, "local_steps": 2, "blocks": 2},
    "personalized/flame": {"learning_rate": 0.02, "local_steps": 2},
    "personalized/pfedme": {"learning_rate": 0.02, "local_steps": 2, "inner_steps": 2},
    "personalized/fedadmm": {"learning_rate": 0.02, "local_steps": 2, "penalty": 0.5},
    "personalized/ditto": {"learning_rate": 0.02, "local_steps": 2},
    "optimization/losac_prox": {"learning_rate": 0.002, "local_steps": 2, "blocks": 2, "regulariser": Nuclear(0.05)},
    "optimization/scaffold_prox": {"learning_rate": 0.02, "local_steps": 2, "regulariser": L1(0.05)},
    "optimization/fedsaga": {"learning_rate": 0.002, "local_steps": 2, "blocks": 2},
    "optimization/mimesvrg": {"learning_rate": 0.02, "local_steps": 2},
    "optimization/fedcm": {"learning_rate": 0.02, "local_steps": 2},
    "optimization/fedprox": {"learning_rate": 0.02, "local_steps": 2},
    "optimization/fedadmm": {"learning_rate": 0.002, "local_steps": 2, "regulariser": L1(0.05)},
    "private/fedavg": {"widths": (6, 3), "learning_rate": 0.02, "local_steps": 1, "batch_size": 2},
}


class Repeatable(PrivateFedAvg):
    """Draws and noise from the run's seed, so that runs can be compared bit for bit. Private towards nobody."""

    def _randomness(self, rng: np.random.Generator) -> InsecureStream:
        return InsecureStream(int(rng.integers(2**63)))


def make(name: str) -> Any:
    made = catalogue.algorithms.make(name, **SETTINGS[name])
    return Repeatable(**vars(made)) if type(made) is PrivateFedAvg else made


def data() -> list[Dataset]:
    rng = np.random.default_rng(7)
    return [Dataset(rng.uniform(-1, 1, (4 + i, 6)), np.arange(4 + i) % 3) for i in range(CLIENTS)]
