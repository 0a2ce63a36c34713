"""Simulate the members' rounds of graph learning as a function of their distances, with derivatives.

A member's graph depends on its own distances alone, so that the derivatives of all members in all `edges` directions
are one simulation with a leading axis of directions. They are taken by a complex step: the steps are analytic, and
NumPy orders complex numbers by their real parts first, so that projections and signs are those of real numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from securefed._messages import ClientId
from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._graph.igl import IGL
from securefed.algorithms._graph.method import OBJECTIVE, GraphMethod, LocalGraphData, edges_of
from securefed.algorithms._graph.ppgl import PPGL
from securefed.attacks._base import RoundView, Target, View
from securefed.errors import TranscriptError

_STEP = 1e-30


@dataclass(frozen=True)
class GraphRound:
    """One observed round of graph learning.

    Attributes:
        consensus: consensus graph that was broadcast.
        total: sum of the members' messages, as one vector (size,).
        members: clients behind the sum.
        clips: entries of a member's vector that were clipped together, and their L2 norm.
        noise: (size,) standard deviation of the noise in an entry of `total`.
    """

    consensus: Array
    total: Array
    members: tuple[ClientId, ...]
    clips: tuple[tuple[Array, float], ...] = ()
    noise: Array = field(default_factory=lambda: np.zeros(()))

    @classmethod
    def of(cls, item: RoundView, consensus: Array, names: Sequence[str]) -> GraphRound:
        """Read a round from an observation.

        Raises:
            KeyError: the message lacks a tensor.
        """
        parts = [np.ravel(item.message[name]) for name in names]
        sizes = [part.size for part in parts]
        owner = np.repeat(names, sizes)
        clips = tuple((np.flatnonzero(np.isin(owner, together)), norm) for together, norm in item.clips)
        noise = [float(item.noise.get(name, 0.0)) for name in names]
        return cls(consensus, np.concatenate(parts), tuple(sorted(item.members)), clips, np.repeat(noise, sizes))

    def clipped(self, sent: Array) -> Array:
        """Return members' vectors (..., size) after clipping; analytic in complex vectors."""
        for places, norm in self.clips:
            own = sent[..., places]
            margin = 1 + (places.size + 8) * np.finfo(float).eps  # of the defence, for its round-off
            length = margin * np.sqrt((own**2).sum(axis=-1, keepdims=True))
            scale = np.where(length.real > norm, norm / np.where(length == 0, 1.0, length), 1.0)
            sent = sent.copy()
            sent[..., places] = own * scale
        return sent


@dataclass(frozen=True, kw_only=True)
class AnalyticPPGL(PPGL):
    """PPGL with ||w - w_con|| as an analytic function of complex graphs."""

    def contribution_weights(self, graph: Array, consensus: Array, own: LocalGraphData) -> Array:
        """Return gamma_i of (25), with a norm that is analytic in complex graphs."""
        equal = np.full(own.first.shape, 1 / own.clients)
        if self.weights == "equal":
            return equal
        distance = np.sqrt(((graph - consensus) ** 2).sum(axis=-1, keepdims=True))
        return np.where(own.first, equal, 1 / (distance + self.distance_floor))


def complex_differentiable(method: GraphMethod) -> GraphMethod:
    """Return the method in a form that is analytic in complex distances."""
    if isinstance(method, PPGL):
        return AnalyticPPGL(**{item.name: getattr(method, item.name) for item in fields(method)})
    return method


