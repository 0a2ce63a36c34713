"""Gradient inversion for any torch module. Importing this registers it and does not import torch; using it does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from securefed.attacks.base import attacks
from securefed.attacks.networks.attack import NetworkInversion

if TYPE_CHECKING:
    from securefed.attacks.networks.inversion import Effort, Inverted
    from securefed.attacks.networks.modules import invert
    from securefed.attacks.networks.quality import psnr, tabular_accuracy
    from securefed.attacks.networks.steps import LocalSteps

_PLACES = {
    "Effort": "inversion",
    "Inverted": "inversion",
    "LocalSteps": "steps",
    "invert": "modules",
    "psnr": "quality",
    "tabular_accuracy": "quality",
}

__all__ = ["Effort", "Inverted", "LocalSteps", "NetworkInversion", "invert", "psnr", "tabular_accuracy"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"securefed.attacks.networks.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'securefed.attacks.networks' has no attribute {name!r}")


attacks.register(
    NetworkInversion.name,
    NetworkInversion,
    summary="Rows read off a network's first layer, else fitted through simulated local steps",
    source="Zhu et al. 2019; Dimitrov et al. 2024 (SPEAR); Geiping et al. 2020; Geng et al. 2021",
    reads="the gradient, or the difference of two models, of one round",
)
