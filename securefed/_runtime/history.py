"""Record what each completed training round cost and who took part in it: the history of a run.

The server's round loop (`Federation`, or a `SumServer` for a round of a user's own loop) appends one `RoundHistory` for
each round. The user reads the list as the result's `history`, progress callbacks get each entry, and checkpoints save
it as JSON. An exchange is one attempt to make a round's sum; it is void where it gave none, and is then repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class RoundHistory:
    """One completed training round.

    Attributes:
        round: number of the round, from 0.
        exchange: number of the exchange that made the round's sum, as its messages carry it. A round takes one exchange
            for each attempt, so that exchange numbers run ahead of round numbers.
        survivors: ids of the clients in the sum.
        seconds: wall clock, void attempts included; 0 under a `SumServer`, which has no clock and shows no history.
        up: bytes that the server received, void attempts included.
        down: bytes that the server sent, void attempts included.
        void: why earlier attempts of this round gave no sum, in order.
        refusals: why single messages were refused, by party.
        metrics: evaluation of the model that this round produced, sums over clients; empty where none was asked for.
    """

    round: int
    exchange: int
    survivors: tuple[int, ...]
    seconds: float
    up: int
    down: int
    void: tuple[str, ...] = ()
    refusals: Mapping[int, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values; inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RoundHistory:
        """Read JSON values, the inverse of `to_json`."""
        refusals = {int(party): reason for party, reason in values["refusals"].items()}
        lists = {"survivors": tuple(values["survivors"]), "void": tuple(values["void"]), "refusals": refusals}
        return cls(**{**values, **lists})
