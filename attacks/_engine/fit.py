"""Fit what clients hold to the messages that they sent, by simulating the clients, with one search and one proof.

A `Simulation` maps the coordinates x of one client's unknown (its rows, its Gram matrix, distances) to the messages
of all rounds. Where the attacker observes sums over several clients, each has a simulation and an unknown of its own.
`fit` minimises the norm of (sum of the simulated messages - observed messages) / unit over all of them, by
Levenberg-Marquardt, from one start after the other. Noise of known size is the unit; a normal prior of the coordinates
then adds rows to the residual, and the end of the search is the most likely point.

A fit is proven where it explains the messages to round-off, its Jacobian has full rank, and no direction of the
unknowns can hide a large error. Clients that do not differ in anything public may come out in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.attacks._engine.forward import DualArray
from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    LeastSquaresFit,
    NielsenDamping,
    StallLimit,
    levenberg_marquardt,
)
from securefed.errors import DivergenceError

PROOF: Final = 1e-9
"""Norm of the residual, in its unit, below which messages are explained: round-off of many rounds."""
_LARGEST_ERROR: Final = 1e-3
"""A fit is proven only where residual times condition number, which bounds the relative error along the weakest
direction to first order, is below this."""
_FULL_RANK: Final = 1e-11
"""Singular values below this share of the largest, columns scaled to unit length, count as zero."""


class Simulation(Protocol):
    """The messages of one client in all rounds, as a function of the coordinates x, (count,), of its unknown."""

    @property
    def count(self) -> int:
        """Return the number of coordinates."""
        ...

    @property
    def determined(self) -> int:
        """Return the number of directions of x on which the messages depend."""
        ...

    def sent(self, x: Array) -> Array:
        """Return the client's messages as one vector, (equations,); NaN where the simulation fails."""
        ...

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """Return `sent`, and its derivative (equations, count)."""
        ...


@dataclass(frozen=True)
class ForwardSimulation:
    """A client's own step in array operations, whose derivatives follow from running it on a `DualArray`.

    Attributes:
        step: maps x, an array or a `DualArray`, to the messages of all rounds as one vector of the same kind.
        count: number of coordinates of x.
        blind: number of directions of x on which the messages never depend.
    """

    step: Callable[[Any], Any]
    count: int
    blind: int = 0

    @property
    def determined(self) -> int:
        """Return the number of directions of x on which the messages depend."""
        return self.count - self.blind

    def sent(self, x: Array) -> Array:
        """Return the messages; a single NaN where the step fails."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return np.asarray(self.step(x))
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """Return the messages and their derivatives; NaN where the step fails."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                out = self.step(DualArray.variables(x))
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan), np.full((1, len(x)), np.nan)
        return out.value, out.slopes


@dataclass(frozen=True)
class SearchLimits:
    """Limits of a search.

    Attributes:
        jacobians: largest number of Jacobians from each start.
        goal: norm of the residual at which a search ends.
        patience: limit after which a search without progress ends; `None` for no limit.
        least: relative decrease of the norm below which a step is the last; with noise the norm does not fall to 0.
        enough: norm of the residual below which no further start is tried.
        singular: share of the Jacobian's largest singular value below which others count as zero.
        curved: whether steps are of second order, which follow curved valleys; where the messages are piecewise linear,
            damped steps end nearer to round-off, and sooner.
    """

    jacobians: int = 60
    goal: float = 1e-13
    patience: StallLimit | None = None
    least: float = 0.0
    enough: float = PROOF
    singular: float = _FULL_RANK
    curved: bool = True


@dataclass(frozen=True)
class Prior:
    """A normal prior of the coordinates x of all clients: root (x - mean) has independent standard normal entries.

    Attributes:
        root: (entries, coordinates).
        mean: (coordinates,), or 0.
    """

    root: Array
    mean: Array | float = 0.0


@dataclass(frozen=True)
class Fit:
    """The best end of a search, and how well the messages determine it.

    Attributes:
        points: coordinates of each client's unknown.
        residual: norm of the residual.
        rank: rank of the Jacobian.
        unknowns: number of directions of all unknowns on which the messages depend.
        condition: largest over smallest of the singular values that count for `rank`.
        starts: number of starts that were tried.
        jacobians: number of Jacobians of the best start's search.
        jacobian: derivative of (sum of the simulated messages) / unit; empty where it is not finite.
    """

    points: Sequence[Array]
    residual: float
    rank: int
    unknowns: int
    condition: float
    starts: int
    jacobians: int
    jacobian: Array = field(repr=False)

    @property
    def proven(self) -> bool:
        """Return whether the messages are explained, all directions determined, and none can hide a large error."""
        return self.residual < PROOF and self.rank == self.unknowns and self.residual * self.condition < _LARGEST_ERROR


