"""Was this record among a client's rows? Scores for candidate records, and the rates they reach."""

from __future__ import annotations

from securefed.attacks.membership.lira import Confirmation, Membership, ShadowMembership
from securefed.attacks.membership.rates import Rates, rates

__all__ = ["Confirmation", "Membership", "Rates", "ShadowMembership", "rates"]
