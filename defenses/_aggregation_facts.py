"""Read from any aggregation what guards need: the clients' identities, and the least block that it asks for."""

from __future__ import annotations

from securefed.defenses._aggregation import Aggregation
from securefed.defenses._grouped_sums import masking_in
from securefed.defenses._one_message import OneMessage
from securefed.defenses._secure_aggregation import Identities


def identities_in(aggregation: Aggregation) -> Identities | None:
    """Return the clients' identities by which sums are signed; `None` without any."""
    signing = aggregation if isinstance(aggregation, OneMessage) else masking_in(aggregation)
    return None if signing is None else signing.identities


def survivor_change_in(aggregation: Aggregation) -> int:
    """Return the fewest clients that sums of the same data may tell apart; 1 where it does not say."""
    signing = aggregation if isinstance(aggregation, OneMessage) else masking_in(aggregation)
    return 1 if signing is None else signing.survivor_change
