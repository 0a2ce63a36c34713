"""Find the most likely distances behind clipped or noised messages of graph learning, under a prior of public facts.

`distance_fit` calls this where a defence clipped messages or added noise. Clients learn a graph whose vertices are the
columns (signals) of their rows, and its edges e all pairs of vertices. In a round each client sends edge weights that a
few gradient steps on its data gave; the attacker observes the sums over the members. The unknowns are z_ie / N_i, the
squared distance between client i's signals at the ends of edge e over its number of rows: they alone determine the
client's messages, which `GraphSimulation` computes from them (simulated, below). The prior is

    z_ie / N_i = level (1 + _LEVEL g + _SHARED a_e + _OWN b_ie),   g, a_e, b_ie independent standard normal:

all distances have about one level, known up to a factor; edges differ from it, and clients differ from each other by
less. Levenberg-Marquardt minimises

    ||(simulated - observed) / noise||^2 + ||(g, a, b)||^2,    twice the negative log-posterior up to a constant.

The minimum is at the exact distances for small noise, and at the level alone for large noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._engine.fit import Prior, SearchLimits, fit
from securefed.attacks._fitting.levenberg_marquardt import StallLimit

_LEVEL, _SHARED, _OWN = 0.4, 0.3, 0.1
"""Standard deviations of the prior, relative to the level: of all distances together, of an edge in all clients, of an
edge in one client.
"""
_ASSUMED_NOISES = (1.0, 0.1, 1e-2)
"""Noise that the first searches assume, relative to the messages, where the stated noise is smaller. Under large noise
the prior dominates and the search is easy; each result starts the next search.
"""
_LEAST_NOISE = 1e-9
"""Smallest noise, relative to the messages: the round-off of the simulation."""
_GOAL = 1e-3
"""Root of the objective at which a search stops; with noise it stays far above, so that the other limits decide."""
_QUICK, _SLOW = StallLimit(0.0, far=4), StallLimit(0.0)
"""Jacobians within which the root of the objective must halve: 4, or 12 (the default) from the caller's `others`, which
are fits already and improve slowly."""
_LEAST_DECREASE = 1e-3
"""Relative decrease of the root of the objective below which a step is the last: with noise it does not fall to 0."""
_MEMBER_DIFFERENCE = 0.3
"""Size of the random difference between clients at the second start, relative to the distances. At equal clients the
derivatives of all clients are the same, so that a search cannot separate them.
"""


@dataclass(frozen=True)
class DistancePrior:
    """Prior of the distances from public facts. A point is the vector (g, a, b), with b one member after the other.

    Attributes:
        level: prior mean of all z_ie / N_i.
        members: number of members.
        edges: number of distances of each member.
    """

    level: float
    members: int
    edges: int

    @classmethod
    def of(cls, system: GraphSimulation) -> DistancePrior:
        """Take the level of rows that are uniform on their public range, or the stationary level if that is smaller.

        Two independent numbers uniform in [-b, b] have the mean squared difference 2/3 b^2. The stationary level is the
        distance at which the first gradient step leaves the starting graph as it is. Data are usually below it, since
        hyper-parameters are chosen such that graphs grow from the start.
        """
        uniform, stationary = 2 / 3 * system.public.feature_bound**2, float(system.stationary.mean())
        return cls(min(uniform, stationary) if stationary > 0 else uniform, len(system.members), system.edges)

    @property
    def unknowns(self) -> int:
        """Number of entries of (g, a, b)."""
        return 1 + self.edges + self.members * self.edges

    def __call__(self, point: Array) -> Array:
        """Return the distances (members, edges) at (g, a, b)."""
        shared, of_members = point[1 : 1 + self.edges], point[1 + self.edges :].reshape(self.members, self.edges)
        return np.asarray(self.level * (1 + _LEVEL * point[0] + _SHARED * shared + _OWN * of_members))

    def slope(self, jacobian: Array) -> Array:
        """Return the Jacobian by (g, a, b), given the one by the distances, (equations, members * edges).

        a_e moves the distances of edge e of all members, and g all distances.
        """
        shared = jacobian.reshape(-1, self.members, self.edges).sum(axis=1)
        level = shared.sum(axis=1, keepdims=True)
        return np.asarray(self.level * np.hstack([_LEVEL * level, _SHARED * shared, _OWN * jacobian]))

    def point(self, distances: Array) -> Array:
        """Return the most likely (g, a, b) that gives the distances (members, edges).

        The effect of g is the mean of all deviations from the level, that of a_e the mean of edge e's deviations less
        the effect of g, each times its prior variance over the variance of that mean (the posterior mean of a random
        effect); what they leave is the effect of b.
        """
        deviation = distances / self.level - 1
        mean, edge = deviation.mean(), deviation.mean(axis=0)
        edge_variance = _SHARED**2 + _OWN**2 / self.members  # of an edge's mean deviation, given g
        level = mean * _LEVEL**2 / (_LEVEL**2 + edge_variance / self.edges)
        shared = (edge - level) * _SHARED**2 / edge_variance
        of_members = deviation - level - shared
        return np.concatenate([[level / _LEVEL], shared / _SHARED, of_members.ravel() / _OWN])


@dataclass(frozen=True)
class PosteriorMode:
    """The most likely distances that a search found.

    Attributes:
        distances: those of all members, flat.
        objective: twice the negative log posterior, up to a constant.
        chi_square: ||(simulated - observed) / noise||^2, about `equations` if the noise explains the difference.
        equations: number of entries in the messages.
    """

    distances: Array
    objective: float
    chi_square: float
    equations: int

    def report(self) -> dict[str, float | bool]:
        """Return diagnostics: chi square per equation, and whether the noise explains the difference."""
        limit = self.equations + 5 * np.sqrt(2 * self.equations)  # mean of chi square, and five standard deviations
        return {"residual": self.chi_square / self.equations, "explained": bool(self.chi_square <= limit)}


def posterior_mode(
    system: GraphSimulation, rng: np.random.Generator, steps: int, others: Sequence[Array] = ()
) -> PosteriorMode:
    """Search from equal clients, then from `others`, then from clients that differ at random; return the best end.

    Args:
        system: the observed rounds.
        rng: generator of the random differences.
        steps: largest number of Jacobians of a search, at each assumed noise.
        others: further starts, the distances of all members, flat.
    """
    prior, noises = DistancePrior.of(system), _noises(system)
    quick, slow = (SearchLimits(steps, _GOAL, patience, _LEAST_DECREASE, curved=False) for patience in (_QUICK, _SLOW))
    best = _search(system, prior, np.zeros(prior.unknowns), noises, quick, grow=True)
    starts = [(start, noises[-1:], slow) for start in others]
    if prior.members > 1:
        difference = rng.normal(size=(prior.members, prior.edges))
        difference = 1 + _MEMBER_DIFFERENCE * (difference - difference.mean(axis=0))
        starts.append((best.distances * difference.ravel(), noises[-2:], quick))
    for start, last_noises, search in starts:
        point = prior.point(start.reshape(prior.members, -1))
        other = _search(system, prior, point, last_noises, search)
        if other.objective < best.objective:
            best = other
    return best


def _noises(system: GraphSimulation) -> list[Array]:
    """Return the noise that each search in turn assumes for each equation, from large to the stated one."""
    sizes = system.spread(
        [max(float(np.linalg.norm(round_.total)) / np.sqrt(round_.total.size), 1e-300) for round_ in system.rounds]
    )  # root mean square of the entries of each message
    stated = np.maximum(system.noise, _LEAST_NOISE * sizes)
    raised = [np.maximum(stated, assumed * sizes) for assumed in _ASSUMED_NOISES]
    return [*(noise for noise in raised if (noise > stated).any()), stated]


@dataclass(frozen=True)
class _Simulation:
    """The messages as a function of (g, a, b); a `Simulation`.

    Attributes:
        system: the observed rounds.
        prior: prior of the distances.
    """

    system: GraphSimulation
    prior: DistancePrior

    @property
    def count(self) -> int:
        """Return the number of entries of (g, a, b)."""
        return self.prior.unknowns

    @property
    def determined(self) -> int:
        """Return the number of distances."""
        return self.system.count

    def sent(self, x: Array) -> Array:
        """Return the sums of all rounds, flat."""
        return self.system.sent(self.prior(x).ravel())

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """Return `sent` and its derivative."""
        sent, tangents = self.system.sent_and_tangents(self.prior(x).ravel())
        return sent, self.prior.slope(tangents)


def _search(
    system: GraphSimulation,
    prior: DistancePrior,
    point: Array,
    noises: list[Array],
    search: SearchLimits,
    *,
    grow: bool = False,
) -> PosteriorMode:
    """Search from one point with one assumed noise after the other.

    Args:
        system: the observed rounds.
        prior: prior of the distances.
        point: (g, a, b) at which the search starts.
        noises: for each search in turn the assumed noise, as `_noises` returns it.
        search: limits of each search.
        grow: whether search k uses only the first k rounds, except for the last, which uses all.
    """
    standard = Prior(np.eye(prior.unknowns))
    for index, noise in enumerate(noises, start=1):
        part = system.first(index) if grow and index < len(noises) else system
        unit = noise[: len(part.observed)]
        end = fit([_Simulation(part, prior)], part.observed, [point], search, unit, standard)
        if np.isfinite(end.residual):
            point = end.points[0]
    distances = prior(point).ravel()
    chi_square = float(np.sum(((system.sent(distances) - system.observed) / noises[-1]) ** 2))
    return PosteriorMode(distances, chi_square + float(point @ point), chi_square, len(system.observed))
