"""Choose the points at which a search for the clients' distances behind sums of graph learning starts.

The unknowns are the members' z_i / N_i, (members, edges) (`distance_fit` has the symbols). Their mean is easy to find:
in the first round all weights gamma_i are 1 / N, since a client computes gamma_i from its last graph and has none yet,
so that the sum shows the mean of the graphs, and the pooled distances p are those of one client with this graph
(`pooled`): after one local step p is the mean of the z_i / N_i on all edges where no weight is 0, after more steps
roughly. The members' differences from p are drawn at random: equal members are a stationary point of the residual,
since to first order their messages change by amounts that sum to 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._graph.igl import IGL
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._engine.fit import SearchLimits, fit
from securefed.attacks._fitting.levenberg_marquardt import StallLimit

_DIFFERENCE = 0.3
"""Size of the random differences between members, relative to the pooled distances. At .1, .3 and .6 eight, eight and
seven of ten seeds of two members of ten vertices end exact within six starts.
"""


def starting_points(system: GraphSimulation, rng: np.random.Generator) -> Iterator[Array]:
    """Yield guesses of z / N, (members, edges), without end: p for one client, then p plus random differences.

    Args:
        system: simulation of the members in the observed rounds.
        rng: generator of the random differences.
    """
    equal_members = np.tile(pooled(system), (len(system.members), 1))
    if len(equal_members) == 1:
        yield equal_members
    while True:
        difference = rng.normal(size=equal_members.shape)
        difference -= difference.mean(axis=0) if len(difference) > 1 else 0.0
        size = _DIFFERENCE * np.linalg.norm(equal_members) / max(float(np.linalg.norm(difference)), 1e-300)
        yield equal_members + size * difference


def pooled(system: GraphSimulation) -> Array:
    """Return the mean member's z / N, (edges,), by fitting one client to the first round.

    The fit starts from the z / N that one gradient step, of the length of all local steps together, would have shown:
    w - w_0 = -step (z / N - stationary), where at z / N = stationary the first gradient is zero. IGL's messages show no
    graph; there it is the stationary z / N itself.

    The residual's unit is such that it is 1 for a member that shows nothing of its data (`GraphSimulation.signals`).
    `StallLimit(1.0)` ends a fit whose residual stays above 1 when 12 Jacobians have not halved it; below 1 the fit
    takes all 20 Jacobians, or reaches the goal.
    """
    method, first_round, stationary = system.method, system.rounds[0], system.stationary[0]
    if isinstance(method, IGL):
        return np.asarray(np.maximum(stationary, 0.0))
    # K steps with momentum xi and a constant gradient move by step_size sum_(t < K) sum_(s <= t) xi^s times it
    powers = method.momentum ** np.arange(method.local_steps)
    total_step = method.step_size * float(np.cumsum(powers).sum())
    # At stationary distances every w_i stays at `start_weight`, so that a simulated sum of PPGL, sum gamma_i w_i, is
    # start_weight times the members' total weight, the same number at each edge; `weight` is that total, (edges,). It
    # follows from public numbers, so that it need not be read from the observed sum's last entry, which may be rounded
    # or noised. The observed sum over this weight is the mean graph.
    weight = system.messages(system.stationary)[0].sum(axis=0)[: system.edges] / method.start_weight
    guess = np.maximum(
        stationary - (first_round.total[: system.edges] / weight - method.start_weight) / total_step, 0.0
    )
    member = first_round.members[:1]
    # gamma_1 / sum gamma_i: a member's part of the sum, the same for all in the first round
    share = float(system.messages(system.stationary)[0][0, 0]) / float(weight[0] * method.start_weight)
    single = replace(
        system, rounds=(replace(first_round, total=share * first_round.total, members=member),), members=member
    )
    found = fit([single], single.observed, [guess], SearchLimits(20, 1e-13, StallLimit(1.0), curved=False), single.unit)
    return found.points[0] if np.isfinite(found.residual) else guess
