"""Simulate rounds of graph learning as a function of the clients' distances, with derivatives.

A client learns a graph on d vertices from its data, whose columns are the vertices' signals; the data enter only
through z_e / N, the squared distance between the signals at the ends of edge e over the number N of rows. In each round
it takes some projected gradient steps on its edge weights w,

    w <- max(0, v - eta [z / N - S^T(alpha / (S v + zeta)) + 4 beta v + pull (v - consensus)]),

where v is w with momentum, S v are the degrees (sums of the weights at each vertex, S the vertices x edges incidence
matrix), consensus is the graph that the server broadcast, and eta, alpha, beta, zeta and pull are the algorithm's
settings. It sends w or a multiple of it: PPGL sends [gamma w, gamma] with a weight gamma, IGL only its objective. The
algorithm's own code is called for the steps. The members are the clients whose sum the attacker observes. A member's
graph depends only on its own distances, so one simulation on a `DualArray` yields the derivatives of all members by all
their distances. `distance_fit`, `starting_points` and `posterior_mode` call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._graph.igl import IGL
from securefed.algorithms._graph.method import OBJECTIVE, GraphMethod, LocalGraphData, edges_of
from securefed.attacks._base import RoundView, Target, View
from securefed.attacks._engine.forward import DualArray, slopes_of, value_of
from securefed.errors import TranscriptError


@dataclass(frozen=True)
class GraphRound:
    """One observed round of graph learning.

    Attributes:
        consensus: consensus graph that was broadcast, (edges,).
        total: sum of the members' messages, as one vector (size,).
        members: clients behind the sum.
        clips: for each group of entries of a member's vector that were clipped together, their indices and the clipping
            norm.
        noise: standard deviation of the noise in each entry of `total`, (size,).
    """

    consensus: Array
    total: Array
    members: tuple[ClientId, ...]
    clips: tuple[tuple[Array, float], ...] = ()
    noise: Array = field(default_factory=lambda: np.zeros(()))

    @classmethod
    def of(cls, item: RoundView, consensus: Array, names: Sequence[str]) -> GraphRound:
        """Read a round of a view.

        Args:
            item: the observed round.
            consensus: consensus graph that was broadcast.
            names: names of the tensors of a message, in order.

        Raises:
            KeyError: the message lacks a tensor.
        """
        parts = [np.ravel(item.message[name]) for name in names]
        sizes = [part.size for part in parts]
        owner = np.repeat(names, sizes)
        clips = tuple((np.flatnonzero(np.isin(owner, together)), norm) for together, norm in item.clips)
        noise = [float(item.noise.get(name, 0.0)) for name in names]
        return cls(consensus, np.concatenate(parts), tuple(sorted(item.members)), clips, np.repeat(noise, sizes))

    def clipped(self, vectors: Array) -> Array:
        """Return members' vectors (..., size) after clipping."""
        for indices, norm in self.clips:
            entries = vectors[..., indices]
            margin = 1 + (indices.size + 8) * np.finfo(float).eps  # the defence adds this margin for round-off
            length = margin * np.linalg.norm(entries, axis=-1, keepdims=True)
            scale = np.where(length > norm, norm / np.where(length == 0, 1.0, length), 1.0)
            vectors = vectors.copy()
            vectors[..., indices] = entries * scale
        return vectors


