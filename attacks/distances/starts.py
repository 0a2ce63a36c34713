"""Where a search for distances begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from securefed.algorithms.graph.igl import IGL
from securefed.algorithms.graph.ppgl import PPGL
from securefed.attacks.distances.system import System
from securefed.attacks.levenberg import Patience, levenberg
from securefed.tensors import Array

_SCALES = np.geomspace(0.02, 1.5, 30)
_GLANCE = 3
_SPREAD = 0.3


def starts(system: System, rng: np.random.Generator) -> Iterator[Array]:
    """(members, edges) guesses of z / N without end: the pooled ones, apart from each other in the direction in which
    a later message differs from that of equal clients; then at random.

    With z_i = p + c_i v the sum is even in v, so p is a stationary point. But PPGL's weights gamma_i differ between
    the members, and the weighted mean graph shows v up to its sign and size; the size is tried.
    """
    count, mean = len(system.members), pooled(system)
    if count == 1:
        yield mean[None]
    alike = np.tile(mean, (count, 1))
    shares = np.where(np.arange(count) % 2 == 0, 1.0, -1.0)
    shares = (shares - shares.mean())[:, None]
    if count > 1 and isinstance(system.method, PPGL):
        told = system.sent(alike)
        for place in range(1, min(3, len(system.rounds))):
            seen, expected = system.rounds[place].total, told[place].sum(axis=0)
            apart = seen[:-1] / seen[-1] - expected[:-1] / expected[-1]
            apart = shares * apart * np.linalg.norm(mean) / max(float(np.linalg.norm(apart)), 1e-300)
            glance = system.first(_GLANCE)
            guesses = [alike + size * apart for size in _SCALES]
            misfits = [np.linalg.norm(glance.misfit(guess, slope=False)[0]) for guess in guesses]
            yield guesses[int(np.argmin(np.nan_to_num(misfits, nan=np.inf)))]
    while True:
        apart = rng.normal(size=alike.shape)
        apart -= apart.mean(axis=0)
        yield alike + _SPREAD * np.linalg.norm(alike) / max(float(np.linalg.norm(apart)), 1e-300) * apart


def pooled(system: System) -> Array:
    """(edges,) the mean member's z / N: the first round as that of one client, its steps read as one, then fitted."""
    method, seen, still = system.method, system.rounds[0], system.still[0]
    if isinstance(method, IGL):
        return np.asarray(np.maximum(still, 0.0))
    powers = method.momentum ** np.arange(method.local_steps)
    length = method.step_size * float(np.cumsum(powers).sum())
    weight = system.sent(system.still)[0].sum(axis=0)[: system.edges] / method.start_weight
    guess = np.maximum(still - (seen.total[: system.edges] / weight - method.start_weight) / length, 0.0)
    one = seen.members[:1]
    own = float(system.sent(system.still)[0][0, 0]) / float(weight[0] * method.start_weight)  # its part of the sum
    alone = replace(system, rounds=(replace(seen, total=own * seen.total, members=one),), members=one)
    fit = levenberg(lambda p: alone.misfit(p[None]), guess, steps=20, goal=1e-13, patience=Patience(1.0))
    return fit.point if np.isfinite(fit.norm) else guess
