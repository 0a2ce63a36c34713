"""One client's descent, seen in the clear: linear in its distances and in the barriers of the vertices.

A step moves edge e by its own distance z_e and by what its two ends share, the barriers b = alpha / (S w + zeta). Given
the barriers every edge is by itself, so that of the Jacobian only a matrix between vertices and steps has to be solved:
200 distances or 20 000, a Gauss-Newton step costs (vertices x steps)^3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from securefed.algorithms.graph.edges import Edges
from securefed.algorithms.graph.fedavg import FedAvg
from securefed.algorithms.graph.method import GRAPH, GraphMethod, edges_of
from securefed.algorithms.graph.mrmtl import MRMTL
from securefed.algorithms.graph.ppgl import PPGL, WEIGHT, WEIGHTED
from securefed.attacks.base import Observed, Target
from securefed.tensors import Array


@dataclass(frozen=True)
class Course:
    """A descent at some distances.

    Attributes:
        moves: (steps, edges), where a step was not stopped at 0.
        degrees: (steps, vertices), where each step began, with zeta.
        apart: (rounds, edges), simulated less seen graphs, 0 where nothing is demanded.      active: where it is.
    """

    moves: Array
    degrees: Array
    apart: Array
    active: Array

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.apart))


@dataclass(frozen=True)
class Chain:
    """What one client was seen to do.

    Attributes:
        method: with its step size, momentum and barrier.
        graphs: (rounds, edges), its graphs after each round; a round begins at the one before, or at the consensus.
        anchors, strengths: (rounds, edges) and (rounds,), of the pull.      carried: whether clients keep their graphs.
        momenta: (rounds x K,), of each step: `Descent` leaves it out where a degree would fall below 0.
        least: degrees (with zeta) below which the barrier goes on along its tangent, for searches from afar.
    """

    method: GraphMethod
    edges: Edges
    graphs: Array
    anchors: Array
    strengths: Array
    carried: bool
    momenta: Array
    least: float

    @classmethod
    def of(cls, observed: Observed, target: Target) -> Chain | None:
        """`None` for several members, and for methods that send no graphs."""
        method, members = target.algorithm, observed.members
        if len(members) != 1 or not isinstance(method, (PPGL, FedAvg, MRMTL)):
            return None
        (member,) = members
        rounds, edges = observed.rounds, edges_of(target.public.features)
        anchors = np.array([method.read(item.broadcast) for item in rounds], float)
        if isinstance(method, PPGL):
            gamma = np.array([float(item.message[WEIGHT]) for item in rounds])
            graphs = np.array([item.message[WEIGHTED] for item in rounds], float) / gamma[:, None]
            strengths = method.rho * gamma
        else:
            share = target.public.rows[member] / max(target.public.rows) if isinstance(method, FedAvg) else 1.0
            graphs = np.array([item.message[GRAPH] for item in rounds], float) / share
            # Ditto sends its FedAvg part
            strengths = np.full(len(rounds), method.pull)
        momenta = np.full(len(rounds) * method.local_steps, method.momentum)
        carried = not isinstance(method, FedAvg)
        return cls(method, edges, graphs, anchors, strengths, carried, momenta, method.zeta)

    def first(self, rounds: int, least: float) -> Chain:
        """The same of the first rounds."""
        steps = rounds * self.method.local_steps
        parts = {name: getattr(self, name)[:rounds] for name in ("graphs", "anchors", "strengths")}
        return replace(self, **parts, momenta=self.momenta[:steps], least=least)

    @property
    def steps(self) -> int:
        return len(self.momenta)

    @cached_property
    def unseen(self) -> Array:
        """Edges at 0 after every round: messages bound their distances from below."""
        return np.flatnonzero(~(self.graphs > 0).any(axis=0))

    @cached_property
    def still(self) -> Array:
        """(edges,) distances that leave the first graph where it is."""
        method = self.method
        degree = method.start_weight * (self.edges.vertices - 1) + method.zeta
        return np.full(self.edges.count, 2 * method.alpha / degree - 4 * method.beta * method.start_weight)

    def origin(self, place: int, previous: Array) -> tuple[Array, Array]:
        """Where a round begins, and the iterate before that."""
        if not self.carried:
            return self.anchors[place], self.anchors[place]
        if place:
            return self.graphs[place - 1], previous
        begin = np.full(self.edges.count, self.method.start_weight)
        return begin, begin

    def run(self, distances: Array) -> Course:
        """The descent at `distances` (edges,)."""
        method, local = self.method, self.method.local_steps
        moves, degrees, apart, active = [], [], [], []
        previous = np.zeros(self.edges.count)
        for step, momentum in enumerate(self.momenta):
            place, within = divmod(step, local)
            if within == 0:
                graph, previous = self.origin(place, previous)
            ahead = graph + momentum * (graph - previous)
            degree = self.edges.degrees(ahead) + method.zeta
            held = np.maximum(degree, self.least)
            barrier = method.alpha / held * (2 - degree / held)
            pull = self.strengths[place] * (ahead - self.anchors[place])
            slope = distances - self.edges.spread(barrier) + 4 * method.beta * ahead + pull
            free = ahead - method.step_size * slope
            previous, graph = graph, np.maximum(free, 0.0)
            demanded = (self.graphs[place] > 0) | (free > 0)
            moves.append(demanded if within == local - 1 else free > 0)
            degrees.append(held)
            if within == local - 1:
                apart.append(np.where(demanded, free - self.graphs[place], 0.0))
                active.append(demanded)
        return Course(np.array(moves), np.array(degrees), np.array(apart), np.array(active))

    def tangents(self, course: Course) -> tuple[Array, Array, Array, Array]:
        """Of the steps' starts and of the rounds' ends: minus the slope by the own distance, (.., edges), and the slope
        by what the ends' barriers of each step add, (.., steps, edges)."""
        method, count, edges = self.method, self.steps, self.edges.count
        ahead, ahead_by = np.zeros((count, edges)), np.zeros((count, count, edges))
        end, end_by = np.zeros(course.apart.shape), np.zeros((len(self.graphs), count, edges))
        here = before = np.zeros(edges)
        here_by = before_by = np.zeros((count, edges))
        for step, momentum in enumerate(self.momenta):
            place, within = divmod(step, method.local_steps)
            if within == 0:
                here, here_by = np.zeros(edges), np.zeros((count, edges))
                if not self.carried:
                    before, before_by = here, here_by
            ahead[step] = (1 + momentum) * here - momentum * before
            ahead_by[step] = (1 + momentum) * here_by - momentum * before_by
            kept = 1 - method.step_size * (4 * method.beta + self.strengths[place])
            before, before_by, moved = here, here_by, course.moves[step]
            here = moved * (kept * ahead[step] + method.step_size)
            here_by = moved * (kept * ahead_by[step])
            here_by[step] += moved * method.step_size
            if within == method.local_steps - 1:
                end[place], end_by[place] = course.active[place] * here, course.active[place] * here_by
        return ahead, ahead_by, end, end_by
