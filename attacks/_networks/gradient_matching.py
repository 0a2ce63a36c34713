"""Compute the distance between simulated and observed messages, and its gradient, for many candidate rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from securefed._tensors import Array
from securefed.attacks._networks.client_simulations import ClientSimulation
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._networks.row_parametrisations import RowParametrisation

Distance = Literal["squared", "cosine"]

TOGETHER = 2**20
"""Most gradient entries that one `vmap` computes: beyond, they leave the cache, and `vmap` loses to a loop (784-200-10,
64 candidates: 70 ms in groups of this size, 108 one by one, 154 all together; `benchmarks.peers.attacks_networks`)."""
WORTHWHILE = 4
"""Fewest candidates that are computed by `vmap`: setting it up costs about what two evaluations cost."""
_FAINT = 1e-6
"""Smallest energy that weighs a tensor, as a share of the largest: a layer without a gradient must not decide."""


@dataclass(frozen=True)
class RowPrior:
    """Prior knowledge about the rows, as a penalty.

    Attributes:
        low: smallest entry.
        high: largest entry.
        box: weight of the mean squared excess over the range.
        variation: weight of the mean absolute difference of neighbouring pixels (total variation).
        image: (channels, height, width) of rows that are images; `None` for other rows, which have no neighbours.
    """

    low: float
    high: float
    box: float = 1e-3
    variation: float = 0.0
    image: tuple[int, int, int] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the penalty of rows (B, features)."""
        span = self.high - self.low
        out: Tensor = ((self.low - x).relu().square() + (x - self.high).relu().square()).mean() * (self.box / span**2)
        if self.variation and self.image is not None:
            pictures = x.reshape(-1, *self.image)
            across, down = pictures.diff(dim=-1), pictures.diff(dim=-2)
            smooth = (across.square() + 1e-6).sqrt().mean() + (down.square() + 1e-6).sqrt().mean()
            out = out + self.variation / span * smooth
        return out


@dataclass(frozen=True)
class InversionProblem:
    """One message to invert.

    Attributes:
        point: (parameters,) initial parameters of the client.
        message: (copies * parameters,) message of the client.
        targets: (B, ...) labels or targets of its rows.
    """

    point: Tensor
    message: Tensor
    targets: Tensor


class GradientMatching:
    """The distance between simulated and observed message, as a function of the unknowns of candidate rows.

    Args:
        network: the model and its loss.
        simulation: what a client sends, as a function of its rows.
        problem: the message.
        parametrisation: how unknowns become rows.
        prior: a penalty of the rows.
        distance: squared error or cosine distance.
        balance: exponent b; the squared error of each tensor is weighted by (its squared norm)^-b. 0 leaves the message
            as it is; 1 counts all tensors alike, so that the small gradients of the first layers count more.
        batched: whether candidates are computed by `vmap`; `None` decides by `TOGETHER` and `WORTHWHILE`.
    """

    def __init__(
        self,
        network: FlatNetwork,
        simulation: ClientSimulation,
        problem: InversionProblem,
        parametrisation: RowParametrisation,
        prior: RowPrior,
        distance: Distance = "squared",
        *,
        balance: float = 0.0,
        batched: bool | None = None,
    ) -> None:
        self.network, self.simulation, self.problem = network, simulation, problem
        self.parametrisation, self.prior, self.distance = parametrisation, prior, distance
        self.count = len(problem.targets)
        self._balance, self._batched = balance, batched

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Return the values (k,) and slopes (k, n) of the candidates `points` (k, n)."""
        values, slopes = np.empty(len(points)), np.empty(points.shape)
        for part in self._parts(len(points)):
            if len(part) == 1:
                values[part], slopes[part] = self._one(points[part[0]])
            else:
                values[part], slopes[part] = self._several(points[part])
        return values, slopes

    def _parts(self, candidates: int) -> list[Array]:
        """Split the candidates into groups that are computed together."""
        if self._batched is None:
            most = TOGETHER // max(self.network.size * self.simulation.copies(), 1)
            together = most if min(most, candidates) >= WORTHWHILE else 1
        else:
            together = candidates if self._batched else 1
        return np.array_split(np.arange(candidates), -(-candidates // together))

    def relative(self, rows: Array) -> float:
        """Return ||simulated - observed|| / ||observed|| of rows (B, features); infinite where the steps diverge."""
        problem = self.problem
        with torch.no_grad():
            x = torch.as_tensor(np.asarray(rows), dtype=self.network.dtype)
            gap = self.simulation(self.network.plain, problem.point, x, problem.targets) - problem.message
            value = _norm(gap) / max(_norm(problem.message), 1e-150)
        return value if np.isfinite(value) else float("inf")

    def _value(self, network: FlatNetwork, unknowns: Tensor) -> Tensor:
        x = self.parametrisation.rows(unknowns)
        sent = self.simulation(network, self.problem.point, x, self.problem.targets)
        return self._distance(sent) + self.prior(x)

    def _one(self, point: Array) -> tuple[float, Array]:
        unknowns = torch.tensor(point.reshape(self.count, -1), dtype=self.network.dtype, requires_grad=True)
        with torch.enable_grad():
            value = self._value(self.network.plain, unknowns)
            (slope,) = torch.autograd.grad(value, unknowns)
        return float(value.detach()), slope.reshape(-1).numpy().astype(np.float64)

    def _several(self, points: Array) -> tuple[Array, Array]:
        unknowns = torch.tensor(points.reshape(len(points), self.count, -1), dtype=self.network.dtype)
        unknowns.requires_grad_(True)
        with torch.enable_grad():
            values = torch.func.vmap(lambda unknown: self._value(self.network, unknown))(unknowns)
            (slopes,) = torch.autograd.grad(values.sum(), unknowns)
        return values.detach().numpy().astype(np.float64), slopes.reshape(len(points), -1).numpy().astype(np.float64)

    @cached_property
    def _weights(self) -> Tensor:
        """The root of each entry's weight; a single 1 where all count alike."""
        if not self._balance:
            return torch.ones((), dtype=self.network.dtype)
        out = torch.ones_like(self.problem.message)
        shape = (-1, self.network.size)
        for part, own in zip(self.problem.message.reshape(shape).unbind(), out.view(shape).unbind(), strict=True):
            energy = {name: value.square().sum() for name, value in self.network.split(part).items()}
            least = _FAINT * max(energy.values())
            for name, place in self.network.places.items():
                own[place] = energy[name].clamp_min(least).clamp_min(1e-30) ** (-0.5 * self._balance)
        return out

    @cached_property
    def _energy(self) -> float:
        return max(float((self.problem.message * self._weights).square().sum()), 1e-300)

    def _distance(self, sent: Tensor) -> Tensor:
        message = self.problem.message
        if self._weights.ndim:
            sent, message = sent * self._weights, message * self._weights
        if self.distance == "squared":
            return (sent - message).square().sum().div(self._energy)
        norm = (sent.square().sum() + 1e-30).sqrt() * self._energy**0.5
        cosine: Tensor = torch.dot(sent, message).div(norm)
        return cosine.neg().add(1.0)


def _norm(vector: Tensor) -> float:
    """Return the norm, also of vectors in single precision, where squares of the entries may leave the range."""
    found = float(vector.norm())
    return found if 1e-15 < found < 1e15 else float(vector.double().norm())
