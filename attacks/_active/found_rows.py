"""Keep the rows that an active attack has read over its rounds, each once, and order them by how sure they are.

`TrapWeights` makes one `FoundRows` for each attack, adds what each message shows, and ends with `reconstruction`. It
reads vectors off gradients. Some are known to be single rows. Others may be single rows or means of several rows, and
the attack cannot tell which from one message: it chooses thresholds that divide the rows into bins, and reads one
vector from each bin. A vector that comes from two messages with other thresholds is taken for a single row, since means
of several rows seldom recur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from securefed._tensors import Array
from securefed.attacks._active.simulated_client import SimulatedClient
from securefed.attacks._base import Reconstruction

SAME = 1e-2
"""Relative distance below which two rows count as one row that was read twice: rounding leaves 1e-4, and rows of
different people differ by more than a tenth."""
RECURS = 1e-3
"""The same for a vector that is taken for a row since two messages hold it. It is smaller because means of many rows
differ by about a percent only."""


def same(row: Array, others: Sequence[Array] | Array, within: float = SAME) -> Array:
    """Return (others,) whether a row (width,) and each other one are one row that was read twice."""
    if not len(others):
        return np.zeros(0, bool)
    limit = within * max(float(np.linalg.norm(row)), 1e-12)
    return np.asarray(np.linalg.norm(np.asarray(others) - row, axis=1) <= limit)


@dataclass
class FoundRows:
    """Rows read so far.

    Attributes:
        width: number of entries of a row.
        single: rows that are known to be rows, each once.
        labels: the labels of the rows in `single`; -1 where the label is not known.
        newest: vectors of the last message, each a row or a mean of rows.
        earlier: the same of the messages before.
    """

    width: int
    single: list[Array] = field(default_factory=list, init=False)
    labels: list[int] = field(default_factory=list, init=False)
    newest: list[Array] = field(default_factory=list, init=False)
    earlier: list[Array] = field(default_factory=list, init=False)

    @property
    def all(self) -> list[Array]:
        """All rows, and the newest vectors: they show in which range the rows lie."""
        return [*self.single, *self.newest]

    @property
    def labelled(self) -> list[tuple[Array, int]]:
        """The rows whose label is known."""
        return [(row, label) for row, label in zip(self.single, self.labels, strict=True) if label >= 0]

    def add(self, row: Array, label: int = -1) -> None:
        """Add a vector that is known to be a single row, or the label (-1: not known) of one found without a label."""
        for place in np.flatnonzero(same(row, self.single))[:1]:
            if self.labels[place] < 0:
                self.labels[place] = label
            return
        self.single.append(row)
        self.labels.append(label)

    def add_bins(self, rows: Array) -> None:
        """Add the vectors (vectors, width) of a message's bins. Those that an earlier message held too count as rows.

        A message whose vectors are all equal is an exception: it shows nothing but the mean of all rows, which recurs.
        """
        self.earlier += self.newest
        self.newest = list(rows) or self.newest  # a message whose bins are all empty leaves them
        several, earlier = len(rows) > 0 and not same(rows[0], rows).all(), np.asarray(self.earlier)
        for row in rows if several else ():
            if same(row, earlier, RECURS).any():
                self.add(row)

    def reconstruction(self, client: SimulatedClient) -> Reconstruction:
        """Return the rows that are known to be rows, then the newest others, no more than the clients have.

        Of rows whose label is not known the estimate's label is -1. Where no row was read it is one row of zeros.

        Args:
            client: knows the members of each sum, and public facts.
        """
        others: list[Array] = []
        for row in [*self.newest, *reversed(self.earlier)]:
            if not same(row, self.single).any() and not same(row, others).any():
                others.append(row)
        rows = [*self.single, *others][: client.rows]
        value = np.asarray(rows) if rows else np.zeros((1, self.width))
        labels = np.full(len(value), -1, np.int64)
        known_labels = self.labels[: len(value)]
        labels[: len(known_labels)] = known_labels
        return Reconstruction(
            "samples",
            value,
            labels=labels,
            unknowns=client.rows * client.target.public.features,
            members=client.dialogue.members,
            diagnostics={"single rows": min(len(self.single), client.rows)},
        )
