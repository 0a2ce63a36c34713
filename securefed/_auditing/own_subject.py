"""Whose data an audit of one's own algorithm is about, what could be guessed of them, and how an estimate is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from securefed._auditing.single_row_or_column import best_part
from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._generic.row_regression import KernelRidge
from securefed.attacks.scores import match, relative_error
from securefed.datasets._base import Dataset

POOLED: Final = "pooled "
_PRIOR: Final = 200
_LEARNED: Final = 400
NOTHING: Final = 1e-12
"""Error of a guess below which there is nothing left to find out."""


@dataclass(frozen=True)
class Subject:
    """One client, or all of them together.

    Attributes:
        data: all clients' data.
        public: facts that the attackers know.
        target: the client; `None` for all clients together.
        seed: of the run.
    """

    data: Sequence[Dataset]
    public: Public
    target: ClientId | None
    seed: int

    def named(self, secret: str) -> str:
        """The secret's name in a table: that of all clients together is another one."""
        return f"{POOLED}{secret}" if self.target is None else secret

    @cached_property
    def rows(self) -> Array:
        """(rows, features) what is secret."""
        return self.pooled if self.target is None else self.data[self.target].x

    @cached_property
    def pooled(self) -> Array:
        """Everybody's rows."""
        return np.concatenate([data.x for data in self.data])

    @cached_property
    def labels(self) -> Array | None:
        """Everybody's labels, in the order of the pooled rows, where they are classes."""
        labels = [data.y for data in self.data if data.y is not None]
        if len(labels) < len(self.data) or any(not np.issubdtype(y.dtype, np.integer) for y in labels):
            return None
        return np.concatenate(labels)

    @cached_property
    def prior(self) -> Array:
        """Rows that the attackers are given, and that the guess is made of.

        Of one client these are everybody's. Of all clients together they are drawn: each column uniformly, with its
        mean and spread, so that the attackers know no two columns' relation.
        """
        if self.target is not None:
            return self.pooled
        rng, half = np.random.default_rng([self.seed, 12]), np.sqrt(3) * self.pooled.std(axis=0)
        drawn = self.pooled.mean(axis=0) + rng.uniform(-1, 1, (_PRIOR, self.pooled.shape[1])) * half
        return np.asarray(np.clip(drawn, self.pooled.min(), self.pooled.max()))

    @cached_property
    def prior_labels(self) -> Array | None:
        """The labels of the prior's rows, where these are somebody's and the labels are classes."""
        return None if self.target is None else self.labels

    def truth(self, secret: str) -> Array:
        """The secret itself."""
        if secret == "gram":
            return np.asarray(self.rows.T @ self.rows)
        if secret == "labels":
            assert self.target is not None
            return self._counted(self.data[self.target].y)
        return self.rows

    def guess(self, secret: str) -> Array:
        """The secret as it follows from the prior and the public numbers of rows."""
        share = len(self.rows) / len(self.prior)
        if secret == "gram":
            return np.asarray(self.prior.T @ self.prior * share)
        if secret == "labels":
            return np.asarray(self._counted(self.labels) * share)
        return np.broadcast_to(self.prior.mean(axis=0), self.rows.shape)

    def _counted(self, labels: Array | None) -> Array:
        assert labels is not None and self.labels is not None
        return np.bincount(labels, minlength=int(self.labels.max()) + 1).astype(np.float64)

    @cached_property
    def counted(self) -> bool:
        """Whether numbers of labels are a secret: one client's, where labels are classes and not shared out alike."""
        return self.target is not None and self.labels is not None and self.base("labels") > NOTHING

    def nothing_to_leak(self, members: frozenset[ClientId]) -> str | None:
        """Why nothing could be seen to leak; `None` where something could."""
        if self.target is None and len(members) < len(self.data):
            return "the sums are not of all clients, so that they are no sum of everybody's data"
        for secret in ("gram", "samples"):
            if np.linalg.norm(self.truth(secret)) > 0 and self.base(secret) > NOTHING:
                continue
            if self.target is None:
                return "everybody's rows are what each column's mean and spread say; give rows that differ"
            return (
                f"client {self.target}'s rows are what everybody's pooled rows say of it, so that nothing could be "
                "seen to leak; give clients that differ"
            )
        return None

    def base(self, secret: str) -> float:
        """Error of the guess."""
        return relative_error(self.guess(secret), self.truth(secret))

    def error(self, found: Reconstruction) -> float:
        """Of an estimate of the members' secret; infinite where it is not finite."""
        if not np.isfinite(found.value).all():
            return float("inf")
        if found.secret == "samples":
            return relative_error(self._matched(found), self.rows)
        return relative_error(found.value * self._share(found), self.truth(found.secret))

    def _share(self, found: Reconstruction) -> float:
        """The subject's rows out of the members', as public numbers say."""
        if self.target is None:
            return 1.0
        members = found.members or frozenset({self.target})
        return self.public.rows[self.target] / sum(self.public.rows[client] for client in members)

    def part(self, found: Reconstruction) -> tuple[float, str]:
        """Leakage and name of the column or row that an estimate of rows knows best; (-inf, "") where none counts."""
        if found.secret != "samples" or not np.isfinite(found.value).all():
            return -np.inf, ""
        return best_part(self._matched(found), self.rows, self.guess("samples"), self.pooled)

    def _matched(self, found: Reconstruction) -> Array:
        bound = self.public.feature_bound  # what no data exceeds costs an attacker nothing to cut off
        return match(np.clip(found.value, -bound, bound), self.rows)

    def follows(self, found: Reconstruction, *, labels: bool) -> list[Reconstruction]:
        """An estimate, and what an attacker computes from it: of rows also the Gram matrix, and numbers of labels.

        Args:
            found: the estimate.
            labels: whether the attacker asks for labels; not where the estimate was made with the true ones.
        """
        if found.secret != "samples":
            return [found]
        rows, out = found.value, [found]
        out.append(_derived(found, "gram", rows.T @ rows))
        if labels and self.counted and np.isfinite(rows).all():
            out.append(_derived(found, "labels", self._classified(rows)))
        return out

    def _classified(self, rows: Array) -> Array:
        """(classes,) expected numbers of rows by class, from the other clients' rows and labels."""
        assert self.labels is not None
        others = np.repeat(np.arange(len(self.data)), [data.rows for data in self.data]) != self.target
        places = np.random.default_rng([self.seed, 13]).permutation(np.flatnonzero(others))[:_LEARNED]
        classes = np.arange(int(self.labels.max()) + 1)
        model = KernelRidge.of(self.pooled[places], (self.labels[places, None] == classes).astype(np.float64))
        counts = np.sum([np.clip(model(row), 0.0, 1.0) for row in rows], axis=0)
        total = float(counts.sum())
        return np.asarray(
            counts * (len(rows) / total) if total > 0 else np.full(len(classes), len(rows) / len(classes))
        )


def _derived(found: Reconstruction, secret: str, value: Array) -> Reconstruction:
    return Reconstruction(
        secret,
        np.asarray(value),
        residual=found.residual,
        rank=found.rank,
        unknowns=found.unknowns,
        condition=found.condition,
        diagnostics=found.diagnostics,
        members=found.members,
    )
