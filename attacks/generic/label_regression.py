"""Estimate how many rows of each class a client has, by regression on the messages of simulated clients.

Messages of a supervised method often tell the classes of a client's rows even where they hide the rows (Zhao et al.
2020, iDLG; Ma et al. 2023, iLRG). Attacks on rows are given the labels; this one asks what the messages say of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic.client_replay import Replay
from securefed.attacks.generic.row_regression import KernelRidge, RegressRows
from securefed.errors import TranscriptError
from securefed.tensors import Array

_MOST_CLASSES = 100


@dataclass(frozen=True)
class RegressCounts:
    """Regress the number of all members' rows of each class on all messages, by kernel ridge regression.

    Guarantee and limits are those of `RegressRows`, for clients whose rows are drawn with their labels from the pool.
    For a client with a single class the estimate extrapolates.

    Attributes:
        clients: number of simulated clients and limit of client steps; see `RegressRows`.
    """

    clients: RegressRows = RegressRows()
    name: ClassVar[str] = "generic/labels"
    secret: ClassVar[str] = "labels"

    def learn(self, replay: Replay, labels: Array, rng: np.random.Generator) -> LearnedCounts:
        """Learn what any messages that answer the replay's broadcasts say of labels.

        Args:
            replay: the observed rounds; its messages are not used.
            labels: labels of the prior's rows, 0..classes - 1.
            rng: generator of the simulated clients.

        Raises:
            TranscriptError: the labels are no classes, or too many classes; or as `RegressRows.learn`.
        """
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise TranscriptError("labels are responses, not classes, so there is nothing to count")
        classes = int(labels.max()) + 1
        if classes > _MOST_CLASSES:
            raise TranscriptError(f"{classes} classes are more than the {_MOST_CLASSES} whose rows are counted")
        _, drawn, sent = self.clients.simulated(replay, rng, labels)
        counts = (drawn[:, :, None] == np.arange(classes)).sum(axis=1).astype(np.float64)
        return LearnedCounts(KernelRidge.of(sent, counts))


@dataclass(frozen=True)
class LearnedCounts:
    """Learned attack on numbers of rows by class.

    The residual of its results is the expected error, 1 where the messages say nothing.

    Attributes:
        model: regression of the counts on messages.
    """

    model: KernelRidge
    name: ClassVar[str] = RegressCounts.name
    secret: ClassVar[str] = RegressCounts.secret

    def applies(self, target: Target, observed: Observed) -> str | None:
        """Return `None`: it always applies."""
        return None

    def attack(self, replay: Replay) -> Reconstruction:
        """Return the expected numbers of rows by class, (classes,); they sum to the number of rows."""
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
