"""Template of an attack: the clients' mean row, from a message that holds the sum of their rows.

Copy this file, rename the class, and change the line marked EDIT.

An attack gets a view. It holds, for each round, what the server broadcast, and the message that contains the attacked
clients' data: their own message, or the smallest sum with them that the attacker knows (`observed.members` are the
clients in it). An attack never gets a client's data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks import Reconstruction, Target, View, attacks
from securefed.errors import TranscriptError


# EDIT: the name by which users find it; one line on what it does; where it is published; what it reads.
@attacks.register(
    "statistics/mean-row",
    summary="every row is guessed to be the mean of its clients' rows",
    source="textbook",
    reads="the tensors `sum` and `count` of a message",
)
@dataclass(frozen=True)
class MeanRow:
    """Guess that every row is the mean row of its clients. Settings of an attack are fields of its dataclass."""

    name: ClassVar[str] = "statistics/mean-row"
    secret: ClassVar[str] = "samples"
    """The secret: `samples` (rows), `gram` (X^T X), `personal` (models) or `distances` (of rows)."""

    def applies(self, target: Target, observed: View) -> str | None:
        """Return `None` if the attack can run on this view, else the reason, in a sentence."""
        if not observed.rounds or not {"sum", "count"} <= set(observed.rounds[0].message):
            return "The view holds no message with the tensors `sum` and `count`."
        return None

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Reconstruct the rows of the clients that sent the messages; all randomness comes from `rng`.

        Args:
            observed: the view.
            target: the algorithm and the public facts of the run.
            rng: generator of random numbers.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        if (reason := self.applies(target, observed)) is not None:
            raise TranscriptError(reason)
        message = observed.rounds[0].message
        mean = np.asarray(message["sum"]) / float(message["count"])
        rows = sum(target.public.rows[client] for client in observed.members)
        return Reconstruction(self.secret, np.tile(mean, (rows, 1)))
