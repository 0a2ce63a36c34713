"""The history of a run (what each completed round cost and who took part in it), and its result.

The server's round loop (`Federation`, or a `SumServer` for a round of a user's own loop) appends one `RoundHistory` for
each round. The user reads the list as the result's `history`, progress callbacks get each entry, and checkpoints save
it as JSON. An exchange is one attempt to make a round's sum; it is void where it gave none, and is then repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from securefed._messages import ClientId, Transcript
from securefed._shape_repr import ShapeRepr
from securefed._tensors import Tensors
from securefed.defenses._base import Plan


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


@dataclass(frozen=True, repr=False)
class Result(ShapeRepr):
    """Result of a run.

    Attributes:
        output: the final broadcast: the model.
        personal: each client's personal result, for algorithms that have one.
        history: one entry a round.
        plan: the defence's plan of the last training round.
        transcript: what the server has; with `RunOptions(keep_transcript=False)` no messages, only the output.
        stopped: why the run stopped before the last round (the algorithm's reason, or the error), or `None`.
        uncommitted: clients that did not confirm the last outcome, so that their personal result may be a round old.
    """

    output: Tensors
    personal: Mapping[ClientId, Tensors]
    history: tuple[RoundHistory, ...]
    plan: Plan
    transcript: Transcript
    stopped: str | None
    uncommitted: tuple[ClientId, ...] = ()

    def __str__(self) -> str:
        """Describe the run in a few lines: rounds, time, bytes and outputs; the attributes hold the rest."""
        up, down = (sum(getattr(entry, way) for entry in self.history) for way in ("up", "down"))
        void = sum(len(entry.void) for entry in self.history)  # attempts that gave no sum and were repeated
        seconds = sum(entry.seconds for entry in self.history)
        stopped = f", stopped: {self.stopped}" if self.stopped else ""
        lines = [
            f"{len(self.history)} rounds in {seconds:.1f} s under {self.plan.defense}{stopped}",
            f"bytes received by the server {up:,}, sent {down:,}" + (f"; {void} void attempts" if void else ""),
            "output: " + ", ".join(f"{name} {np.shape(value)}" for name, value in self.output.items()),
        ]
        if self.personal:
            lines.append(f"personal results of {len(self.personal)} clients")
        return "\n".join(lines)
