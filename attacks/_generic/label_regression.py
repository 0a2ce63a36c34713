"""Estimate how many rows of each class a client has, by regression on the messages of simulated clients.

Messages of a supervised method often show the classes of a client's rows even where they hide the rows (Zhao et al.
2020, iDLG; Ma et al. 2023, iLRG). The members are the clients whose sum an observed message is. The attacker has rows
and labels like theirs (the prior), simulates clients with such rows by running the clients' code (`Replay`), and learns
the numbers of rows of each class as a function of the messages, by kernel ridge regression or by the nearest simulated
message. The attacks on rows get the labels as an input; this attack estimates them. An audit of a user's own algorithm
(`generic_attacks`) calls `RegressCounts.learn` once a seed, and `run` of its result on the messages and on others
that say nothing about the client, to compare with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
from scipy.spatial.distance import cdist

from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._generic.row_regression import KernelRidge, RegressRows
from securefed.errors import TranscriptError

_MOST_CLASSES = 100
"""Largest number of classes."""
_MOST_NUMBERS, _MOST_TENSORS = 16, 32
"""Largest size of a tensor, and largest number of tensors, in which the nearest simulated client is sought. It is meant
for values that are coded in a few numbers.
"""


@dataclass(frozen=True)
class RegressCounts:
    """Regress the number of all members' rows of each class on all messages, by kernel ridge regression.

    Simulated clients draw their rows together with their labels from the prior, so the estimate is no worse than the
    prior's class shares for clients like these. For a client with a single class it extrapolates.

    Attributes:
        clients: limits on the simulated clients and client steps; see `RegressRows`.
    """

    clients: RegressRows = RegressRows()
    name: ClassVar[str] = "generic/labels"
    secret: ClassVar[str] = "labels"

    def learn(self, replay: Replay, labels: Array, rng: np.random.Generator) -> LearnedCounts:
        """Learn the numbers of rows of each class as a function of the messages that answer the replay's broadcasts.

        Args:
            replay: the observed rounds, and the prior (rows that the attacker has); its messages are not used.
            labels: labels of the prior's rows, 0..classes - 1.
            rng: generator of the simulated clients.

        Raises:
            TranscriptError: the labels are no classes, or too many classes; or as `RegressRows.simulated`.
        """
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise TranscriptError("labels must be whole-number classes to be counted; these are responses")
        classes = int(labels.max()) + 1
        if classes > _MOST_CLASSES:
            raise TranscriptError(f"at most {_MOST_CLASSES} classes can be counted; got {classes}")
        _, drawn, sent = self.clients.simulated(replay, rng, labels)
        # (clients, rows, 1) against (classes,): (clients, classes) counts
        counts = (drawn[:, :, None] == np.arange(classes)).sum(axis=1).astype(np.float64)
        ridge, nearest = KernelRidge.of(sent, counts), NearestClient.of(sent, counts, replay.blocks())
        return LearnedCounts(nearest if nearest is not None and nearest.expected < ridge.expected else ridge)


@dataclass(frozen=True)
class LearnedCounts:
    """Learned attack on numbers of rows by class.

    The residual of its results is the expected error; it is 1 if the messages hold no information about labels.

    Attributes:
        model: regression of the counts on messages.
    """

    model: KernelRidge | NearestClient
    name: ClassVar[str] = RegressCounts.name
    secret: ClassVar[str] = RegressCounts.secret

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Return the expected numbers of rows by class, (classes,); they sum to the number of rows."""
        replay = Replay.of(observed, target)
        counts = np.clip(self.model(replay.messages), 0.0, replay.rows)
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
class NearestClient:
    """Predict the values of the simulated client whose message is nearest in one tensor of one round.

    It recovers values that are coded in one number, such as several counts in the digits of one weight; ridge
    regression cannot, as it fits linear or quadratic functions of the messages. The audit's self-check plants such a
    leak.

    Attributes:
        known: the tensor of each simulated client, (clients, numbers).
        values: values of each simulated client, (clients, values).
        place: positions of the tensor's entries in all messages.
        expected: leave-one-out error of a client's values, relative to their spread.
    """

    known: Array
    values: Array
    place: slice
    expected: float

    @classmethod
    def of(cls, sent: Array, values: Array, blocks: Iterable[slice]) -> NearestClient | None:
        """Choose the tensor with the smallest leave-one-out error; `None` if all are too large to be tried."""
        best: NearestClient | None = None
        variance = float(np.mean((values - values.mean(axis=0)) ** 2)) or 1.0
        for block in islice((block for block in blocks if block.stop - block.start <= _MOST_NUMBERS), _MOST_TENSORS):
            tensors = sent[:, block]
            distance = cdist(tensors, tensors)
            np.fill_diagonal(distance, np.inf)
            squared_error = np.mean((values[distance.argmin(axis=1)] - values) ** 2)
            expected = float(np.sqrt(squared_error / variance))
            if best is None or expected < best.expected:
                best = cls(tensors, values, block, expected)
        return best

    def __call__(self, message: Array) -> Array:
        """Estimate the values (values,) of one client from its messages (equations,)."""
        return np.asarray(self.values[np.square(self.known - message[self.place]).sum(axis=1).argmin()])
