"""Choose the points at which a search for the clients' distances behind sums of graph learning starts.

`distance_fit` fits from one point of `starting_points` after the other. Clients learn a graph whose vertices are the
columns of their rows. Client i, with N_i rows, computes the weights w_i of the edges (pairs of vertices) from
z_i / N_i alone, z_i being the squared distances between the columns of each edge. In PPGL it sends
[gamma_i w_i, gamma_i] with a weight gamma_i that falls with the distance of w_i from the broadcast consensus graph; in
IGL it sends only its objective, one number. The attacker observes sums over the members, the clients whose sum a
message is. The unknowns are the members' z_i / N_i, (members, edges).

Their mean is easy to find. In the first round all gamma_i are equal, so that the sum shows the mean of the graphs. The
pooled distances p are those of one client with this graph (`pooled`): after one local step p is the mean of the
z_i / N_i on all edges where no weight is 0, after more steps roughly.

The members' differences from p must be guessed, since a search cannot begin with equal members. Let
z_i / N_i = p + c_i v, with numbers c_i that sum to 0. To first order in v member i's message m changes by c_i dm/dp v,
and these changes cancel in the sum: v = 0 is a stationary point of the residual.

The second order does not cancel. From PPGL's second round on the gamma_i differ. With w(p) and gamma(p) the graph and
the weight in that round of a client with the distances p, and derivatives d by these,

    sum gamma_i w_i / sum gamma_i - w(p) = mean_i c_i^2 [(d log gamma . v) dw . v + w''(v, v) / 2] + higher orders.

The attacker can compute the left side. The first term on the right is a multiple of dw . v, and after one local step dw
is a negative multiple of the identity on edges of positive weight: it points along v or against it (v and -v have the
same second order). So the left side serves as a guess of v. The second term makes it inexact: measured in the second
round, its size was a third of the first term's with one local step a round, and six times the first term's with five.
"""

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
"""Sizes of the difference between members that are tried, relative to the pooled distances; the residual decides.

The opposite difference is not tried. With an even number of members, all in the same rounds, it is the same start with
the members exchanged. With an odd number it is another start: of 6 runs of three members at one local step 3 ended
exact from the opposite of the first guess, and 4 from the first guess."""
_COMPARED_ROUNDS = 3
"""First rounds whose residual decides on the size. The second round is the first one that shows a difference."""
_RANDOM_DIFFERENCE = 0.3
"""Size of a random difference between members, relative to the pooled distances."""


def starting_points(system: GraphSimulation, rng: np.random.Generator) -> Iterator[Array]:
    """Yield guesses of z / N, (members, edges), without end.

    One client starts at p. For several clients of PPGL the first guess takes as v the observed weighted mean graph of
    the second round, sum gamma_i w_i / sum gamma_i, less that of equal members, and the second guess takes it from the
    third round. Each has the size in `_SCALES` whose simulated first rounds have the smallest residual. All further
    guesses take random differences.

    Measured with 7 vertices: the |cosine| between v from the second round and the true main difference had medians
    over 8 runs of .97, .87 and .93 for 2, 3 and 4 members that make one local step a round, and of about .5 for five
    steps (a random direction: .2). Fits did not gain by it there. For one local step 7 of 8 runs of 2 members ended
    exact from either guess, and from either of two random differences; of 6 runs of 3 members 4 and 3 from the guesses,
    3 and 4 from random differences. For five local steps none did, from any start.

    The true c_i are unknown. +1, -1, ... less their mean is right for two members. With three or more, members of the
    same sign start equal, and only round-off separates them, which a search amplifies (in 3 of 3 runs of three
    members). Random differences separate all members from the start.

    Args:
        system: simulation of the members in the observed rounds.
        rng: generator of the random differences.
    """
    count, mean = len(system.members), pooled(system)
    if count == 1:
        yield mean[None]
    equal_members = np.tile(mean, (count, 1))
    # the c_i: +1 and -1 in turn, less their mean; for three members 2/3, -4/3 and 2/3
    shares = np.where(np.arange(count) % 2 == 0, 1.0, -1.0)
    shares = (shares - shares.mean())[:, None]
    if count > 1 and isinstance(system.method, PPGL):
        sent_if_equal = system.sent(equal_members)
        for index in range(1, min(3, len(system.rounds))):
            # PPGL's sums: entries [:-1] are sum gamma_i w_i, and entry [-1] is sum gamma_i
            observed, expected = system.rounds[index].total, sent_if_equal[index].sum(axis=0)
            difference = observed[:-1] / observed[-1] - expected[:-1] / expected[-1]
            difference = shares * difference * np.linalg.norm(mean) / max(float(np.linalg.norm(difference)), 1e-300)
            early = system.first(_COMPARED_ROUNDS)
            guesses = [equal_members + size * difference for size in _SCALES]
            residuals = [np.linalg.norm(early.residual_and_jacobian(guess, slope=False)[0]) for guess in guesses]
            yield guesses[int(np.argmin(np.nan_to_num(residuals, nan=np.inf)))]
    while True:
        difference = rng.normal(size=equal_members.shape)
        difference -= difference.mean(axis=0)
        size = _RANDOM_DIFFERENCE * np.linalg.norm(equal_members) / max(float(np.linalg.norm(difference)), 1e-300)
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
    # start_weight times the members' total weight, the same number at each edge. The observed sum over this weight is
    # the mean graph.
    weight = system.sent(system.stationary)[0].sum(axis=0)[: system.edges] / method.start_weight
    guess = np.maximum(
        stationary - (first_round.total[: system.edges] / weight - method.start_weight) / total_step, 0.0
    )
    member = first_round.members[:1]
    # gamma_1 / sum gamma_i: a member's part of the sum, the same for all in the first round
    share = float(system.sent(system.stationary)[0][0, 0]) / float(weight[0] * method.start_weight)
    single = replace(
        system, rounds=(replace(first_round, total=share * first_round.total, members=member),), members=member
    )
    fit = levenberg_marquardt(
        lambda p: single.residual_and_jacobian(p[None]), guess, steps=20, goal=1e-13, patience=StallLimit(1.0)
    )
    return fit.point if np.isfinite(fit.norm) else guess
