"""The distance between what candidate rows would send and what was seen, and its slopes, one by one or together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from securefed.attacks.networks.charts import Chart
from securefed.attacks.networks.network import Network
from securefed.attacks.networks.steps import Simulation
from securefed.tensors import Array

Distance = Literal["squared", "cosine"]

TOGETHER = 2**18
"""Entries of gradients that are computed together at most: beyond, the batch leaves the cache and vmap loses to a loop
(measured: `benchmarks.attacks_networks`)."""
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
        batched: `None` decides by `TOGETHER` and `WORTHWHILE`.
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
        self.mask = network.mask().repeat(simulation.copies())
        self._whole = not network.seen
        self._plain = not balance and self._whole
        self._weights = [self.mask * self._balanced(p.message, balance) if balance else self.mask for p in problems]
        self._energy = [
            max(float((p.message * w).square().sum()), 1e-300) for p, w in zip(problems, self._weights, strict=True)
        ]
        alike = all(other is self.charts[0] for other in self.charts)
        most = TOGETHER // max(network.size * simulation.copies(), 1)
        self.together = most if batched is None and alike else 2**20 if batched and alike else 1

    def __call__(self, indices: Array, points: Array) -> tuple[Array, Array]:
        """As `descent.Evaluate`."""
        if self.together < WORTHWHILE or len(points) < WORTHWHILE:
            each = [self._one(int(self.of[i]), point) for i, point in zip(indices, points, strict=True)]
            return np.array([value for value, _ in each]), np.stack([slope for _, slope in each])
        parts = max(1, -(-len(points) // self.together))
        found = [
            self._several(i, p)
            for i, p in zip(np.array_split(indices, parts), np.array_split(points, parts), strict=True)
        ]
        return np.concatenate([value for value, _ in found]), np.concatenate([slope for _, slope in found])

    def relative(self, which: int, rows: Array) -> float:
        """||simulated - seen|| / ||seen|| of rows (B, features); infinite where the simulation blows up."""
        problem = self.problems[which]
        with torch.no_grad():
            x = torch.as_tensor(np.asarray(rows), dtype=self.network.dtype)
            gap, seen = (
                self.simulation(self.network, problem.point, x, problem.targets) - problem.message,
                problem.message,
            )
            if not self._whole:
                gap, seen = gap * self.mask, seen * self.mask
            norm, scale = (float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in (gap, seen))
            value = norm / max(scale, 1e-150)
        return value if np.isfinite(value) else float("inf")

    def _one(self, which: int, point: Array) -> tuple[float, Array]:
        problem, chart = self.problems[which], self.charts[which]
        unknowns = torch.tensor(point.reshape(self.count, -1), dtype=self.network.dtype, requires_grad=True)
        with torch.enable_grad():
            x = chart.rows(unknowns)
            sent = self.simulation(self.network, problem.point, x, problem.targets)
            value = self._distance(sent, problem.message, self._weights[which], self._energy[which]) + self.prior(x)
            (slope,) = torch.autograd.grad(value, unknowns)
        return float(value.detach()), slope.reshape(-1).numpy().astype(np.float64)

    def _several(self, indices: Array, points: Array) -> tuple[Array, Array]:
        which = [int(self.of[i]) for i in indices]
        stacked = [
            torch.stack([getattr(self.problems[k], part) for k in which]) for part in ("point", "message", "targets")
        ]
        weights = torch.stack([self._weights[k] for k in which])
        energies = torch.tensor([self._energy[k] for k in which], dtype=self.network.dtype)
        unknowns = torch.tensor(points.reshape(len(points), self.count, -1), dtype=self.network.dtype)
        unknowns.requires_grad_(True)
        chart = self.charts[0]

        def value(
            unknown: Tensor, point: Tensor, message: Tensor, targets: Tensor, weights: Tensor, energy: Tensor
        ) -> Tensor:
            x = chart.rows(unknown)
            sent = self.simulation(self.network, point, x, targets)
            return self._distance(sent, message, weights, energy) + self.prior(x)

        with torch.enable_grad():
            point, message, targets = stacked
            values = torch.func.vmap(value)(unknowns, point, message, targets, weights, energies)
            (slopes,) = torch.autograd.grad(values.sum(), unknowns)
        return values.detach().numpy().astype(np.float64), slopes.reshape(len(points), -1).numpy().astype(np.float64)

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
        if not self._plain:
            sent, message = sent * weights, message * weights
        if self.distance == "squared":
            return (sent - message).square().sum() / energy
        norm = (sent.square().sum() + 1e-30).sqrt() * energy**0.5
        return 1.0 - torch.dot(sent, message) / norm
