"""Read how many steps of DP-SGD an opacus `PrivacyEngine` ran, for the ledger of the data that it trained on.

A site that trains by DP-SGD in its own local step sends a model that is private by itself: all that its release costs
is the training, which the ledger counts (`Ledger.reserve`, `Ledger.record`). Opacus is not imported here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from securefed._hyperparameters import check_integer
from securefed._runtime.privacy_cost import DPSGDLoss, PrivacyCost, PrivacyMechanism
from securefed.errors import ConfigError

Steps = Mapping[tuple[float, float], int]
"""Numbers of steps by (noise multiplier, sampling rate)."""


@dataclass(frozen=True, eq=False)
class Training:
    """A local training whose cost a ledger has reserved; made by `Ledger.reserve`.

    Attributes:
        number: of the training in its ledger.
        engine: the engine that runs it.
        before: the steps that the engine had run before.
    """

    number: int
    engine: Any = field(repr=False)
    before: Steps = field(repr=False)

    def ran(self) -> Counter[tuple[float, float]]:
        """Return the steps that the engine ran since, by (noise multiplier, sampling rate)."""
        return steps_of(self.engine) - Counter(self.before)


def steps_of(engine: Any) -> Counter[tuple[float, float]]:
    """Return the steps that an engine ran, by (noise multiplier, sampling rate).

    Args:
        engine: a `PrivacyEngine` of opacus.

    Raises:
        ConfigError: an object without the history of an opacus accountant.
    """
    history = getattr(getattr(engine, "accountant", None), "history", None)
    if not isinstance(history, list):
        raise ConfigError(f"engine must be an opacus PrivacyEngine; got {type(engine).__name__}")
    found: Counter[tuple[float, float]] = Counter()
    for noise, rate, steps in history:
        found[float(noise), float(rate)] += int(steps)
    return found


def beyond(ran: Steps, reserved: tuple[float, float, int]) -> bool:
    """Return whether steps are more than were reserved, or have another noise multiplier or sampling rate."""
    return any(key != reserved[:2] or number > reserved[2] for key, number in ran.items())


def cost_of_training(noise_multiplier: float, rate: float, steps: int) -> PrivacyCost:
    """Return what so many steps of DP-SGD cost a record.

    Raises:
        ConfigError: a parameter outside its domain.
    """
    check_integer("steps", steps, 1)
    return PrivacyCost((PrivacyMechanism(DPSGDLoss(noise_multiplier, rate, steps), "record"),))
