"""Small, quick settings of every registered algorithm, for the batteries over the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from securefed import _catalogue as catalogue
from securefed.algorithms import PrivateFedAvg
from securefed.testing._algorithm_checks import CLIENTS, labelled_clients
from tests.seeded_stream import SeededStream

__all__ = ["CLIENTS", "SETTINGS", "Repeatable", "data", "make"]

SETTINGS: dict[str, Mapping[str, Any]] = {entry.name: entry.test_settings for entry in catalogue.algorithms}
"""Small and quick settings, which each algorithm brings along."""


class Repeatable(PrivateFedAvg):
    """Draws and noise from the run's seed, so that runs can be compared bit for bit. Private towards nobody."""

    def _randomness(self, rng: np.random.Generator) -> SeededStream:
        return SeededStream(int(rng.integers(2**63)))


def make(name: str) -> Any:
    made = catalogue.algorithms.make(name, **SETTINGS[name])
    return Repeatable(**vars(made)) if type(made) is PrivateFedAvg else made


data = labelled_clients
