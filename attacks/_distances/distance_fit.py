"""Recover the distances between vertices' signals from the graphs that clients send while they learn them.

In graph learning a client's rows are signals on the vertices of an unknown graph, one column for each vertex. It holds
z_e, the squared distance between the signals at the two ends of edge e (a pair of vertices), summed over its N rows. In
each round it makes K projected gradient steps on its edge weights w,

    w <- max(0, v - eta [z / N - S^T(alpha / (S v + zeta)) + 4 beta v + pull (v - consensus)]),

where v is w with momentum, S v are the degrees (sums of the weights at each vertex), consensus is the graph that the
server broadcast, and eta, alpha, beta, zeta and pull are public settings. It sends w or a multiple of it: in the
algorithm PPGL gamma w and gamma, with a weight gamma that falls with the distance of w from the consensus; in the
algorithm IGL only the value of its objective. The attack knows all but z: it simulates the steps (`GraphSimulation`) as
a function of z / N of every member, the clients whose sum the attacker observes, and fits that to the observed
messages. It is registered as `distances/fit`; audits call `applies`, then `run`.

The residual of a round is (simulated - observed sum) in units of that round's signal (`GraphSimulation.signals`): the
norm of the observed sum less the sum that members would send whose distances leave the starting graph as it is. So the
signal is what the messages show of the data, and such members, who show nothing, have a residual of norm 1 in each
round. Every norm of a residual below, and every threshold on one, is in this unit, over all fitted rounds together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._graph.method import GraphMethod, edges_of
from securefed.algorithms._graph.ppgl import PPGL
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._distances.distance_completion import complete_undetermined
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._distances.posterior_mode import posterior_mode
from securefed.attacks._distances.starting_points import starting_points
from securefed.attacks._engine.fit import Fit, SearchLimits, fit
from securefed.attacks._fitting.levenberg_marquardt import StallLimit
from securefed.attacks._requirements import check_applies, too_large, why_incomplete
from securefed.errors import TranscriptError

SOLVED = 1e-10
"""Norm of the residual up to which a fit explains the messages."""
_GOAL, _ROUND_OFF = 3e-15, 1e-13
"""Norm of the residual at which a search stops; the second where messages leave some distances open: the Jacobian is
then singular, and round-off ends the search earlier."""
_LONG, _SHORT = StallLimit(0.03), StallLimit(0.03, far=5, close=5)
"""Number of Jacobians within which a search must halve its residual, or it is given up. `_LONG`: 12 while the residual
is above .03 (far), 40 below (close). `_SHORT`, where messages leave distances open: 5. There further searches follow,
and 12 in place of 5 take twice as long at 30 columns for the same errors."""
_STAGES = (1, 2, 3, 6, 14)
"""Numbers of first rounds that are fitted one after the other, for one client."""
_HOPELESS = 0.3
"""Norm of a stage's residual, over the root of the stage's number of rounds, above which a start is given up."""
_ALONE = 2
"""Largest number of starts for one client: a search from the first may end at a kink of the projections (1 of 10
scenes of 14 columns and six rounds; none of them from both). Half of it loses these; twice as many take time on nulls.
"""
_COMPLETIONS = 3
"""Largest number of completions of the undetermined distances in a stage, each after a fit."""
_SETTLED = 1e-6
"""Relative change of the distances below which a completion is the last."""
_QUIET = 0.3
"""Norm of a round's noise in units of its signal (`GraphSimulation.noise_to_signal`, the largest of all rounds), up to
which a search that ignores the noise is tried."""


@dataclass(frozen=True)
class DistanceFit:
    """Fit z_i / N_i of every member by Levenberg-Marquardt through all steps of all rounds, few rounds first.

    One client in the clear: with K = 1 a round is linear in z on the edges that stay positive, so that the first step
    of the search is exact; with K > 1 a few are needed. An edge whose weight is 0 in every message is called hidden:
    the messages only say that its distance is at least some number. With K > 1 its weight may be positive before the
    last of the K steps. It then changes the degrees of its two vertices, and so the visible edges there, which shows
    some sums over the hidden distances of a vertex. What stays open is completed (`complete_undetermined`): squared
    distances D are those of some signals only if the Gram matrix -1/2 J D J, with J = I - 1 1^T / vertices, has no
    negative eigenvalue. It maps 1 to 0; the D is taken whose Gram matrix has the largest product of the other
    eigenvalues. For Gaussian data it has the largest entropy; it is likely, not known.

    Sums: every member is simulated separately. In the first round all have the same weight, which gives the mean
    member's distances; from the second round on, the weights gamma_i tell PPGL's clients apart. The result does not say
    which of several clients with equally many rows is which. IGL sends one number a round, so that its messages
    determine few distances.

    Where all members are equal, the residual does not change to first order with the difference between them, so that a
    search cannot leave such a point; `starting_points` therefore gives members different distances. M members are
    determined by M rounds of PPGL; a fit that begins with just so many ends in wrong minima less often.

    Clipping is simulated. With noise, or where clipping leaves the distances open, the most likely distances are
    returned (`posterior_mode`), and `diagnostics["explained"]` says whether the noise is as large as was stated.

    Attributes:
        rounds: largest number of rounds that are fitted.
        starts: largest number of starts for PPGL's sums; a fit that explains them is the last.
        steps: largest number of Jacobians in a stage.
        limit: largest number of unknowns (members x edges); beyond it the attack refuses.
        memory: largest number of bytes that the simulation may take.
    """

    rounds: int = 14
    starts: int = 6
    steps: int = 100
    limit: int = 600
    memory: int = 2 * 1024**3

    name: ClassVar[str] = "distances/fit"
    secret: ClassVar[str] = "distances"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack cannot run on this view, or `None` if it can.

        Before a view is read, only the messages' size is known: allowed for are 8 float64 arrays (features, features)
        for each member and round. The arrays of the search are larger, and `_check_memory` counts them once it is read.
        """
        if not isinstance(target.algorithm, GraphMethod):
            return "It inverts steps of graph learning, and this algorithm learns none."
        features, members = target.public.features, len(observed.members)
        needed = 8 * 8 * (members + len(observed.rounds)) * features**2
        return (
            why_incomplete(observed.rounds)
            or too_large(needed, self.memory, f"The distances of {members} clients between {features} columns")
            or self._too_many(members, features)
        )

    def _too_many(self, members: int, features: int) -> str | None:
        """Return why there are too many unknowns to fit, or `None`.

        The attack then refuses: an unfitted start is worse than a guess, and would be no evidence of protection.
        """
        edges = features * (features - 1) // 2
        if members * edges <= self.limit:
            return None
        return (
            f"It would fit {members * edges} unknowns, {members} x {edges} distances between {features} columns; the "
            f"limit is {self.limit}: raise `limit`, at a cost that grows with its cube."
        )

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the distances of all members.

        Raises:
            TranscriptError: the attack does not apply, or the simulation would not fit into `memory`.
        """
        check_applies(self.applies(target, observed))
        system = GraphSimulation.of(observed, target)
        if not all(np.isfinite(seen.total).all() for seen in system.rounds):
            raise TranscriptError("the view's messages are not finite")
        self._check_memory(system)
        if any(item.clips or any(item.noise.values()) for item in observed.rounds):
            return self._distorted(system, rng)
        return self._reconstruction(system, self._search(system, rng).points[0])

    def _search(self, system: GraphSimulation, rng: np.random.Generator) -> Fit:
        """Return the best start's fit."""
        best: Fit | None = None
        tries = (self.starts if len(system.members) > 1 else _ALONE) if isinstance(system.method, PPGL) else 1
        for start in islice(starting_points(system, rng), tries):
            found = self._fit(system, start.ravel())
            best = found if best is None or found.residual < best.residual else best
            if best.residual <= SOLVED:
                break
        assert best is not None
        return best

    def _distorted(self, system: GraphSimulation, rng: np.random.Generator) -> Reconstruction:
        """Fit messages with clipping or noise: exactly if possible, else return the most likely distances."""
        system = system.first(self.rounds)
        others: tuple[Array, ...] = ()  # further starts
        # at least as many equations as unknowns, and little noise beside what the messages show of the data
        if len(system.observed) >= system.count and system.noise_to_signal < _QUIET:
            found = self._search(system, rng)
            if found.residual <= SOLVED:
                return self._reconstruction(system, found.points[0])
            others = (found.points[0],)
        distances, report = posterior_mode(system, rng, self.steps, others)
        out = self._reconstruction(system, distances)
        return replace(out, diagnostics={**out.diagnostics, **(report if system.noise_to_signal else {})})

    def _fit(self, system: GraphSimulation, point: Array) -> Fit:
        """Fit from one start, with more and more rounds fitted together.

        Returns:
            The fit of all rounds; its residual is infinite where it is no number.
        """
        most, count = min(self.rounds, len(system.rounds)), len(system.members)
        stages = _STAGES if count == 1 else (count, count + 1, 2 * count, self.rounds)
        for stage in sorted({min(k, most) for k in stages}):
            end = self._fit_rounds(system.first(stage), point)
            if not np.isfinite(end.residual):
                break
            point = end.points[0]
            if stage == most or end.residual > _HOPELESS * np.sqrt(stage):
                break
        whole = system.first(most)
        return fit([whole], whole.observed, [point], SearchLimits(0), whole.unit)

    def _fit_rounds(self, system: GraphSimulation, point: Array) -> Fit:
        """Fit all rounds of `system` from `point`; complete what one client's messages do not determine."""
        hidden = system.hidden
        search = SearchLimits(self.steps, *((_ROUND_OFF, _SHORT) if len(hidden) else (_GOAL, _LONG)), curved=False)
        for _ in range(_COMPLETIONS if len(hidden) else 0):
            end = fit([system], system.observed, [point], search, system.unit)
            if not np.isfinite(end.residual):
                return end
            point = complete_undetermined(edges_of(system.public.features), end.points[0], hidden, end.jacobian)
            if np.linalg.norm(point - end.points[0]) < _SETTLED * np.linalg.norm(point):
                break
        return fit([system], system.observed, [point], search, system.unit)

    def _reconstruction(self, system: GraphSimulation, x: Array) -> Reconstruction:
        """Report the distances of all members, flat, clipped to their range, as (vertices, vertices) matrices."""
        part = system.first(self.rounds)
        found = fit([part], part.observed, [x], SearchLimits(0), part.unit)
        edges = edges_of(system.public.features)
        # mean squared differences of two features within [-bound, bound]
        largest = (2.0 * system.public.feature_bound) ** 2
        inside = np.clip(np.nan_to_num(x), 0.0, largest).reshape(-1, edges.count)
        return Reconstruction(
            self.secret,
            np.concatenate(edges.adjacency(inside)),
            residual=found.residual / math.sqrt(len(part.rounds)),
            rank=found.rank,
            unknowns=x.size,
            condition=found.condition,
            members=frozenset(system.members),
            diagnostics={"rounds": len(part.rounds), "bounded only": len(system.hidden)},
        )

    def _check_memory(self, system: GraphSimulation) -> None:
        """Refuse a simulation that would not fit into `memory`.

        Counted are about 12 arrays (members, edges, edges) of derivatives, and 4 Jacobians.

        Raises:
            TranscriptError: it would not fit.
        """
        count, edges = len(system.members), system.edges
        equations = min(self.rounds, len(system.rounds)) * system.rounds[0].total.size
        needed = 8 * 12 * count * edges**2 + 8 * 4 * equations * count * edges
        if needed > self.memory:
            raise TranscriptError(
                f"fitting {count} clients' distances on {edges} edges takes {needed / 1e9:.1f} GB, the limit is "
                f"{self.memory / 1e9:.1f} GB; raise `memory`, or take fewer rounds"
            )
