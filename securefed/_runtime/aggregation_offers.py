"""Find out once which capabilities an aggregation has beside its stages, as each of these checks takes a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from securefed.defenses._aggregation import SupportsMemory, SupportsPipelining, SupportsReleases, SupportsVerification
from securefed.defenses._base import Aggregation


@dataclass(frozen=True)
class AggregationOffers:
    """The aggregation under each capability that it has; `None` under the others.

    Attributes:
        pipelined: a round prepares the keys of the next.
        remembering: a client keeps something between exchanges, such as a pinned key.
        releasing: a client helps to open sums, over parties that it knows.
        verifying: clients check the sums that counted them.
    """

    pipelined: SupportsPipelining | None
    remembering: SupportsMemory | None
    releasing: SupportsReleases | None
    verifying: SupportsVerification | None

    @classmethod
    def of(cls, aggregation: Aggregation) -> Self:
        """Ask an aggregation."""
        return cls(
            aggregation if isinstance(aggregation, SupportsPipelining) else None,
            aggregation if isinstance(aggregation, SupportsMemory) else None,
            aggregation if isinstance(aggregation, SupportsReleases) else None,
            aggregation if isinstance(aggregation, SupportsVerification) else None,
        )
