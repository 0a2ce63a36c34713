"""Gradient inversion for any torch module. Importing this package registers the attack and does not import torch."""

from __future__ import annotations

from securefed.attacks._base import attacks
from securefed.attacks._networks.view_inversion import NetworkInversion

attacks.register(
    NetworkInversion.name,
    NetworkInversion,
    summary="Rows read off a network's first layer, else fitted through simulated local steps",
    source="Zhu et al. 2019; Dimitrov et al. 2024 (SPEAR); Geiping et al. 2020; Geng et al. 2021",
    reads="the gradient, or the difference of two models, of one round",
)
