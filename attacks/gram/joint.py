"""Several clients' Gram matrices from nothing but the sums of their messages, by simulating all of them at once.

A sum of linear messages is one client with the pooled rows. A sum of non-linear ones is not: it depends on the single
matrices, and with enough rounds its Jacobian in all of them together has full rank. Whose matrix is whose cannot
show, where clients differ in nothing public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securefed.attacks.levenberg import Fit, Geodesic, Patience, levenberg
from securefed.tensors import Array

GOAL, PROOF = 3e-13, 1e-9
"""A fit stops at the one relative misfit, and counts as proven below the other, where its Jacobian has full rank."""
_FULL_RANK = 1e-11
_PATIENCE = Patience(1e-8, far=10, close=None)
_TIED = 40


class Sender(Protocol):
    """One client, as an attacker simulates it."""

    @property
    def count(self) -> int:
        """Parameters."""
        ...

    @property
    def determined(self) -> int:
        """How many of them its messages depend on."""
        ...

    def sent(self, x: Array) -> Array:
        """What it adds to the sums, flat and in their units; NaN where x is out of reach."""
        ...

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """`sent`, and its derivative (equations, parameters)."""
        ...

    def gram(self, x: Array) -> Array:
        """S."""
        ...


@dataclass(frozen=True)
class Joint:
    """A fit.

    Attributes:
        grams: (clients, features, features).      misfit: relative.
        rank, unknowns, condition: of the Jacobian in all clients' matrices; condition over the kept directions.
        starts: that were tried.
    """

    grams: Array
    misfit: float
    rank: int
    unknowns: int
    condition: float
    starts: int

    @property
    def proven(self) -> bool:
        return self.misfit < PROOF and self.rank == self.unknowns


def fit_jointly(
    senders: Sequence[Sender], seen: Array, first: Array, *, starts: int, jacobians: int, rng: np.random.Generator
) -> Joint:
    """Fit all clients to the sums, from equal shares of what the sums say if all were equal.

    Args:
        senders: with parameters of one kind.      seen: the sums, flat.
        first: a client's parameters to begin with.
        starts: how often the equal clients are disturbed and fitted, by little, more and much in turn.

    Equal clients are a saddle, where only the sum of the matrices shows: they are disturbed before each fit.
    """
    scale = float(np.linalg.norm(seen)) or 1.0
    problem = _Sums(senders, seen, scale)
    common = _Tied(senders, seen, scale).fitted(first)
    best = Fit(np.tile(common, len(senders)), np.inf, 0, problem.linearised)
    tried = 0
    while tried < starts and not best.norm < PROOF:
        spread = 0.03 * 3.0 ** (tried % 3) * float(np.linalg.norm(common)) / np.sqrt(len(common))
        moves = rng.normal(size=(len(senders), len(common)))
        moves -= moves.mean(axis=0)  # the sum stays
        start = (common + spread * moves).reshape(-1)
        found = levenberg(
            problem.linearised,
            start,
            steps=jacobians,
            goal=GOAL,
            residual=problem.residual,
            patience=_PATIENCE,
            stepper=Geodesic(problem.residual),
        )
        best = min(best, found, key=lambda fit: fit.norm)
        tried += 1
    unknowns = sum(sender.determined for sender in senders)
    rank, condition = rank_of(problem.linearised(best.point)[1], unknowns)
    grams = np.stack([sender.gram(x) for sender, x in zip(senders, problem.parts(best.point), strict=True)])
    return Joint(grams, best.norm, rank, unknowns, condition, tried)


def rank_of(jacobian: Array, largest: int) -> tuple[int, float]:
    """Rank, at most `largest`, and condition over it, with columns scaled to unit length."""
    scaled = jacobian / np.maximum(np.linalg.norm(jacobian, axis=0), 1e-300)
    s = np.linalg.svd(np.linalg.qr(scaled, mode="r") if len(scaled) > scaled.shape[1] else scaled, compute_uv=False)
    rank = min(int(np.sum(s > _FULL_RANK * s[0])), largest)
    return rank, float(s[0] / s[rank - 1])


@dataclass(frozen=True)
class _Sums:
    senders: Sequence[Sender]
    seen: Array
    scale: float

    def parts(self, x: Array) -> list[Array]:
        return np.split(x, np.cumsum([sender.count for sender in self.senders])[:-1])

    def residual(self, x: Array) -> Array:
        sent = [sender.sent(part) for sender, part in zip(self.senders, self.parts(x), strict=True)]
        return np.asarray((np.sum(sent, axis=0) - self.seen) / self.scale)

    def linearised(self, x: Array) -> tuple[Array, Array]:
        pairs = [sender.sent_and_tangents(part) for sender, part in zip(self.senders, self.parts(x), strict=True)]
        residual = (np.sum([sent for sent, _ in pairs], axis=0) - self.seen) / self.scale
        return residual, np.hstack([tangents for _, tangents in pairs]) / self.scale


@dataclass(frozen=True)
class _Tied:
    """All clients alike."""

    senders: Sequence[Sender]
    seen: Array
    scale: float

    def fitted(self, first: Array) -> Array:
        sender, count = self.senders[0], len(self.senders)

        def residual(x: Array) -> Array:
            return np.asarray((count * sender.sent(x) - self.seen) / self.scale)

        def linearised(x: Array) -> tuple[Array, Array]:
            sent, tangents = sender.sent_and_tangents(x)
            return (count * sent - self.seen) / self.scale, count * tangents / self.scale

        found = levenberg(linearised, first, steps=_TIED, goal=GOAL, residual=residual, patience=Patience(0.0, far=5))
        return found.point if np.isfinite(found.norm) else first
