"""Secure aggregation by double masking: the server learns the sum of the uploads and who took part."""

from __future__ import annotations

from securefed.defenses.secure_aggregation.protocol import SecureAggregation, secure_aggregation

__all__ = ["SecureAggregation", "secure_aggregation"]
