"""Distances from messages that a defence clipped or noised: the likeliest under a prior of public facts.

    z_ie / N_i = level (1 + LEVEL g + SHARED a_e + OWN b_ie),   g, a, b standard normal:

one level, known up to a factor; edges apart from it, clients apart from each other by less. What is minimised,

    ||(simulated - seen) / noise||^2 + ||(g, a, b)||^2,

has the exact distances as its limit for small noise, and the level alone for large noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed.attacks.distances.system import System
from securefed.attacks.levenberg import Patience, levenberg
from securefed.tensors import Array

_LEVEL, _SHARED, _OWN = 0.4, 0.3, 0.1
"""Spreads, relative to the level."""
_LADDER = (1.0, 0.1, 1e-2)
"""Noise to begin with, relative to the messages, where the true one is smaller: the search follows from the guess."""
_LEAST = 1e-9
"""Noise that the simulation's own round-off stands for, relative to the messages."""
_GOAL = 1e-3
_QUICK, _PATIENT = Patience(0.0, far=4), Patience(0.0)
_PUSH = 0.3
"""How far apart from each other, relative to the distances, clients begin that are told apart."""


@dataclass(frozen=True)
class Prior:
    """What is known before any message.

    Attributes:
        level: of all distances.      members, edges: how many there are of each.
    """

    level: float
    members: int
    edges: int

    @classmethod
    def of(cls, system: System) -> Prior:
        """The level is that of rows spread evenly over their public range, or what leaves the first graph where it is,
        if that is less: hyper-parameters are made for data under which graphs grow."""
        even, still = 2 / 3 * system.public.feature_bound**2, float(system.still.mean())
        return cls(min(even, still) if still > 0 else even, len(system.members), system.edges)

    @property
    def unknowns(self) -> int:
        return 1 + self.edges + self.members * self.edges

    def __call__(self, point: Array) -> Array:
        """(members, edges) distances at (g, a, b)."""
        shared, own = point[1 : 1 + self.edges], point[1 + self.edges :].reshape(self.members, self.edges)
        return np.asarray(self.level * (1 + _LEVEL * point[0] + _SHARED * shared + _OWN * own))

    def slope(self, jacobian: Array) -> Array:
        """(equations, unknowns) from (equations, members * edges): the chain rule."""
        shared = jacobian.reshape(-1, self.members, self.edges).sum(axis=1)
        level = shared.sum(axis=1, keepdims=True)
        return np.asarray(self.level * np.hstack([_LEVEL * level, _SHARED * shared, _OWN * jacobian]))

    def point(self, distances: Array) -> Array:
        """(g, a, b) of distances (members, edges): of all, the likeliest."""
        apart = distances / self.level - 1
        mean, edge = apart.mean(), apart.mean(axis=0)
        each = _SHARED**2 + _OWN**2 / self.members  # variance of an edge's mean, the level known
        level = mean * _LEVEL**2 / (_LEVEL**2 + each / self.edges)
        shared = (edge - level) * _SHARED**2 / each
        own = apart - level - shared
        return np.concatenate([[level / _LEVEL], shared / _SHARED, own.ravel() / _OWN])


@dataclass(frozen=True)
class Likely:
    """Where the search ended.

    Attributes:
        distances: (members, edges).      objective: twice the negative log posterior, up to a constant.
        misfit: ||(simulated - seen) / noise||^2, about `equations` where the noise explains it.
        equations: numbers in the messages.
    """

    distances: Array
    objective: float
    misfit: float
    equations: int

    def told(self) -> dict[str, float | bool]:
        """For a report: whether the noise explains the rest, to five standard deviations of its square."""
        most = self.equations + 5 * np.sqrt(2 * self.equations)
        return {"misfit": self.misfit / self.equations, "explained": bool(self.misfit <= most)}


def likeliest(system: System, rng: np.random.Generator, steps: int, others: Sequence[Array] = ()) -> Likely:
    """Search from equal clients, then apart from each other.

    Args:
        steps: most Jacobians at each size of the noise.      others: (members, edges), further places to begin at.
    """
    prior, stages = Prior.of(system), _noises(system)
    best = _search(system, prior, np.zeros(prior.unknowns), stages, steps, _QUICK, grow=True)
    starts = [(start, stages[-1:], _PATIENT) for start in others]
    if prior.members > 1:
        apart = rng.normal(size=best.distances.shape)
        starts.append((best.distances * (1 + _PUSH * (apart - apart.mean(axis=0))), stages[-2:], _QUICK))
    for start, last, patience in starts:
        other = _search(system, prior, prior.point(start), last, steps, patience)
        if other.objective < best.objective:
            best = other
    return best


def _noises(system: System) -> list[list[Array]]:
    """From large to the true noise: (size,) of every round."""
    sizes = [max(float(np.linalg.norm(seen.total)) / np.sqrt(seen.total.size), 1e-300) for seen in system.rounds]
    true = [np.maximum(seen.noise, _LEAST * size) for seen, size in zip(system.rounds, sizes, strict=True)]
    out = []
    for share in _LADDER:
        raised = [np.maximum(noise, share * size) for noise, size in zip(true, sizes, strict=True)]
        if any((larger > noise).any() for larger, noise in zip(raised, true, strict=True)):
            out.append(raised)
    return [*out, true]


def _search(
    system: System,
    prior: Prior,
    point: Array,
    stages: list[list[Array]],
    steps: int,
    patience: Patience,
    *,
    grow: bool = False,
) -> Likely:
    """From one point, at less and less noise; with `grow` at first in fewer rounds."""
    for index, noise in enumerate(stages):
        last = index == len(stages) - 1
        part = system.first(index + 1) if grow and not last else system

        def residual(p: Array, part: System = part, noise: list[Array] = noise) -> Array:
            apart, _ = part.misfit(prior(p), slope=False, units=noise[: len(part.rounds)])
            return np.concatenate([apart, p])

        def linearised(p: Array, part: System = part, noise: list[Array] = noise) -> tuple[Array, Array]:
            apart, jacobian = part.misfit(prior(p), units=noise[: len(part.rounds)])
            return np.concatenate([apart, p]), np.vstack([prior.slope(jacobian), np.eye(p.size)])

        end = levenberg(linearised, point, steps=steps, goal=_GOAL, residual=residual, patience=patience, least=1e-3)
        if np.isfinite(end.norm):
            point = end.point
    misfit = float(np.sum(residual(point)[: -prior.unknowns] ** 2))
    equations = sum(seen.total.size for seen in system.rounds)
    return Likely(prior(point), misfit + float(point @ point), misfit, equations)
