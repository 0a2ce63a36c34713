"""Compute the objective of gradient matching, and its gradient, for many candidate batches of rows at a time.

Gradient inversion searches for rows whose simulated message equals an observed one (a gradient or a model update). For
rows x and targets y the objective is ||simulated(x, y) - observed||^2 / ||observed||^2, tensors optionally weighted,
plus a penalty on x. A candidate is one guess of all rows of the batch. Its unknowns are the rows' entries, or fewer
numbers that determine them (`row_parametrisations`). `staged_inversion` passes this objective to its searches. Sources:
Zhu et al. 2019; Geiping et al. 2020 (total variation).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from securefed._tensors import Array
from securefed.attacks._networks.client_simulations import ClientSimulation
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._networks.row_parametrisations import RowParametrisation

VMAP_ENTRIES = 2**20
"""Most gradient entries that one `vmap` computes: beyond, they leave the cache, and `vmap` loses to a loop (784-200-10,
64 candidates: 70 ms in groups of this size, 108 one by one, 154 all together; `benchmarks.peers.attacks_networks`)."""
VMAP_CANDIDATES = 4
"""Fewest candidates that are computed by `vmap`: setting it up costs about what two evaluations cost."""
_LEAST_ENERGY = 1e-6
"""Smallest squared norm from which a tensor's weight is computed, as a share of the largest: otherwise a layer whose
gradient is about zero would get a weight that dominates the objective."""


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
        message: (copies * parameters,) message of the client: one or several vectors of all parameters.
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
        balance: exponent b; the squared error of each tensor is weighted by (its squared norm)^-b. 0 leaves the message
            as it is; 1 counts all tensors alike, so that the small gradients of the first layers count more.
        batched: whether candidates are computed by `vmap`; `None` decides by `VMAP_ENTRIES` and `VMAP_CANDIDATES`.
    """

    def __init__(
        self,
        network: FlatNetwork,
        simulation: ClientSimulation,
        problem: InversionProblem,
        parametrisation: RowParametrisation,
        prior: RowPrior,
        *,
        balance: float = 0.0,
        batched: bool | None = None,
    ) -> None:
        self.network, self.simulation, self.problem = network, simulation, problem
        self.parametrisation, self.prior = parametrisation, prior
        self.count = len(problem.targets)
        self._balance, self._batched = balance, batched

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Return the values (k,) and gradients (k, n) of the candidates `points` (k, n), n unknowns each."""
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
            largest_group = VMAP_ENTRIES // max(self.network.size * self.simulation.copies(), 1)
            group = largest_group if min(largest_group, candidates) >= VMAP_CANDIDATES else 1
        else:
            group = candidates if self._batched else 1
        return np.array_split(np.arange(candidates), -(-candidates // group))

    def relative(self, rows: Array) -> float:
        """Return ||simulated - observed|| / ||observed|| of rows (B, features); infinite where the steps diverge."""
        problem = self.problem
        with torch.no_grad():
            x = torch.as_tensor(np.asarray(rows), dtype=self.network.dtype)
            difference = self.simulation(self.network.plain, problem.point, x, problem.targets) - problem.message
            value = _norm(difference) / max(_norm(problem.message), 1e-150)
        return value if np.isfinite(value) else float("inf")

    def _value(self, network: FlatNetwork, unknowns: Tensor) -> Tensor:
        """Return the objective of one candidate."""
        x = self.parametrisation.rows(unknowns)
        sent = self.simulation(network, self.problem.point, x, self.problem.targets)
        return self._distance(sent) + self.prior(x)

    def _one(self, point: Array) -> tuple[float, Array]:
        """Return value and slope of one candidate, by plain autograd; `network.plain` does not work under `vmap`."""
        unknowns = torch.tensor(point.reshape(self.count, -1), dtype=self.network.dtype, requires_grad=True)
        with torch.enable_grad():
            value = self._value(self.network.plain, unknowns)
            (slope,) = torch.autograd.grad(value, unknowns)
        return float(value.detach()), slope.reshape(-1).numpy().astype(np.float64)

    def _several(self, points: Array) -> tuple[Array, Array]:
        """Return values and slopes of several candidates, by `vmap`."""
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
        for vector, weights in zip(self.problem.message.reshape(shape).unbind(), out.view(shape).unbind(), strict=True):
            energy = {name: value.square().sum() for name, value in self.network.split(vector).items()}
            floor = _LEAST_ENERGY * max(energy.values())
            for name, entries in self.network.places.items():
                weights[entries] = energy[name].clamp_min(floor).clamp_min(1e-30) ** (-0.5 * self._balance)
        return out

    @cached_property
    def _energy(self) -> float:
        """The squared norm of the weighted observed message."""
        return max(float((self.problem.message * self._weights).square().sum()), 1e-300)

    def _distance(self, sent: Tensor) -> Tensor:
        """Return the distance of a simulated message from the observed one."""
        message = self.problem.message
        if self._weights.ndim:
            sent, message = sent * self._weights, message * self._weights
        return (sent - message).square().sum().div(self._energy)


def _norm(vector: Tensor) -> float:
    """Return the norm, also of vectors in single precision, where squares of the entries may leave the range."""
    norm = float(vector.norm())
    return norm if 1e-15 < norm < 1e15 else float(vector.double().norm())
