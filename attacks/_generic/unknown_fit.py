"""Fit clients' Gram matrices, or the distances between their columns, by running the client's own step.

Some steps depend on a client's rows only through one of these (`unknowns`): the user of an audit knows that of a step,
and says so. The attack checks it, and then fits each member's matrix to all observed messages (`_engine.fit`); members
are the clients whose sum an observed message is. Derivatives come from running the step on a `DualArray`, or from
differences where the step is not made of the operations that have a rule.

A client of fewer rows than columns has a matrix of low rank, which makes the search hard: most of its coordinates bend
the matrix. Where zero rows change no message (after a common scale of all rows, for steps that divide by their number),
the matrix is therefore fitted without a bound on its rank. What one client's messages leave open is chosen afterwards:
so that the rank is no larger than the number of rows, or else as in the rows that the attacker has (the prior).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._engine import DualArray
from securefed.attacks._engine.fit import Fit, SearchLimits, fit
from securefed.attacks._engine.unknowns import GramFactor, Unknown
from securefed.attacks._fitting.levenberg_marquardt import StallLimit
from securefed.attacks._generic.client_replay import Replay
from securefed.attacks._generic.replayed_member import ReplayedMember
from securefed.errors import SecureFedError, TranscriptError

_SAME = 1e-7
"""Largest distance, in the messages' units, between messages that count as the same: round-off of long steps is below.
"""
_EXPLAINED = 1e-4
"""Residual up to which messages count as explained, as in the fit of rows."""
_LIFTS = (1.0, 0.0, 10.0, 0.1)
"""Multiples of the identity that starts add, in units of the mean eigenvalue of the prior's matrix."""
_REFINED = 10
"""Largest number of Jacobians of a fit after open directions were chosen: it starts at messages that are explained."""
_OPEN = 1e-9
"""Singular values of the Jacobian below this share of the largest belong to directions that the messages leave open."""
_COMPLETIONS, _PROJECTIONS, _SETTLED = 3, 1000, 1e-9
"""Most changes of the open directions, each before a fit; projections on the preferred matrices in each, which lose a
share of (columns - rows) / columns of the distance; and the relative change of the matrix that ends both.
"""


