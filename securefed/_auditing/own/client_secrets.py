"""The data that an audit of a user's own algorithm tries to recover, what could be guessed of them, and the score.

The data are one client's, or all clients' together. `own_seed_run` makes a `SecretData` for each; the attacks ask it
for the rows that they are given (the prior) and for scores. Leakage is 1 - error of the estimate / error of a guess
without messages. The guess follows from the prior and the public numbers of rows:

    rows         the prior's mean row, for every row
    Gram matrix  X^T X of the prior, times (own rows / the prior's rows)
    distances    squared distances between the prior's columns, times (own rows / the prior's rows)
    labels       the prior's counts of each class, times (own rows / the prior's rows)

An estimate that only looks like rows of this kind also fits the secret rows better than the mean row does. So for rows
the guess's error is multiplied by `fit_by_chance`: the estimate's error for rows that took no part, relative to the
mean row's (at most 1). An estimate that fits those as well as the secret rows shows no leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from securefed._auditing.engine.seed_result import NEGLIGIBLE, Judgement, judge_estimate
from securefed._auditing.own.single_row_or_column import best_part
from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._generic.row_regression import KernelRidge
from securefed.attacks.scores import fit_by_chance, match, relative_error, rows_between, rows_not_held
from securefed.datasets._base import Dataset

_PRIOR: Final = 200
"""Rows drawn as the prior of all clients together; their mean and spread then have errors below a tenth."""
_LEARNED: Final = 400
"""Most rows of other clients from which a classifier of labels is learned; its cost grows with their cube."""


@dataclass(frozen=True)
class SecretData:
    """The data of one client, or of all of them together.

    Attributes:
        data: all clients' data.
        public: facts that the attackers know.
        target: the client; `None` for all clients together.
        seed: the seed of the run.
    """

    data: Sequence[Dataset]
    public: Public
    target: ClientId | None
    seed: int

    def named(self, name: str) -> Any:
        """Return the name of a secret or attack in the report: `pooled ...` where it is of all clients together.

        The type is `Any`, as callers use it where one of the literals of `Secret` is expected.
        """
        return f"pooled {name}" if self.target is None else name

    @cached_property
    def rows(self) -> Array:
        """(rows, features), the secret rows."""
        return self.pooled if self.target is None else self.data[self.target].x

    @cached_property
    def pooled(self) -> Array:
        """(all rows, features), the rows of all clients."""
        return np.concatenate([data.x for data in self.data])

    @cached_property
    def labels(self) -> Array | None:
        """The labels of the pooled rows if all clients have some and they are classes, else `None`."""
        labels = [data.y for data in self.data if data.y is not None]
        if len(labels) < len(self.data) or any(not np.issubdtype(y.dtype, np.integer) for y in labels):
            return None
        return np.concatenate(labels)

    @cached_property
    def prior(self) -> Array:
        """Rows that the attackers are given.

        Of one client these are the rows of all clients. Of all clients together they are drawn: each column uniformly
        with its true mean and standard deviation, so that the attackers know no relation between two columns.
        """
        if self.target is not None:
            return self.pooled
        # a uniform number of standard deviation s has the range mean +- sqrt(3) s; 12 sets its random stream apart
        rng, half = np.random.default_rng([self.seed, 12]), np.sqrt(3) * self.pooled.std(axis=0)
        drawn = self.pooled.mean(axis=0) + rng.uniform(-1, 1, (_PRIOR, self.pooled.shape[1])) * half
        return np.asarray(np.clip(drawn, self.pooled.min(), self.pooled.max()))

    @cached_property
    def prior_labels(self) -> Array | None:
        """The labels of the prior's rows, where these are real rows and the labels are classes."""
        return None if self.target is None else self.labels

    def truth(self, kind: str) -> Array:
        """Return the secret of a kind: `gram`, `distances`, `labels` (counts of each class) or `samples`."""
        if kind == "gram":
            return np.asarray(self.rows.T @ self.rows)
        if kind == "distances":
            return column_distances(self.rows)
        if kind == "labels":
            assert self.target is not None
            return self._counts(self.data[self.target].y)
        return self.rows

    def guess(self, kind: str) -> Array:
        """Return the best guess of it without messages, of the same shape; see the module."""
        share = len(self.rows) / len(self.prior)
        if kind == "gram":
            return np.asarray(self.prior.T @ self.prior * share)
        if kind == "distances":
            return column_distances(self.prior) * share
        if kind == "labels":
            return np.asarray(self._counts(self.labels) * share)
        return np.broadcast_to(self.prior.mean(axis=0), self.rows.shape)

    def _others(self, members: frozenset[ClientId]) -> Array:
        """Return rows (rows, features) of the same kind that none of the members holds.

        They are the other clients' rows. Where all clients are members, rows are made up (`rows_between`).
        """
        own = [data.x for client, data in enumerate(self.data) if client in members]
        others = [data.x for client, data in enumerate(self.data) if client not in members]
        if others:
            return rows_not_held(np.concatenate(others), own)
        rng = np.random.default_rng([self.seed, 14])  # a random stream of its own
        return rows_not_held(rows_between(self.pooled, len(self.rows), rng), own)

    def _counts(self, labels: Array | None) -> Array:
        """(classes,) the number of rows of each class."""
        assert labels is not None and self.labels is not None
        return np.bincount(labels, minlength=int(self.labels.max()) + 1).astype(np.float64)

    @cached_property
    def has_label_counts(self) -> bool:
        """Whether counts of labels are a secret: one client's, of classes, that differ from all clients' shares."""
        return self.target is not None and self.labels is not None and self.baseline("labels") > NEGLIGIBLE

    def baseline(self, kind: str) -> float:
        """Compute the relative error of the guess."""
        return relative_error(self.guess(kind), self.truth(kind))

    def nothing_to_leak(self, members: frozenset[ClientId]) -> str | None:
        """Say why no leak could be measured; `None` if one could.

        Args:
            members: clients whose messages are in the view.
        """
        if self.target is None and len(members) < len(self.data):
            return "the sums are not of all clients, so that they are not sums of all clients' data"
        for kind in ("gram", "samples"):
            if np.linalg.norm(self.truth(kind)) > 0 and self.baseline(kind) > NEGLIGIBLE:
                continue
            if self.target is None:
                return "each column's mean and spread already tell all clients' rows; give rows that differ"
            return (
                f"all clients' pooled rows already tell client {self.target}'s rows, so that no leak could be "
                "measured; give clients that differ"
            )
        return None

    def judge(self, estimate: Reconstruction) -> list[Judgement]:
        """Score an estimate of the members' secret beside the guess.

        Rows are matched to the true ones, and the column or row that is known best is scored too. Gram matrices and
        counts of several members are scaled to the target's share of their rows.

        Args:
            estimate: the estimate of the data of `estimate.members`; by default of the target's.

        Returns:
            A list of one score; other secrets' judges return several.
        """
        kind, value = estimate.secret, estimate.value
        finite = bool(np.isfinite(value).all())
        members = self._members(estimate)
        by_chance = 1.0  # factor of the guess's error, see the head of this file
        if kind == "samples" and finite:
            bound = self.public.feature_bound  # an attacker loses nothing by cutting off what no data exceed
            value = np.clip(value, -bound, bound)
            by_chance = fit_by_chance(value, self._others(members), len(self.rows), self.prior.mean(axis=0))
            value = match(value, self.rows)
        elif kind != "samples" and self.target is not None:
            value = value * (self.public.rows[self.target] / sum(self.public.rows[client] for client in members))
        truth, guess = self.truth(kind), self.guess(kind)
        judged = judge_estimate(self.named(kind), value, truth, guess, by_chance * relative_error(guess, truth))
        if kind == "samples" and finite:
            leak, part = best_part(value, self.rows, guess, self.pooled)
            judged = replace(judged, part=part, part_leakage=leak)
        return [judged]

    def _members(self, estimate: Reconstruction) -> frozenset[ClientId]:
        """Return the clients whose data are estimated."""
        return estimate.members or frozenset(range(len(self.data)) if self.target is None else {self.target})

    def derive(self, estimate: Reconstruction, *, labels: bool) -> list[Reconstruction]:
        """Return an estimate, and what an attacker computes from it: of rows also Gram matrix and counts of labels.

        An attack may read other rows or copies beside the members' own. Both are scaled to the members' number of rows.

        Args:
            estimate: an estimate of any kind.
            labels: whether to count labels; not where the estimate was made with the true ones.
        """
        if estimate.secret != "samples":
            return [estimate]
        rows = estimate.value
        share = sum(self.public.rows[client] for client in self._members(estimate)) / max(len(rows), 1)
        out = [estimate, replace(estimate, secret="gram", value=np.asarray(rows.T @ rows * share))]
        if labels and self.has_label_counts and np.isfinite(rows).all():
            out.append(replace(estimate, secret="labels", value=self._classified(rows) * share))
        return out

    def _classified(self, rows: Array) -> Array:
        """(classes,) expected counts of labels of some rows, by a classifier of the other clients' rows and labels."""
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


def column_distances(rows: Array) -> Array:
    """Return the squared distances between the columns of some rows, (features, features)."""
    return np.asarray(np.sum((rows[:, :, None] - rows[:, None, :]) ** 2, axis=0))
