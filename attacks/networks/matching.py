"""The distance between what candidate rows would send and what was seen, and its slopes, one by one or together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from securefed.attacks.networks.charts import Chart
from securefed.attacks.networks.network import Network
from securefed.attacks.networks.steps import Simulation
from securefed.tensors import Array

Distance = Literal["squared", "cosine"]

TOGETHER, APART = 2**20, 2**18
"""Entries of gradients that candidates of one message, and of several, are computed together with at most: beyond, the
batch leaves the cache and vmap loses to a loop (measured: `benchmarks.attacks_networks`). Candidates of one message
share its parameters, of which candidates of several need copies."""
WORTHWHILE = 4
"""Fewest candidates that are worth a batch."""
_FAINT = 1e-6
"""Share of the largest energy that a tensor's weight is computed with at least: a silent layer must not decide."""


@dataclass(frozen=True)
class Prior:
    """What is known of rows before any message.

    Attributes:
        low, high: public range of the entries; leaving it costs `box` times the mean squared excess.
        variation: weight of the mean absolute difference of neighbouring pixels.
        image: (channels, height, width) of rows that are images; `None` without neighbours.
    """

    low: float
    high: float
    box: float = 1e-3
    variation: float = 0.0
    image: tuple[int, int, int] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """The penalty of rows (B, features)."""
        span = self.high - self.low
        out: Tensor = ((self.low - x).relu().square() + (x - self.high).relu().square()).mean() * (self.box / span**2)
        if self.variation and self.image is not None:
            pictures = x.reshape(-1, *self.image)
            across, down = pictures.diff(dim=-1), pictures.diff(dim=-2)
            smooth = (across.square() + 1e-6).sqrt().mean() + (down.square() + 1e-6).sqrt().mean()
            out = out + self.variation / span * smooth
        return out


@dataclass(frozen=True)
class Problem:
    """One message to invert: where the client started, what it sent, and what its rows are compared with.

    Attributes:
        point: (parameters,).      message: (copies * parameters,).      targets: (B, ...).
    """

    point: Tensor
    message: Tensor
    targets: Tensor


