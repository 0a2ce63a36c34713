"""The rows behind a view, by which implied estimates are scored; no attack reads them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed._auditing.alerts import FEWEST
from securefed._auditing.cases import Prepared
from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.attacks.scores import rows_not_held
from securefed.datasets._base import Dataset


@dataclass(frozen=True)
class Truth:
    """The clients' rows, and what is public about them.

    Attributes:
        clients: each client's rows.
        target: the client attacked; `None` for all clients together.
        outside: (rows, features) rows of the same kind that no member of the view holds; may be empty.
        public: the public facts of the federation.
        seed: the seed of the run, from which draws of nulls and candidates follow.
        columns: the names of the columns; empty where they have none.
        few: fewest people whose mean is not counted as a leak about people: k of the caller's release rule.
    """

    clients: Sequence[Dataset]
    target: ClientId | None
    outside: Array
    public: Public
    seed: int
    columns: tuple[str, ...] = ()
    few: int = FEWEST

    @classmethod
    def of(cls, prepared: Prepared, target: ClientId, seed: int, columns: tuple[str, ...], few: int) -> Truth:
        """Take the rows of a run of a registered algorithm; the held-out ones took no part.

        Args:
            prepared: the data of the run.
            target: the client attacked.
            seed: the seed of the run.
            columns: names of the columns; left out where the run has a part of the columns only.
            few: fewest people whose mean is not counted as a leak about people.
        """
        outside = rows_not_held(prepared.test.x, [data.x for data in prepared.clients])
        named = columns if len(columns) == prepared.public.features else ()
        return cls(prepared.clients, target, outside, prepared.public, seed, named, few)

    @cached_property
    def pooled(self) -> Array:
        """The rows of all clients, (rows, features)."""
        return np.concatenate([data.x for data in self.clients])

    @property
    def own(self) -> Array:
        """The target's rows; those of all clients where there is no target."""
        return self.pooled if self.target is None else self.clients[self.target].x

    def rows(self, members: Collection[ClientId]) -> Array:
        """Return the rows of some clients, in the order of the clients."""
        return np.concatenate([self.clients[client].x for client in sorted(members)])

    def share(self, members: Collection[ClientId]) -> float:
        """Return the target's public share of the members' rows; 1 where there is no target."""
        counts = self.public.rows
        return 1.0 if self.target is None else counts[self.target] / sum(counts[client] for client in members)

    @cached_property
    def scale(self) -> Array:
        """Return the standard deviation of each column over all clients; 1 where a column is constant."""
        spread = self.pooled.std(axis=0)
        return np.where(spread > 0, spread, 1.0)

    def column(self, place: int) -> str:
        """Name a column for the reader of a report."""
        return self.columns[place] if self.columns else f"column {place}"

    @cached_property
    def classes(self) -> tuple[Array, Array] | None:
        """Return the labels of the target's rows and of all rows; `None` where they are no classes."""
        labels = [data.y for data in self.clients]
        known = [y for y in labels if y is not None and y.ndim == 1 and np.issubdtype(y.dtype, np.integer)]
        if len(known) < len(labels):
            return None
        pooled = np.concatenate(known)
        return (pooled if self.target is None else known[self.target]), pooled

    def class_means(self, rows: Array, labels: Array) -> Array:
        """Return the mean row of each declared class, (classes, features); of a class without rows that of all."""
        out = np.tile(rows.mean(axis=0), (max(self.public.classes, 2), 1))
        for label in np.unique(labels):
            out[label] = rows[labels == label].mean(axis=0)
        return out
