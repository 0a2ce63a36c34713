"""Membership inference: score whether records are among a client's rows, and compute the scores' error rates."""

from __future__ import annotations

from securefed.attacks._membership.canaries import Canaries, CanaryGame, plant
from securefed.attacks._membership.likelihood_ratio import ConfirmationAttack, MembershipAttack, ShadowMembership
from securefed.attacks._membership.membership_rates import MembershipRates, membership_rates, pooled_rates

__all__ = [
    "Canaries",
    "CanaryGame",
    "ConfirmationAttack",
    "MembershipAttack",
    "MembershipRates",
    "ShadowMembership",
    "membership_rates",
    "plant",
    "pooled_rates",
]