@dataclass(frozen=True)
class FitUnknown:
    """Fit the Gram matrix of each member's rows, or the distances between their columns, to all rounds.

    Attributes:
        unknown: "gram" or "distances".
        starts: number of starts.
        steps: largest number of Jacobians for each start.
        calls: largest number of simulated clients for attacks that learn from them.
        most: largest number of unknowns; the attack refuses if there are more.
    """

    unknown: Unknown
    starts: int = 4
    steps: int = 100
    calls: int = 20_000
    most: int = 600

    def __post_init__(self) -> None:
        require(self.unknown in ("gram", "distances"), f'unknown is "gram" or "distances", not {self.unknown!r}')

    @property
    def name(self) -> str:
        """Return the name in reports."""
        return f"generic/{self.unknown}"

    @property
    def secret(self) -> str:
        """Return what is reconstructed."""
        return self.unknown

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None` if it can."""
        if not observed.rounds:
            return "The view holds no round."
        sizes, like = (target.public.rows[client] for client in observed.members), np.eye(target.public.features)
        count = sum(GramFactor.of(self.unknown, size, like).count for size in sizes)
        if count > self.most:
            return f"{count} unknowns are more than the {self.most} that are fitted; audit fewer columns or clients."
        return None

    def run(self, observed: View | Replay, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Fit the members' matrices, and return their sum.

        Raises:
            TranscriptError: the step depends on more of the rows than was said, or failed on every start.
        """
        replay = Replay.of(observed, target)
        like = replay.sample(rng) if replay.prior is None else replay.prior
        clients = [_Member.of(replay, index, self.unknown, like) for index in range(len(replay.sizes))]
        self._check_dependence(replay, clients, rng)
        goal = max(1e-12, 3 * replay.units.rounding)
        limits = SearchLimits(self.steps, goal, StallLimit(1e-3))
        found = fit(clients, replay.messages, self._starts(clients, rng), limits, replay.units.unit)
        if len(clients) == 1:
            found = self._completed(clients[0], found, SearchLimits(_REFINED, goal))
        if not np.isfinite(found.residual):
            raise TranscriptError("the client step refused every start of the fit")
        pairs = zip(clients, found.points, strict=True)
        return Reconstruction(
            self.unknown,
            np.sum([client.unknown.value(x) for client, x in pairs], axis=0),
            residual=found.residual,
            rank=found.rank,
            unknowns=found.unknowns,
            condition=found.condition,
            members=frozenset(replay.members),
            diagnostics={"starts": found.starts, "explained": found.residual <= max(_EXPLAINED, 3 * goal)},
        )

    def _check_dependence(self, replay: Replay, clients: list[_Member], rng: np.random.Generator) -> None:
        """Raise `TranscriptError` if other rows with the same Gram matrix, or distances, send other messages."""
        rows = replay.likely(rng)[: replay.sizes[0]]
        apart = clients[0].apart(rows, clients[0].unknown.changed(rows, rng))
        if not apart <= _SAME:
            what = "Gram matrix" if self.unknown == "gram" else "columns' distances"
            raise TranscriptError(
                f"the messages depend on more of the rows than their {what}: other rows with the same one send "
                f'messages that are {apart:.1g} apart; audit with unknown="rows"'
            )

    def _starts(self, clients: list[_Member], rng: np.random.Generator) -> Iterator[Array]:
        """Yield coordinates of all members: of the prior's matrix, or of rows drawn from it for several members.

        A multiple of the identity is added, another one for each start: where messages do not depend on it, the search
        then stays away from singular matrices, at which a factor has no derivative in some directions.
        """
        for k in range(self.starts):
            yield np.concatenate(
                [client.likely(rng, whole=len(clients) == 1, lift=_LIFTS[k % len(_LIFTS)]) for client in clients]
            )

    def _completed(self, client: _Member, found: Fit, limits: SearchLimits) -> Fit:
        """Move what the messages leave open towards the prior's matrix, and fit again from there."""
        unit, unknown = client.replay.units.unit, client.unknown
        for _ in range(_COMPLETIONS):
            x = found.points[0]
            jacobian = client.sent_and_tangents(x)[1] / unit[:, None]
            if not np.isfinite(jacobian).all():
                return found
            slopes = _upper(unknown.value(DualArray.variables(x))).slopes  # of the matrix by the coordinates
            _, s, Vt = np.linalg.svd(jacobian @ np.linalg.pinv(slopes))
            directions = Vt[int(np.sum(s > _OPEN * s[0])) :]
            begin = matrix = _upper(unknown.value(x))
            for _ in range(_PROJECTIONS):
                move = directions.T @ (directions @ (client.preferred(matrix) - matrix))
                matrix = matrix + move
                if np.linalg.norm(move) <= _SETTLED * np.linalg.norm(matrix):
                    break
            if np.linalg.norm(matrix - begin) <= _SETTLED * np.linalg.norm(matrix):
                return found
            moved = fit([client], client.replay.messages, [client.nearest(matrix)], limits, unit)
            if not moved.residual <= max(10 * found.residual, _EXPLAINED):  # singular: the last digits are hard to fit
                return found
            found = moved
        return found


@dataclass(frozen=True)
class _Member(ReplayedMember):
    """A member whose unknown is its Gram matrix, or its columns' distances; `scale` is 1 but where rows were added."""

    unknown: GramFactor

    @classmethod
    def of(cls, replay: Replay, index: int, kind: Unknown, like: Array) -> _Member:
        """Return a member, with as many zero rows added as the matrix has columns, where these change no message."""
        rows, width = replay.sizes[index], like.shape[1] - (kind == "distances")
        member = cls(replay, index, GramFactor.of(kind, rows, like))
        tried = replay.likely(np.random.default_rng(0))[:rows]
        padded = np.concatenate([tried, np.zeros((max(width - rows, 0), like.shape[1]))])
        for scale in (1.0, float(np.sqrt(width / rows))) if rows < width else ():
            if member.apart(tried, scale * padded) <= _SAME:
                return cls(replay, index, GramFactor.of(kind, width, like), scale)
        return member

    def apart(self, rows: Array, others: Array) -> float:
        """Return how far apart the messages of two sets of rows are, in units; infinite where the step fails."""
        try:
            ends = [self.replay.alone(self.index, self.replay.member_data(self.index, one)) for one in (rows, others)]
        except (SecureFedError, ArithmeticError, ValueError):
            self.replay.check_budget()
            return float("inf")
        return float(np.linalg.norm((ends[0] - ends[1]) / self.replay.units.unit))

    def likely(self, rng: np.random.Generator, *, whole: bool, lift: float = 0.0) -> Array:
        """Return coordinates of rows like the prior's: of all, scaled to the member's number, or of some of them.

        Args:
            rng: source of the choice of rows.
            whole: whether to take all.
            lift: multiple of the identity that is added, in units of the mean eigenvalue.
        """
        size, prior = self.replay.sizes[self.index], self.replay.prior
        if prior is None:
            rows = self.replay.sample(rng)[:size]
        else:
            rows = prior * np.sqrt(size / len(prior)) if whole else prior[rng.choice(len(prior), size)]
        added = np.sqrt(lift * np.mean(rows**2) * len(rows)) * np.eye(rows.shape[1])
        return self.unknown.coordinates(np.concatenate([rows, added]))

    def preferred(self, upper: Array) -> Array:
        """Return the matrix to which open directions move: the nearest that the rows can have, or the prior's."""
        if self.replay.sizes[self.index] < self.unknown.basis.shape[1]:
            nearest = self.nearest(upper, self.replay.sizes[self.index])
            return np.asarray(_upper(self.unknown.value(nearest)))
        return np.asarray(_upper(self.unknown.value(self.likely(np.random.default_rng(0), whole=True))))

    def nearest(self, upper: Array, rank: int | None = None) -> Array:
        """Return the coordinates of the nearest matrix of so many rows, given the upper triangle of one."""
        features = self.replay.features
        matrix = np.zeros((features, features))
        matrix[np.triu_indices(features)] = upper
        matrix = matrix + np.triu(matrix, 1).T
        if self.unknown.kind == "distances":
            centre = np.eye(features) - 1 / features
            matrix = -centre @ matrix @ centre / 2
        values, vectors = np.linalg.eigh(matrix)
        rows = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        return self.unknown.coordinates(rows if rank is None else rows[-rank:])


def _upper(matrix: Any) -> Any:
    """Return the upper triangle of a symmetric matrix as a vector, an array or a `DualArray`."""
    return matrix[np.triu_indices(len(matrix))]
