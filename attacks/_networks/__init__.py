"""Gradient inversion for any torch module. Importing this package registers the attack and does not import torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from securefed.attacks._base import attacks
from securefed.attacks._networks.view_inversion import NetworkInversion

if TYPE_CHECKING:
    from securefed.attacks._networks.client_simulations import LocalSteps
    from securefed.attacks._networks.module_inversion import invert
    from securefed.attacks._networks.reconstruction_quality import psnr, tabular_accuracy
    from securefed.attacks._networks.staged_inversion import InversionEffort, RecoveredRows

_MODULES = {
    "InversionEffort": "staged_inversion",
    "LocalSteps": "client_simulations",
    "RecoveredRows": "staged_inversion",
    "invert": "module_inversion",
    "psnr": "reconstruction_quality",
    "tabular_accuracy": "reconstruction_quality",
}

__all__ = [
    "InversionEffort",
    "LocalSteps",
    "NetworkInversion",
    "RecoveredRows",
    "invert",
    "psnr",
    "tabular_accuracy",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:  # these modules import torch, so they load on first use
        return getattr(import_module(f"securefed.attacks._networks.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'securefed.attacks._networks' has no attribute {name!r}")


attacks.register(
    NetworkInversion.name,
    NetworkInversion,
    summary="Rows read off a network's first layer, else fitted through simulated local steps",
    source="Zhu et al. 2019; Dimitrov et al. 2024 (SPEAR); Geiping et al. 2020; Geng et al. 2021",
    reads="the gradient, or the difference of two models, of one round",
)
