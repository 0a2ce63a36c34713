"""Choose the points at which a search for distances starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._graph.igl import IGL
from securefed.algorithms._graph.ppgl import PPGL
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._fitting.levenberg_marquardt import StallLimit, levenberg_marquardt

_SCALES = np.geomspace(0.02, 1.5, 30)
"""Sizes of the difference between members that are tried, relative to the pooled distances."""
_TRIED_ROUNDS = 3
"""Rounds by which the sizes are compared."""
_SPREAD = 0.3
"""Size of a random difference between members, relative to the pooled distances."""


def starting_points(system: GraphSimulation, rng: np.random.Generator) -> Iterator[Array]:
    """Yield guesses of z / N, (members, edges), without end.

    The first guesses are the pooled distances, with members apart in the direction in which a later message differs
    from that of equal clients. All others are apart in random directions.

    With z_i = p + c_i v the sum is even in v, so p is a stationary point. But PPGL's weights gamma_i differ between
    the members, and the weighted mean graph shows v up to its sign and size; several sizes are tried.
    """
    count, mean = len(system.members), pooled(system)
    if count == 1:
        yield mean[None]
    alike = np.tile(mean, (count, 1))
    shares = np.where(np.arange(count) % 2 == 0, 1.0, -1.0)
    shares = (shares - shares.mean())[:, None]
    if count > 1 and isinstance(system.method, PPGL):
        equal = system.sent(alike)
        for place in range(1, min(3, len(system.rounds))):
            seen, expected = system.rounds[place].total, equal[place].sum(axis=0)
            apart = seen[:-1] / seen[-1] - expected[:-1] / expected[-1]
            apart = shares * apart * np.linalg.norm(mean) / max(float(np.linalg.norm(apart)), 1e-300)
            early = system.first(_TRIED_ROUNDS)
            guesses = [alike + size * apart for size in _SCALES]
            residuals = [np.linalg.norm(early.residual_and_jacobian(guess, slope=False)[0]) for guess in guesses]
            yield guesses[int(np.argmin(np.nan_to_num(residuals, nan=np.inf)))]
    while True:
        apart = rng.normal(size=alike.shape)
        apart -= apart.mean(axis=0)
        yield alike + _SPREAD * np.linalg.norm(alike) / max(float(np.linalg.norm(apart)), 1e-300) * apart


def pooled(system: GraphSimulation) -> Array:
    """Return the mean member's z / N, (edges,), by fitting one client to the first round, from a single-step guess."""
    method, seen, stationary = system.method, system.rounds[0], system.stationary[0]
    if isinstance(method, IGL):
        return np.asarray(np.maximum(stationary, 0.0))
    powers = method.momentum ** np.arange(method.local_steps)
    length = method.step_size * float(np.cumsum(powers).sum())
    weight = system.sent(system.stationary)[0].sum(axis=0)[: system.edges] / method.start_weight
    guess = np.maximum(stationary - (seen.total[: system.edges] / weight - method.start_weight) / length, 0.0)
    one = seen.members[:1]
    own = float(system.sent(system.stationary)[0][0, 0]) / float(weight[0] * method.start_weight)  # its part of the sum
    alone = replace(system, rounds=(replace(seen, total=own * seen.total, members=one),), members=one)
    fit = levenberg_marquardt(
        lambda p: alone.residual_and_jacobian(p[None]), guess, steps=20, goal=1e-13, patience=StallLimit(1.0)
    )
    return fit.point if np.isfinite(fit.norm) else guess