@dataclass(frozen=True)
class GraphSimulation:
    """The sums of all rounds as a function of the members' distances, a `Simulation` of all members together.

    Attributes:
        method: the graph learning method.
        public: public facts of the run.
        rounds: observed rounds in order, beginning with the first round of the run.
        members: all clients that took part in one of the rounds, ascending.
        counted: number of first rounds of which the server told the members that they were counted. Members begin each
            later round with the state that they had after these. `None`: all rounds.
    """

    method: GraphMethod
    public: Public
    rounds: tuple[GraphRound, ...]
    members: tuple[ClientId, ...]
    counted: int | None = None

    @classmethod
    def of(cls, observed: View, target: Target) -> GraphSimulation:
        """Read the rounds of a view.

        Raises:
            TranscriptError: the view lacks a tensor.
        """
        method = target.algorithm
        assert isinstance(method, GraphMethod)
        names = [spec.name for spec in method.specs(target.public)]
        try:
            rounds = tuple(GraphRound.of(item, method.read(item.broadcast), names) for item in observed.rounds)
        except KeyError as error:
            raise TranscriptError(f"the view lacks tensor {error} of {type(method).__name__}") from error
        return cls(method, target.public, rounds, tuple(sorted(observed.members)))

    @property
    def edges(self) -> int:
        """Return the number of unknown distances of each member."""
        return edges_of(self.public.features).count

    def messages(self, distances: Array) -> list[Array]:
        """Simulate the message of each member in each round, (members, size); 0 where it takes no part.

        Args:
            distances: squared distances over the number of rows, z / N, (members, edges); on a `DualArray` the messages
                are such arrays too.
        """
        public, count = self.public, len(self.members)
        rows = np.array([public.rows[client] for client in self.members], float)[:, None]
        memory = tuple(np.tile(part, (count, 1)) for part in self.method.memory(edges_of(public.features)))
        first, messages = np.ones((count, 1), bool), []
        names = [spec.name for spec in self.method.specs(public)]
        for number, round_ in enumerate(self.rounds):
            # the ceiling, above which a client would report divergence, is lifted: candidates may be far off
            present = np.isin(self.members, round_.members)[:, None]
            share, ceiling = rows / max(public.rows), np.full((count, 1), np.inf)
            data = LocalGraphData(self.method.problem(public), distances, share, ceiling, first, public.clients)
            with np.errstate(all="ignore"):
                sent, new_memory = self.method.steps(round_.consensus, memory, data)
            parts = [sent[name][..., None] if name == OBJECTIVE else sent[name] for name in names]
            message = np.concatenate(parts, axis=-1)
            messages.append(np.where(present, round_.clipped(message), 0.0))
            if self.counted is not None and number >= self.counted:
                continue
            # a client that sits out keeps its graph, and its first round is still to come
            memory = tuple(np.where(present, new, old) for new, old in zip(new_memory, memory, strict=True))
            first = first & ~present
        return messages

    @cached_property
    def hidden(self) -> Array:
        """Return the indices of edges whose observed weight is 0 in every round.

        Messages only bound their distances from below. Such edges show only where a single client sends its graph,
        whose weights (or a multiple of them) are the first entries of a message; otherwise none is returned.
        """
        if len(self.members) > 1 or isinstance(self.method, IGL):
            return np.zeros(0, np.int64)
        return np.flatnonzero(~np.any([round_.total[: self.edges] > 0 for round_ in self.rounds], axis=0))

    @cached_property
    def stationary(self) -> Array:
        """Return distances (members, edges) for which the first gradient step leaves the starting graph as it is."""
        begin = np.full(self.edges, self.method.start_weight)
        slope = self.method.problem(self.public).gradient(begin, np.zeros(self.edges))
        return np.tile(-slope, (len(self.members), 1))

    @cached_property
    def signals(self) -> tuple[float, ...]:
        """Return the units of the residuals, one for each round: how much of a message depends on the data.

        The unit is the distance of the observed sum from the sum for `stationary` distances, where graphs do not move.
        """
        pairs = zip(self.rounds, self.messages(self.stationary), strict=True)
        return tuple(
            max(
                float(np.linalg.norm(round_.total - value.sum(axis=0))),
                1e-9 * float(np.linalg.norm(round_.total)),
                1e-300,
            )
            for round_, value in pairs
        )

    @property
    def count(self) -> int:
        """Return the number of unknowns."""
        return len(self.members) * self.edges

    @property
    def determined(self) -> int:
        """Return the number of unknowns: which of them no message shows is not known."""
        return self.count

    def sent(self, x: Array) -> Array:
        """Return the simulated sums of all rounds, flat, (equations,), for the distances of all members, flat."""
        sums = [message.sum(axis=0) for message in self.messages(x.reshape(-1, self.edges))]
        return np.concatenate(sums)

    def sent_and_tangents(self, x: Array) -> tuple[Array, Array]:
        """Return `sent`, and its derivative (equations, members * edges)."""
        # direction e moves distance e of every member at once: a member's message depends on its own distances alone
        messages = self.messages(cast(Array, DualArray(x.reshape(-1, self.edges), np.eye(self.edges))))
        # from (members, size, edges) to (size, members * edges)
        shapes = [(*value.shape, self.edges) for value in messages]
        slopes = [
            np.broadcast_to(slopes_of(value), shape).transpose(1, 0, 2).reshape(shape[1], -1)
            for value, shape in zip(messages, shapes, strict=True)
        ]
        return np.concatenate([value_of(value).sum(axis=0) for value in messages]), np.concatenate(slopes)

    @cached_property
    def observed(self) -> Array:
        """Return the observed sums of all rounds, flat, (equations,)."""
        return np.concatenate([round_.total for round_ in self.rounds])

    @cached_property
    def unit(self) -> Array:
        """Return for each equation the signal of its round, (equations,)."""
        return self.spread(self.signals)

    @cached_property
    def noise(self) -> Array:
        """Return the standard deviation of each equation's noise, (equations,)."""
        return np.concatenate([np.broadcast_to(round_.noise, round_.total.shape) for round_ in self.rounds])

    def spread(self, of_rounds: Sequence[float] | Array) -> Array:
        """Return a number of each round for each of its equations, (equations,)."""
        return np.repeat(of_rounds, [round_.total.size for round_ in self.rounds])

    @property
    def noise_to_signal(self) -> float:
        """Return the norm of the noise relative to `signals`, in the round where this is largest."""
        pairs = zip(self.rounds, self.signals, strict=True)
        return max(float(np.linalg.norm(round_.noise)) / unit for round_, unit in pairs)

    def first(self, rounds: int) -> GraphSimulation:
        """Return the simulation of the first `rounds` rounds."""
        return replace(self, rounds=self.rounds[:rounds])
