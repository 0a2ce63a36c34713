"""Read from any aggregation what guards need: the clients' identities, and the least block that it asks for."""

from __future__ import annotations

from dataclasses import replace

from securefed.defenses._aggregation import Aggregation
from securefed.defenses._base import Defense
from securefed.defenses._grouped_sums import masking_in, with_masking
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


def with_identities(defense: Defense, identities: Identities) -> Defense:
    """Return a defence whose sums are signed by these identities; one without identities as it is."""
    if isinstance(defense.aggregation, OneMessage):
        return replace(defense, aggregation=replace(defense.aggregation, identities=identities))
    return with_masking(defense, lambda masking: replace(masking, identities=identities))