@dataclass(frozen=True)
class GraphSimulation:
    """The equations `simulated sum = observed sum` of all rounds.

    Attributes:
        method: graph learning method, analytic in complex distances.
        public: public facts.
        rounds: observed rounds in order, from the first of the run on.
        members: all clients of any round, ascending.
    """

    method: GraphMethod
    public: Public
    rounds: tuple[GraphRound, ...]
    members: tuple[ClientId, ...]

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
        return cls(complex_differentiable(method), target.public, rounds, tuple(sorted(observed.members)))

    @property
    def edges(self) -> int:
        """Number of unknown distances of each member."""
        return edges_of(self.public.features).count

    def sent(self, distances: Array) -> list[Array]:
        """Return what each member sends in each round, (..., members, size), 0 where it takes no part.

        Args:
            distances: z / N, (..., members, edges), real or complex.
        """
        public, count = self.public, len(self.members)
        rows = np.array([public.rows[client] for client in self.members], float)[:, None]
        memory = tuple(np.tile(part, (count, 1)) for part in self.method.memory(edges_of(public.features)))
        first, out = np.ones((count, 1), bool), []
        names = [spec.name for spec in self.method.specs(public)]
        for seen in self.rounds:
            present = np.isin(self.members, seen.members)[:, None]
            share, ceiling = rows / max(public.rows), np.full((count, 1), np.inf)
            own = LocalGraphData(self.method.problem(public), distances, share, ceiling, first, public.clients)
            with np.errstate(all="ignore"):
                sent, fresh = self.method.steps(seen.consensus, memory, own)
            parts = [sent[name][..., None] if name == OBJECTIVE else sent[name] for name in names]
            lead = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
            joined = np.concatenate([np.broadcast_to(part, (*lead, part.shape[-1])) for part in parts], axis=-1)
            out.append(np.where(present, seen.clipped(joined), 0.0))
            memory = tuple(np.where(present, new, old) for new, old in zip(fresh, memory, strict=True))
            first = first & ~present
        return out

    @cached_property
    def hidden(self) -> Array:
        """Edges of one client that are 0 after every round, so that messages only bound their distances from below."""
        if len(self.members) > 1 or isinstance(self.method, IGL):
            return np.zeros(0, np.int64)
        return np.flatnonzero(~np.any([seen.total[: self.edges] > 0 for seen in self.rounds], axis=0))

    @cached_property
    def stationary(self) -> Array:
        """Distances (members, edges) at which the first graph does not move."""
        begin = np.full(self.edges, self.method.start_weight)
        slope = self.method.problem(self.public).gradient(begin, np.zeros(self.edges))
        return np.tile(-slope, (len(self.members), 1))

    @cached_property
    def signals(self) -> tuple[float, ...]:
        """Distance of each round's message from that of clients whose graphs do not move; the unit of residuals."""
        pairs = zip(self.rounds, self.sent(self.stationary), strict=True)
        return tuple(
            max(float(np.linalg.norm(seen.total - value.sum(axis=0))), 1e-9 * float(np.linalg.norm(seen.total)), 1e-300)
            for seen, value in pairs
        )

    def residual_and_jacobian(
        self, distances: Array, *, slope: bool = True, units: Sequence[Array] | None = None
    ) -> tuple[Array, Array]:
        """Return the residual, each round relative to its message, and its Jacobian (equations, members * edges).

        Args:
            distances: (members, edges).
            slope: whether to compute the Jacobian; it is empty otherwise.
            units: (size,) for each round, in place of `signals`.
        """
        units = (
            [np.full(seen.total.size, unit) for seen, unit in zip(self.rounds, self.signals, strict=True)]
            if units is None
            else units
        )
        if slope:
            directions = np.eye(self.edges)[:, None, :]
            sent = self.sent(distances + 1j * _STEP * directions)
        else:
            sent = [value[None] for value in self.sent(distances)]
        residual, jacobian = [], []
        for seen, value, unit in zip(self.rounds, sent, units, strict=True):
            residual.append((value[0].real.sum(axis=0) - seen.total) / unit)
            if slope:
                full = np.broadcast_to(value, (self.edges, *value.shape[1:]))
                jacobian.append(full.imag.transpose(2, 1, 0).reshape(value.shape[-1], -1) / (_STEP * unit)[:, None])
        return np.concatenate(residual), np.concatenate(jacobian) if slope else np.zeros((0, 0))

    @property
    def determined(self) -> bool:
        """Whether there are at least as many equations as unknowns."""
        return sum(seen.total.size for seen in self.rounds) >= len(self.members) * self.edges

    @property
    def loudness(self) -> float:
        """Size of the noise relative to `signals`, in the round where it is largest."""
        pairs = zip(self.rounds, self.signals, strict=True)
        return max(float(np.linalg.norm(seen.noise)) / unit for seen, unit in pairs)

    def first(self, rounds: int) -> GraphSimulation:
        """Return the simulation of the first `rounds` rounds."""
        return GraphSimulation(self.method, self.public, self.rounds[:rounds], self.members)
