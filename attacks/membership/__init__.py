"""Was this record among a client's rows? Scores for candidate records, and the rates they reach."""

from __future__ import annotations

from securefed.attacks.membership.canaries import Canaries, Game, plant
from securefed.attacks.membership.lira import Confirmation, Membership, ShadowMembership
from securefed.attacks.membership.rates import Rates, pooled, rates

__all__ = ["Canaries", "Confirmation", "Game", "Membership", "Rates", "ShadowMembership", "plant", "pooled", "rates"]
