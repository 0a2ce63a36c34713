"""Gradient inversion for any torch module. Importing this does not import torch; using it does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securefed.attacks.networks.inversion import Effort, Inverted
    from securefed.attacks.networks.invert import invert
    from securefed.attacks.networks.quality import psnr, tabular_accuracy
    from securefed.attacks.networks.steps import LocalSteps

_PLACES = {
    "Effort": "inversion",
    "Inverted": "inversion",
    "LocalSteps": "steps",
    "invert": "invert",
    "psnr": "quality",
    "tabular_accuracy": "quality",
}

__all__ = ["Effort", "Inverted", "LocalSteps", "invert", "psnr", "tabular_accuracy"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"securefed.attacks.networks.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'securefed.attacks.networks' has no attribute {name!r}")