class Matching:
    """Values and slopes of candidates for several problems of the same network and simulation.

    Args:
        of: which problem each candidate belongs to.
        balance: b weighs the squared misfit of each tensor by its energy^-b: 0 as sent, 1 all tensors alike, beyond 1
            those of the first layers more, whose gradients are small and say most of the rows.
        batched: `None` decides by `TOGETHER`, `APART` and `WORTHWHILE`.
    """

    def __init__(
        self,
        network: Network,
        simulation: Simulation,
        problems: Sequence[Problem],
        of: Sequence[int] | Array,
        chart: Chart | Sequence[Chart],
        prior: Prior,
        distance: Distance = "squared",
        *,
        balance: float = 0.0,
        batched: bool | None = None,
    ) -> None:
        self.network, self.simulation, self.prior, self.distance = network, simulation, prior, distance
        self.problems, self.of = problems, np.asarray(of)
        self.charts = list(chart) if isinstance(chart, Sequence) else [chart] * len(problems)
        self.count = len(problems[0].targets)
        self._whole, self._balance, self._batched = not network.seen, balance, batched

    def __call__(self, indices: Array, points: Array) -> tuple[Array, Array]:
        """As `descent.Evaluate`."""
        values, slopes = np.empty(len(points)), np.empty(points.shape)
        for part in self._parts(self.of[indices]):
            if len(part) == 1:
                values[part], slopes[part] = self._one(int(self.of[indices[part[0]]]), points[part[0]])
            else:
                values[part], slopes[part] = self._several(self.of[indices[part]], points[part])
        return values, slopes

    def _parts(self, of: Array) -> list[Array]:
        """Places of candidates that are computed together: of one message where there are enough, else of several."""
        own = [np.flatnonzero(of == which) for which in np.unique(of)]
        few = [places for places in own if len(places) < WORTHWHILE]
        kinds = [(places, TOGETHER) for places in own if len(places) >= WORTHWHILE]
        kinds += [(np.concatenate(few), APART)] if few else []
        sent = max(self.network.size * self.simulation.copies(), 1)
        parts: list[Array] = []
        for places, entries in kinds:
            most, alike = entries // sent, len({id(self.charts[k]) for k in of[places]}) == 1
            together = min(most, len(places)) >= WORTHWHILE if self._batched is None else self._batched
            most = (most if self._batched is None else len(places)) if together and alike else 1
            parts += np.array_split(places, -(-len(places) // most))
        return parts

    def relative(self, which: int, rows: Array) -> float:
        """||simulated - seen|| / ||seen|| of rows (B, features); infinite where the simulation blows up."""
        problem = self.problems[which]
        with torch.no_grad():
            x = torch.as_tensor(np.asarray(rows), dtype=self.network.dtype)
            seen = problem.message
            gap = self.simulation(self.network.plain, problem.point, x, problem.targets) - seen
            if not self._whole:
                gap, seen = gap * self._mask, seen * self._mask
            value = _norm(gap) / max(_norm(seen), 1e-150)
        return value if np.isfinite(value) else float("inf")

    def _one(self, which: int, point: Array) -> tuple[float, Array]:
        problem, chart = self.problems[which], self.charts[which]
        unknowns = torch.tensor(point.reshape(self.count, -1), dtype=self.network.dtype, requires_grad=True)
        with torch.enable_grad():
            x = chart.rows(unknowns)
            sent = self.simulation(self.network.plain, problem.point, x, problem.targets)
            value = self._distance(sent, problem.message, self._weights[which], self._energy[which]) + self.prior(x)
            (slope,) = torch.autograd.grad(value, unknowns)
        return float(value.detach()), slope.reshape(-1).numpy().astype(np.float64)

    def _several(self, of: Array, points: Array) -> tuple[Array, Array]:
        unknowns = torch.tensor(points.reshape(len(points), self.count, -1), dtype=self.network.dtype)
        unknowns.requires_grad_(True)
        chart, one = self.charts[of[0]], len(set(of.tolist())) == 1
        facts = [self._facts(k) for k in (of[:1] if one else of)]
        given = facts[0] if one else tuple(map(torch.stack, zip(*facts, strict=True)))

        def value(
            unknown: Tensor, point: Tensor, message: Tensor, targets: Tensor, weights: Tensor, energy: Tensor
        ) -> Tensor:
            x = chart.rows(unknown)
            sent = self.simulation(self.network, point, x, targets)
            return self._distance(sent, message, weights, energy) + self.prior(x)

        with torch.enable_grad():
            shared = None if one else 0
            values = torch.func.vmap(value, in_dims=(0, *(shared for _ in given)))(unknowns, *given)
            (slopes,) = torch.autograd.grad(values.sum(), unknowns)
        return values.detach().numpy().astype(np.float64), slopes.reshape(len(points), -1).numpy().astype(np.float64)

    def _facts(self, which: int) -> tuple[Tensor, ...]:
        """What a candidate is measured by."""
        problem = self.problems[which]
        energy = torch.tensor(self._energy[which], dtype=self.network.dtype)
        return problem.point, problem.message, problem.targets, self._weights[which], energy

    @cached_property
    def _mask(self) -> Tensor:
        return self.network.mask().repeat(self.simulation.copies())

    @cached_property
    def _weights(self) -> list[Tensor]:
        """The root of each entry's weight, by problem; 1 where all count alike."""
        if self._whole and not self._balance:
            return [torch.ones((), dtype=self.network.dtype)] * len(self.problems)
        if not self._balance:
            return [self._mask] * len(self.problems)
        return [self._mask * self._balanced(problem.message, self._balance) for problem in self.problems]

    @cached_property
    def _energy(self) -> list[float]:
        parts = zip(self.problems, self._weights, strict=True)
        return [max(float((problem.message * weights).square().sum()), 1e-300) for problem, weights in parts]

    def _balanced(self, message: Tensor, balance: float) -> Tensor:
        """(length,) the root of each entry's weight."""
        out = torch.ones_like(message)
        shape = (-1, self.network.size)
        for part, own in zip(message.reshape(shape).unbind(), out.view(shape).unbind(), strict=True):
            energy = {name: value.square().sum() for name, value in self.network.split(part).items()}
            least = _FAINT * max(energy.values())
            for name, place in self.network.places.items():
                own[place] = energy[name].clamp_min(least).clamp_min(1e-30) ** (-0.5 * balance)
        return out

    def _distance(self, sent: Tensor, message: Tensor, weights: Tensor, energy: Tensor | float) -> Tensor:
        if weights.ndim:
            sent, message = sent * weights, message * weights
        if self.distance == "squared":
            return (sent - message).square().sum() / energy
        norm = (sent.square().sum() + 1e-30).sqrt() * energy**0.5
        return 1.0 - torch.dot(sent, message) / norm


def _norm(vector: Tensor) -> float:
    """Of a vector in single precision too, where squares of its entries may leave the range."""
    found = float(vector.norm())
    return found if 1e-15 < found < 1e15 else float(vector.double().norm())
