"""How many rows of each class a client has, from its messages: learned from simulated clients, as rows are.

Messages of a supervised method often tell the classes of a client's rows even where they hide the rows (Zhao et al.
2020, iDLG; Ma et al. 2023, iLRG). Attacks on rows are given the labels; this one asks what the messages say of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
from scipy.spatial.distance import cdist

from securefed.attacks.base import Observed, Reconstruction, Target
from securefed.attacks.generic.regression import RegressRows, Ridge
from securefed.attacks.generic.replay import Replay
from securefed.errors import TranscriptError
from securefed.tensors import Array

_MOST_CLASSES = 100
_MOST_NUMBERS, _MOST_TENSORS = 16, 32
"""Size of a tensor, and number of tensors, in which the nearest simulated client is sought."""


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
        ridge, nearest = Ridge.of(sent, counts), Nearest.of(sent, counts, replay.blocks())
        return LearnedCounts(nearest if nearest is not None and nearest.expected < ridge.expected else ridge)


@dataclass(frozen=True)
class LearnedCounts:
    """An attack that has learned; its residual is the error that it expects, 1 where messages say nothing."""

    model: Ridge | Nearest
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


@dataclass(frozen=True)
class Nearest:
    """The values of the simulated client whose message is nearest in one tensor of one round.

    For numbers that code their values, as several counts in the digits of one weight, of which no quadratic function
    tells them.

    Attributes:
        known: (clients, numbers) the tensor of each.      values: (clients, values).      place: of the tensor.
        expected: error of a client's values by all other clients, relative to the values' spread.
    """

    known: Array
    values: Array
    place: slice
    expected: float

    @classmethod
    def of(cls, sent: Array, values: Array, blocks: Iterable[slice]) -> Nearest | None:
        """The tensor of least left-out error; `None` where all are larger than what is tried."""
        best: Nearest | None = None
        variance = float(np.mean((values - values.mean(axis=0)) ** 2)) or 1.0
        for place in islice((block for block in blocks if block.stop - block.start <= _MOST_NUMBERS), _MOST_TENSORS):
            known = sent[:, place]
            distance = cdist(known, known)
            np.fill_diagonal(distance, np.inf)
            left = np.mean((values[distance.argmin(axis=1)] - values) ** 2)
            expected = float(np.sqrt(left / variance))
            if best is None or expected < best.expected:
                best = cls(known, values, place, expected)
        return best

    def __call__(self, seen: Array) -> Array:
        """(values,) of one client's messages (equations,)."""
        return np.asarray(self.values[np.square(self.known - seen[self.place]).sum(axis=1).argmin()])
