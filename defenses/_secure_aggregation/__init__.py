"""Secure aggregation by double masking: the server learns the sum of the uploads and who took part."""

from __future__ import annotations

from securefed.defenses._secure_aggregation.double_masking import SecureAggregation, secure_aggregation
from securefed.defenses._secure_aggregation.identities import Identities, new_identity, public_identity
from securefed.defenses._secure_aggregation.pinned_identities import PinnedIdentities

__all__ = [
    "Identities",
    "PinnedIdentities",
    "SecureAggregation",
    "new_identity",
    "public_identity",
    "secure_aggregation",
]
