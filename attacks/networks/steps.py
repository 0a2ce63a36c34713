"""What a client sends, as a function of its rows: a gradient, an update of several local steps, a method's messages.

Every simulation is differentiable in the rows, and in torch from end to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from securefed.attacks.networks.network import Network
from securefed.public import require


class Simulation(Protocol):
    """(point (parameters,), rows (B, features), targets (B, ...)) -> messages (length,)."""

    def __call__(self, network: Network, point: Tensor, x: Tensor, y: Tensor) -> Tensor: ...

    def copies(self) -> int:
        """Vectors of parameters in a message."""
        ...


@dataclass(frozen=True)
class OneGradient:
    """The mean gradient over the rows at the point."""

    def __call__(self, network: Network, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return network.gradient(point, x, y, _mean(x))

    def copies(self) -> int:
        return 1


@dataclass(frozen=True)
class LocalSteps:
    """The update (end minus start) of gradient descent on the client's rows.

    Which rows a mini-batch held is the client's secret. Rows have no order of their own, so the first pass takes them
    as they come; that later passes keep these batches is an assumption, and the residual shows what it costs.

    Attributes:
        learning_rate: eta.      steps: T.
        batch_size: rows of a step; `None` takes all.
    """

    learning_rate: float
    steps: int
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, f"learning_rate must be positive, not {self.learning_rate}")
        require(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        size = self.batch_size
        require(size is None or size >= 1, f"batch_size must be at least 1, or None for all rows, not {size}")

    def __call__(self, network: Network, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        at = point
        for part in passes(len(x), self.batch_size, self.steps):
            at = at - self.learning_rate * network.gradient(at, x[part], y[part], _mean(x[part]))
        return at - point

    def copies(self) -> int:
        return 1


def passes(rows: int, size: int | None, steps: int) -> list[slice]:
    """Rows of each step: all, or whole batches in the rows' order, pass after pass, as clients make them."""
    if size is None or size >= rows:
        return [slice(None)] * steps
    whole = rows // size
    return [slice(size * (k % whole), size * (k % whole + 1)) for k in range(steps)]


def mean_gradient(simulation: OneGradient | LocalSteps, message: Tensor) -> Tensor:
    """The message as one gradient: exact for one step, the average along the path for several."""
    if isinstance(simulation, OneGradient):
        return message
    return -message / (simulation.learning_rate * simulation.steps)


def _mean(x: Tensor) -> Tensor:
    return torch.full((len(x),), 1.0 / len(x), dtype=x.dtype)
