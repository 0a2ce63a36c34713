"""Find the most likely distances behind messages with clipping or noise, under a prior of public facts.

    z_ie / N_i = level (1 + LEVEL g + SHARED a_e + OWN b_ie),   g, a, b standard normal:

one level, known up to a factor; edges differ from it, and clients differ from each other by less. The objective

    ||(simulated - observed) / noise||^2 + ||(g, a, b)||^2

leads to the exact distances for small noise, and to the level alone for large noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._fitting.levenberg_marquardt import StallLimit, levenberg_marquardt

_LEVEL, _SHARED, _OWN = 0.4, 0.3, 0.1
"""Standard deviations of the prior, relative to the level."""
_LADDER = (1.0, 0.1, 1e-2)
"""Assumed noise of the first searches, relative to the messages, if the true noise is smaller: each starts the next."""
_LEAST = 1e-9
"""Smallest noise, relative to the messages: the round-off of the simulation."""
_GOAL = 1e-3
_QUICK, _SLOW = StallLimit(0.0, far=4), StallLimit(0.0)
_PUSH = 0.3
"""Size of the random difference between clients at the second start, relative to the distances."""


@dataclass(frozen=True)
class DistancePrior:
    """Prior of the distances from public facts.

    Attributes:
        level: mean of all distances.
        members: number of members.
        edges: number of distances of each member.
    """

    level: float
    members: int
    edges: int

    @classmethod
    def of(cls, system: GraphSimulation) -> DistancePrior:
        """Take the level of rows that are uniform on their public range, or the stationary level if that is less.

        The stationary level leaves the first graph as it is; hyper-parameters are chosen for data whose graphs grow.
        """
        uniform, stationary = 2 / 3 * system.public.feature_bound**2, float(system.stationary.mean())
        return cls(min(uniform, stationary) if stationary > 0 else uniform, len(system.members), system.edges)

    @property
    def unknowns(self) -> int:
        """Number of entries of (g, a, b)."""
        return 1 + self.edges + self.members * self.edges

    def __call__(self, point: Array) -> Array:
        """Return the distances (members, edges) at (g, a, b)."""
        shared, own = point[1 : 1 + self.edges], point[1 + self.edges :].reshape(self.members, self.edges)
        return np.asarray(self.level * (1 + _LEVEL * point[0] + _SHARED * shared + _OWN * own))

    def slope(self, jacobian: Array) -> Array:
        """Return the Jacobian by (g, a, b), given the one by the distances, (equations, members * edges)."""
        shared = jacobian.reshape(-1, self.members, self.edges).sum(axis=1)
        level = shared.sum(axis=1, keepdims=True)
        return np.asarray(self.level * np.hstack([_LEVEL * level, _SHARED * shared, _OWN * jacobian]))

    def point(self, distances: Array) -> Array:
        """Return the most likely (g, a, b) that gives the distances (members, edges)."""
        apart = distances / self.level - 1
        mean, edge = apart.mean(), apart.mean(axis=0)
        each = _SHARED**2 + _OWN**2 / self.members  # variance of an edge's mean, the level known
        level = mean * _LEVEL**2 / (_LEVEL**2 + each / self.edges)
        shared = (edge - level) * _SHARED**2 / each
        own = apart - level - shared
        return np.concatenate([[level / _LEVEL], shared / _SHARED, own.ravel() / _OWN])


@dataclass(frozen=True)
class PosteriorMode:
    """The most likely distances that a search found.

    Attributes:
        distances: (members, edges).
        objective: twice the negative log posterior, up to a constant.
        chi_square: ||(simulated - observed) / noise||^2, about `equations` if the noise explains the difference.
        equations: number of entries in the messages.
    """

    distances: Array
    objective: float
    chi_square: float
    equations: int

    def report(self) -> dict[str, float | bool]:
        """Return diagnostics: whether the noise explains the difference, to five standard deviations of its square."""
        most = self.equations + 5 * np.sqrt(2 * self.equations)
        return {"residual": self.chi_square / self.equations, "explained": bool(self.chi_square <= most)}


def posterior_mode(
    system: GraphSimulation, rng: np.random.Generator, steps: int, others: Sequence[Array] = ()
) -> PosteriorMode:
    """Search from equal clients, then from clients that differ at random.

    Args:
        system: the observed rounds.
        rng: generator of the random differences.
        steps: largest number of Jacobians at each size of the noise.
        others: further starts, (members, edges) each.
    """
    prior, stages = DistancePrior.of(system), _noises(system)
    best = _search(system, prior, np.zeros(prior.unknowns), stages, steps, _QUICK, grow=True)
    starts = [(start, stages[-1:], _SLOW) for start in others]
    if prior.members > 1:
        apart = rng.normal(size=best.distances.shape)
        starts.append((best.distances * (1 + _PUSH * (apart - apart.mean(axis=0))), stages[-2:], _QUICK))
    for start, last, patience in starts:
        other = _search(system, prior, prior.point(start), last, steps, patience)
        if other.objective < best.objective:
            best = other
    return best


def _noises(system: GraphSimulation) -> list[list[Array]]:
    """Return sizes of the noise from large to true, (size,) for each round."""
    sizes = [max(float(np.linalg.norm(seen.total)) / np.sqrt(seen.total.size), 1e-300) for seen in system.rounds]
    true = [np.maximum(seen.noise, _LEAST * size) for seen, size in zip(system.rounds, sizes, strict=True)]
    out = []
    for share in _LADDER:
        raised = [np.maximum(noise, share * size) for noise, size in zip(true, sizes, strict=True)]
        if any((larger > noise).any() for larger, noise in zip(raised, true, strict=True)):
            out.append(raised)
    return [*out, true]


def _search(
    system: GraphSimulation,
    prior: DistancePrior,
    point: Array,
    stages: list[list[Array]],
    steps: int,
    patience: StallLimit,
    *,
    grow: bool = False,
) -> PosteriorMode:
    """Search from one point, with less and less noise; with `grow`, in fewer rounds at first."""
    for index, noise in enumerate(stages):
        last = index == len(stages) - 1
        part = system.first(index + 1) if grow and not last else system

        def residual(p: Array, part: GraphSimulation = part, noise: list[Array] = noise) -> Array:
            apart, _ = part.residual_and_jacobian(prior(p), slope=False, units=noise[: len(part.rounds)])
            return np.concatenate([apart, p])

        def linearised(p: Array, part: GraphSimulation = part, noise: list[Array] = noise) -> tuple[Array, Array]:
            apart, jacobian = part.residual_and_jacobian(prior(p), units=noise[: len(part.rounds)])
            return np.concatenate([apart, p]), np.vstack([prior.slope(jacobian), np.eye(p.size)])

        end = levenberg_marquardt(
            linearised, point, steps=steps, goal=_GOAL, residual=residual, patience=patience, least=1e-3
        )
        if np.isfinite(end.norm):
            point = end.point
    chi_square = float(np.sum(residual(point)[: -prior.unknowns] ** 2))
    equations = sum(seen.total.size for seen in system.rounds)
    return PosteriorMode(prior(point), chi_square + float(point @ point), chi_square, equations)
