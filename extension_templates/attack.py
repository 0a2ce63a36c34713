"""Template of an attack: the clients' mean row, from a message that holds the sum of their rows.

An attack sees a view: for each round the broadcast, and the message of the smallest known set of clients that holds
its target. It never sees a client's data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks import Reconstruction, Target, View, attacks
from securefed.errors import TranscriptError


# TODO: the name under which users find it; one line on what it does; where it is published; what it reads.
@attacks.register(
    "statistics/mean-row",
    summary="every row is guessed to be the mean of its clients' rows",
    source="textbook",
    reads="the tensors `sum` and `count` of a message",
)
@dataclass(frozen=True)
class MeanRow:
    """Guess that every row of a client is the mean row. Settings of the attack are fields of this dataclass."""

    name: ClassVar[str] = "statistics/mean-row"
    secret: ClassVar[str] = "samples"
    """What it reconstructs, by its name in `securefed._auditing.scoring.SCORES`."""

    def applies(self, target: Target, observed: View) -> str | None:
        """Return `None` where the attack can run, else the reason in a sentence."""
        if not observed.rounds or not {"sum", "count"} <= set(observed.rounds[0].message):
            return "no message with the tensors sum and count was seen"
        return None

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the secret of the clients behind the messages; all randomness comes from `rng`."""
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        message = observed.rounds[0].message
        mean = np.asarray(message["sum"]) / float(message["count"])
        rows = sum(target.public.rows[client] for client in observed.members)
        return Reconstruction(self.secret, np.tile(mean, (rows, 1)))