@dataclass(frozen=True)
class Messages:
    """Observed messages, and the simulations of the clients whose sum they are.

    Attributes:
        clients: simulation of each client.
        observed: all messages as one vector, (equations,).
        unit: unit of the residual, a number or one for each equation.
        prior: prior of the coordinates, or `None`.
    """

    clients: Sequence[Simulation]
    observed: Array
    unit: Array | float
    prior: Prior | None = None

    def points(self, x: Array) -> list[Array]:
        """Split the coordinates of all clients into each client's."""
        return np.split(x, np.cumsum([client.count for client in self.clients])[:-1])

    def residual(self, x: Array) -> Array:
        """Return (sum of the simulated messages - observed) / unit, (equations,), and the entries of the prior."""
        sent = [client.sent(point) for client, point in zip(self.clients, self.points(x), strict=True)]
        residual = np.asarray((sum(sent) - self.observed) / self.unit)
        if self.prior is None:
            return residual
        return np.concatenate([residual, self.prior.root @ (x - self.prior.mean)])

    def linearised(self, x: Array) -> tuple[Array, Array]:
        """Return `residual` and its Jacobian, (equations, coordinates of all clients)."""
        pairs = [client.sent_and_tangents(point) for client, point in zip(self.clients, self.points(x), strict=True)]
        residual = (np.sum([sent for sent, _ in pairs], axis=0) - self.observed) / self.unit
        jacobian = np.hstack([tangents for _, tangents in pairs]) / np.reshape(self.unit, (-1, 1))
        if self.prior is None:
            return residual, jacobian
        root = self.prior.root
        return np.concatenate([residual, root @ (x - self.prior.mean)]), np.vstack([jacobian, root])


def fit(
    clients: Sequence[Simulation],
    observed: Array,
    starts: Iterable[Array],
    search: SearchLimits,
    unit: Array | float | None = None,
    prior: Prior | None = None,
) -> Fit:
    """Search from one start after the other until the messages are explained; return the best end.

    Args:
        clients: simulation of each client in the sum.
        observed: the observed messages, (equations,).
        starts: coordinates of all clients at which searches begin.
        search: limits of each search.
        unit: unit of the residual, a number or one for each equation; the norm of the messages by default.
        prior: prior of the coordinates of all clients; then the unit is the noise.
    """
    messages = Messages(clients, observed, (float(np.linalg.norm(observed)) or 1.0) if unit is None else unit, prior)
    best: LeastSquaresFit | None = None
    tried = 0
    for start in starts:
        tried += 1
        found = levenberg_marquardt(
            messages.linearised,
            start,
            steps=search.jacobians,
            goal=search.goal,
            residual=messages.residual,
            patience=search.patience,
            least=search.least,
            stepper=GeodesicAcceleration(messages.residual) if search.curved else NielsenDamping(),
        )
        best = found if best is None or found.norm < best.norm else best
        if best.norm < search.enough:
            break
    assert best is not None
    unknowns = sum(client.determined for client in clients)
    jacobian = best.jacobian[: len(observed)]
    rank, condition = jacobian_rank(jacobian, unknowns, search.singular)
    return Fit(messages.points(best.point), best.norm, rank, unknowns, condition, tried, best.steps, jacobian)


def unequal_starts(common: Array, clients: int, starts: int, rng: np.random.Generator) -> Iterator[Array]:
    """Yield points at which clients differ at random, and whose mean is that of equal clients.

    Equal clients have equal derivatives, so that a search cannot separate them: they are a saddle. The size of the
    changes is .03, .09 and .27, in turn, of the common point's, since it is not known by how much clients differ.

    Args:
        common: coordinates of a client if all are equal.
        clients: number of clients.
        starts: number of points.
        rng: source of the changes.
    """
    for k in range(starts):
        spread = 0.03 * 3.0 ** (k % 3) * float(np.linalg.norm(common)) / np.sqrt(len(common))
        moves = rng.normal(size=(clients, len(common)))
        yield (common + spread * (moves - moves.mean(axis=0))).reshape(-1)


def jacobian_rank(jacobian: Array, largest: int, singular: float = _FULL_RANK) -> tuple[int, float]:
    """Return the rank of a Jacobian, at most `largest`, and its condition number, after scaling columns to length 1.

    The condition number is over the `rank` largest singular values. Rank and condition are 0 and NaN for a Jacobian
    that is empty or zero.
    """
    if not jacobian.any():
        return 0, float("nan")
    scaled = jacobian / np.maximum(np.linalg.norm(jacobian, axis=0), 1e-300)
    s = np.linalg.svd(np.linalg.qr(scaled, mode="r") if len(scaled) > scaled.shape[1] else scaled, compute_uv=False)
    rank = min(int(np.sum(s > singular * s[0])), largest)
    return rank, float(s[0] / s[rank - 1])
