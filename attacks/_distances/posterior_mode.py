"""Find the most likely distances behind clipped or noised messages of graph learning, under a prior of public facts.

`distance_fit` calls this where a defence clipped messages or added noise. Clients learn a graph whose vertices are the
columns (signals) of their rows, and its edges e all pairs of vertices. In a round each client sends edge weights that a
few gradient steps on its data gave; the attacker observes the sums over the members. The unknowns are z_ie / N_i, the
squared distance between client i's signals at the ends of edge e over its number of rows: they alone determine the
client's messages, clips included (`GraphSimulation`). In `fit` the unit is the noise, and the prior is that of

    z_ie / N_i = level (1 + _LEVEL g + _SHARED a_e + _OWN b_ie),   g, a_e, b_ie independent standard normal:

all distances have about one level, known up to a factor; edges differ from it, and clients differ from each other by
less. The most likely point is at the exact distances for small noise, and at the level alone for large noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securefed._tensors import Array
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._engine.fit import Fit, Prior, SearchLimits, fit
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


def prior(system: GraphSimulation) -> Prior:
    """Return the prior of the distances of all members, flat.

    Its level is that of rows that are uniform on their public range, or the stationary level if that is smaller. Two
    independent numbers uniform in [-b, b] have the mean squared difference 2/3 b^2. The stationary level is the
    distance at which the first gradient step leaves the starting graph as it is. Data are usually below it, since
    hyper-parameters are chosen such that graphs grow from the start.
    """
    uniform, stationary = 2 / 3 * system.public.feature_bound**2, float(system.stationary.mean())
    level, members = min(uniform, stationary) if stationary > 0 else uniform, len(system.members)
    same_edge = np.kron(np.ones((members, members)), np.eye(system.edges))
    covariance = _LEVEL**2 + _SHARED**2 * same_edge + _OWN**2 * np.eye(system.count)
    return Prior(np.linalg.inv(level * np.linalg.cholesky(covariance)), level)


def posterior_mode(
    system: GraphSimulation, rng: np.random.Generator, steps: int, others: Sequence[Array] = ()
) -> tuple[Array, dict[str, float | bool]]:
    """Search from equal clients, then from `others`, then from clients that differ at random; return the best end.

    Args:
        system: the observed rounds.
        rng: generator of the random differences.
        steps: largest number of Jacobians of a search, at each assumed noise.
        others: further starts, the distances of all members, flat.

    Returns:
        The most likely distances of all members, flat; and diagnostics: ||(simulated - observed) / noise||^2 (chi
        square) over the number of equations, and whether the noise explains the difference.
    """
    believed, noises, members = prior(system), _noises(system), len(system.members)
    quick, slow = (SearchLimits(steps, _GOAL, patience, _LEAST_DECREASE, curved=False) for patience in (_QUICK, _SLOW))
    best = _search(system, believed, np.full(system.count, believed.mean), noises, quick, grow=True)
    starts = [(start, noises[-1:], slow) for start in others]
    if members > 1:
        difference = rng.normal(size=(members, system.edges))
        difference = 1 + _MEMBER_DIFFERENCE * (difference - difference.mean(axis=0))
        starts.append((best.points[0] * difference.ravel(), noises[-2:], quick))
    for start, last_noises, search in starts:
        other = _search(system, believed, start, last_noises, search)
        best = other if other.residual < best.residual else best
    chi_square = best.residual**2 - float(np.sum((believed.root @ (best.points[0] - believed.mean)) ** 2))
    count = len(system.observed)
    limit = count + 5 * np.sqrt(2 * count)  # mean of chi square, and five standard deviations
    return best.points[0], {"residual": chi_square / count, "explained": bool(chi_square <= limit)}


def _noises(system: GraphSimulation) -> list[Array]:
    """Return the noise that each search in turn assumes for each equation, from large to the stated one."""
    sizes = system.spread(
        [max(float(np.linalg.norm(round_.total)) / np.sqrt(round_.total.size), 1e-300) for round_ in system.rounds]
    )  # root mean square of the entries of each message
    stated = np.maximum(system.noise, _LEAST_NOISE * sizes)
    raised = [np.maximum(stated, assumed * sizes) for assumed in _ASSUMED_NOISES]
    return [*(noise for noise in raised if (noise > stated).any()), stated]


def _search(
    system: GraphSimulation, believed: Prior, point: Array, noises: list[Array], search: SearchLimits, *,
    grow: bool = False,
) -> Fit:  # fmt: skip
    """Search from one point with one assumed noise after the other; return the end at the last.

    Args:
        system: the observed rounds.
        believed: prior of the distances.
        point: distances of all members, flat, at which the search starts.
        noises: for each search in turn the assumed noise, as `_noises` returns it.
        search: limits of each search.
        grow: whether search k uses only the first k rounds, except for the last, which uses all.
    """
    for index, noise in enumerate(noises, start=1):
        part = system.first(index) if grow and index < len(noises) else system
        end = fit([part], part.observed, [point], search, noise[: len(part.observed)], believed)
        point = end.points[0] if np.isfinite(end.residual) else point
    return end
