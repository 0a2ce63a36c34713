"""Read every client's distances out of sums of graph learning, by the weights that PPGL's clients give themselves.

A client of PPGL sends gamma w and gamma, its graph w (edges,) times a weight gamma = 1 / (||w_i - c|| + eps) that falls
with the distance of the graph w_i, which it had before the round, from the consensus c that the server broadcasts. A
server that chooses c weighs the clients of a sum as it likes: N sums with N weightings hold N graphs.

1. One round has a consensus so high that no edge reaches weight 0. All gamma are 1/N in it, and the mean graph m gives
   the mean of the clients' distances z. The server tells the clients that this round counted them, and of no later one,
   so that every later round begins at the same graphs w_i = m + x_i.
2. With c = m + R u for a unit vector u and a large R, gamma is a series in x / R, where A = R + eps:

       gamma = 1/A + u x / A^2 + [(1 + A / 2R) (u x)^2 - A / 2R |x|^2] / A^3 + ...

   From the sums at u and -u the server takes the odd and the even part, and with u = (a + e_j) / sqrt(2) and
   (a - e_j) / sqrt(2), for orthonormal a and e_1 .. e_N-1, their differences: sums over the clients i

       K1_j = sum (e_j x_i) y_i,      K3_j = sum (a x_i) (e_j x_i) y_i,

   where y_i is the difference of client i's graph after the round from that of a client with the mean distances, nearly
   the same in all these rounds. A row with 1 in place of e_j x_i, and a column with 1 in place of y_i, are known too,
   since the x_i sum to 0. With them K1 = P' Y and
   K3 = P' diag(a x_i) Y with N x N matrices P, so that K3 K1^+ has the clients' columns of P' as eigenvectors. These
   give Y (Jennrich's algorithm), and the derivative of a simulated graph turns Y into distances.
3. The series are cut off, and where the a x_i are nearly alike that error grows: the differences of the clients'
   distances are right to 1e-4 to .2. Levenberg-Marquardt through all steps of all rounds (`GraphSimulation`) makes
   them exact.

The result does not say which client is which. An audit's `DeviatingServer` runs the attack.

Source of the eigenvectors: Harshman 1970, Foundations of the PARAFAC procedure (Jennrich's algorithm).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._graph.method import CONSENSUS, edges_of
from securefed.algorithms._graph.ppgl import PPGL, WEIGHT, WEIGHTED
from securefed.attacks._active.chosen_broadcasts import ChosenBroadcast, Dialogue
from securefed.attacks._base import Reconstruction, RoundView, Target, View
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._distances.starting_points import pooled
from securefed.attacks._engine import DualArray
from securefed.attacks._engine.fit import SearchLimits, fit
from securefed.attacks._fitting.levenberg_marquardt import StallLimit
from securefed.attacks.views import ACTIVE_SERVER

_LIFT = 10.0
"""Pull on every edge in the first round, in the unit of the distances. Edges of clients whose distance is much larger
reach weight 0, and are not read."""
_RADIUS = 30.0
"""R, the distance of the later consensus graphs from the mean graph. The series are cut off at x / R, and an error e of
a message's entry becomes e (R / x)^3 in K3; x is .002 to .1 on the tests' data. There, with three clients and one
frame, the moments were off by at most .20 at 30, .13 at 10 and .82 at 100; the fit then was exact in 4 of 4 cases at 30
and 10, and in 3 at 100."""
_PATIENCE = StallLimit(0.03)
"""Jacobians within which the fit must halve its residual: 12 above .03, 40 below, as in `distance_fit`."""
_GOAL, _SOLVED = 1e-8, 1e-5
"""Norms of the residual, in units of what the clients' differences add to the messages: at the first the fit stops, and
up to the second it explains the messages. Rounding to the fixed point of 64 bits leaves about 1e-8."""


@dataclass(frozen=True)
class ChosenConsensus:
    """Choose consensus graphs from which the graphs of a sum's clients lie at different distances.

    Attributes:
        passes: largest number of frames a, e_1 .. e_N-1 that are sent, at least 1. Where two a x_i are nearly alike,
            the fit starts too far off and does not end; another frame is then sent.
        steps: largest number of Jacobians of a fit.
        limit: largest number of unknowns (members x edges) of the fit; beyond it the attack refuses.
    """

    passes: int = 3
    steps: int = 150
    limit: int = 600

    name: ClassVar[str] = "active/chosen_consensus"
    secret: ClassVar[str] = "distances"

    def applies(self, target: Target, observed: Dialogue) -> str | None:
        """Return why the attack cannot run, or `None`."""
        method, count = target.algorithm, len(observed.members)
        if not isinstance(method, PPGL):
            return "It chooses the consensus graph from which PPGL's clients compute their weights."
        if method.weights != "automatic" and count > 1:
            return "Clients here have equal weights, whatever the consensus."
        edges = edges_of(target.public.features).count
        if count > edges:
            return f"It separates at most as many clients as there are edges ({edges}), and the sum has {count}."
        if count * edges > self.limit:
            return f"It would fit {count * edges} unknowns, the limit is {self.limit}: raise `limit`."
        return None

    def run(self, observed: Dialogue, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Lift all graphs, then send a consensus on each side of the mean graph in 2 (N - 1) directions a frame.

        Args:
            observed: the dialogue.
            target: the algorithm and the public facts.
            rng: draws the directions.

        Returns:
            The distances of all members.
        """
        method, count = target.algorithm, len(observed.members)
        assert isinstance(method, PPGL)
        # An edge of weight w is pulled by rho gamma (w - height), with gamma = 1/N: by -lift at the start.
        height = method.start_weight + _LIFT * target.public.clients / method.rho
        edges = observed.honest[CONSENSUS].size
        rounds = [observed.ask(ChosenBroadcast({**observed.honest, CONSENSUS: np.full(edges, height)}))]
        best = self._fitted(rounds, target) if count == 1 else None
        mean_graph = rounds[0].message[WEIGHTED] / rounds[0].message[WEIGHT]
        for _ in range(self.passes if count > 1 else 0):
            frame = np.linalg.qr(rng.normal(size=(edges, count)))[0].T
            for other in frame[1:]:
                for direction in (frame[0] + other, frame[0] - other):
                    for side in (1, -1):
                        chosen = mean_graph + side * _RADIUS * direction / np.sqrt(2)
                        sent = ChosenBroadcast({**observed.honest, CONSENSUS: chosen}, counted=False)
                        rounds.append(observed.ask(sent))
            found = self._fitted([rounds[0], *rounds[-4 * (count - 1) :]], target)
            if best is None or not best.residual <= found.residual:  # it may be no number
                best = found
            if best.residual < _SOLVED:
                break
        assert best is not None
        return replace(best, diagnostics={"rounds": len(rounds)})

    def _fitted(self, rounds: list[RoundView], target: Target) -> Reconstruction:
        """Separate the members, and fit their distances to all rounds."""
        view = View(ACTIVE_SERVER, None, tuple(rounds), rounds[-1].broadcast)
        system = replace(GraphSimulation.of(view, target), counted=1)
        mean = pooled(system.first(1))
        count, start = len(system.members), mean
        unit = system.unit  # of a single member the first round shows all: what a message shows of distances
        if count > 1:
            alike = system.messages(np.tile(mean, (count, 1)))
            # What the members' differences add to a message. It is 0 in the first round, which shows their mean alone
            added = [float(np.linalg.norm(r.total - s.sum(axis=0))) for r, s in zip(system.rounds, alike, strict=True)]
            unit = system.spread(np.maximum(added, max(1e-12, float(np.median(added)))))
            start = (mean + self._differences(system, mean)).ravel()
        end = fit([system], system.observed, [start], SearchLimits(self.steps, _GOAL, _PATIENCE, curved=False), unit)
        largest = (2.0 * target.public.feature_bound) ** 2
        distances = np.clip(np.nan_to_num(end.points[0].reshape(count, -1)), 0.0, largest)
        return Reconstruction(
            self.secret,
            np.concatenate(edges_of(target.public.features).adjacency(distances)),
            residual=end.residual,
            unknowns=distances.size,
            members=frozenset(system.members),
        )

    def _differences(self, system: GraphSimulation, mean: Array) -> Array:
        """Return the members' differences from their mean distances, (members, edges), from the moments of step 2.

        Zeros where the messages have no such moments, as under noise.
        """
        edges, count = system.edges, len(system.members)
        one = replace(system, members=system.members[:1])
        alike = np.array([sent[0] for sent in one.messages(mean[None])])[1:]
        weight, graph = alike[:, edges], alike[:, :edges] / alike[:, edges:]
        totals = np.array([item.total for item in system.rounds[1:]])
        weights = totals[:, edges] - count * weight
        graphs = totals[:, :edges] - (count * weight + weights)[:, None] * graph
        # (N - 1 directions e_j, a + e_j or a - e_j, side, edges + 1)
        moments = np.column_stack([graphs, weights]).reshape(count - 1, 2, 2, edges + 1)
        far = _RADIUS + system.method.distance_floor  # type: ignore[attr-defined]
        odd = (moments[:, :, 0] - moments[:, :, 1]) / 2 * far**2 * np.sqrt(2)
        even = (moments[:, :, 0] + moments[:, :, 1]) / 2 * far**3 / (1 + far / (2 * _RADIUS))
        first = (odd[:, 0] - odd[:, 1]) / 2  # K1
        third = (even[:, 0] - even[:, 1]) / 2  # K3
        along = ((odd[:, 0] + odd[:, 1]) / 2).mean(axis=0)  # sum (a x_i) y_i
        first[:, edges] = along[edges] = 0.0  # the x_i sum to 0
        last = np.append(np.zeros(edges), float(count))
        scale = np.append(np.ones(edges), np.linalg.norm(first) / count)  # of the last entry, for a good condition
        one_, three = np.vstack([first, last]) * scale, np.vstack([third, along]) * scale
        try:
            _, vectors = np.linalg.eig(three @ np.linalg.pinv(one_))
            changes = np.linalg.solve((vectors / vectors[-1]).real, one_)[:, :edges]
            # derivative of the graph after the first of the later rounds by the distances
            sent: Any = one.first(2).messages(cast(Array, DualArray(mean[None], np.eye(edges))))[1]
            slope = (sent[0, :edges] / sent[0, edges:]).slopes
            return np.asarray(np.linalg.solve(slope, changes.T).T)
        except np.linalg.LinAlgError:
            return np.zeros((count, edges))
