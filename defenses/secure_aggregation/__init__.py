"""Secure aggregation by double masking: the server learns the sum of the uploads and who took part."""

from __future__ import annotations

from securefed.defenses.secure_aggregation.identities import Identities, new_identity, public_identity
from securefed.defenses.secure_aggregation.known_identities import KnownIdentities
from securefed.defenses.secure_aggregation.protocol import SecureAggregation, secure_aggregation

__all__ = [
    "Identities",
    "KnownIdentities",
    "SecureAggregation",
    "new_identity",
    "public_identity",
    "secure_aggregation",
]
