"""How many rows of each class a client has, from its messages: learned from simulated clients, as rows are.

Messages of a supervised method often tell the classes of a client's rows even where they hide the rows (Zhao et al.
2020, iDLG; Ma et al. 2023, iLRG). Attacks on rows are given the labels; this one asks what the messages say of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic.regression import RegressRows, Ridge
from securefed.attacks.generic.replay import Replay
from securefed.errors import TranscriptError
from securefed.tensors import Array

_MOST_CLASSES = 100


@dataclass(frozen=True)
class RegressCounts:
    """Kernel ridge regression of all members' numbers of rows by class on all messages.

    Attributes:
        clients: how many are simulated, and with how many client steps at most; see `RegressRows`.

    Guarantee and limits as of `RegressRows`, over clients whose rows are drawn with their labels from the pool: those
    of a client with one class alone lie beyond it, where the estimate extrapolates.
    """

    clients: RegressRows = RegressRows()
    name: ClassVar[str] = "generic/labels"
    secret: ClassVar[str] = "labels"

    def learn(self, replay: Replay, labels: Array, rng: np.random.Generator) -> LearnedCounts:
        """What any messages to the replay's broadcasts say of labels.

        Args:
            labels: of the prior's rows, 0..classes - 1.

        Raises:
            TranscriptError: the labels are no classes, or too many, or as `RegressRows.learn`.
        """
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise TranscriptError("labels are responses, not classes, so there is nothing to count")
        classes = int(labels.max()) + 1
        if classes > _MOST_CLASSES:
            raise TranscriptError(f"{classes} classes are more than the {_MOST_CLASSES} whose rows are counted")
        _, drawn, sent = self.clients.simulated(replay, rng, labels)
        counts = (drawn[:, :, None] == np.arange(classes)).sum(axis=1).astype(np.float64)
        return LearnedCounts(Ridge.of(sent, counts))


@dataclass(frozen=True)
class LearnedCounts:
    """An attack that has learned; its residual is the error that it expects, 1 where messages say nothing."""

    model: Ridge
    name: ClassVar[str] = RegressCounts.name
    secret: ClassVar[str] = RegressCounts.secret

    def applies(self, target: Target, observed: Observed) -> str | None:
        return None

    def attack(self, replay: Replay) -> Reconstruction:
        """(classes,) expected numbers of rows, which are as many as there are rows together."""
        counts = np.clip(self.model(replay.seen), 0.0, replay.rows)
        total = float(counts.sum())
        return Reconstruction(
            self.secret,
            counts * (replay.rows / total) if total > 0 else np.full(len(counts), replay.rows / len(counts)),
            residual=self.model.expected,
            unknowns=len(counts),
            members=frozenset(replay.members),
            diagnostics={"simulated clients": len(self.model.known)},
        )
