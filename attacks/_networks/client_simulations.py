"""Simulate what a client sends, as a differentiable function of its rows: one gradient, or several local steps.

With parameters w, rows x and targets y, `OneGradient` returns the mean gradient g(w; x, y), and `LocalSteps` returns
w_T - w_0 with w_{t+1} = w_t - eta g(w_t; batch t). Gradient inversion searches for the rows whose simulated message
equals the observed one. Clients of this package's own methods are simulated by `first_round` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import Protocol

import torch
from torch import Tensor

from securefed._public import require
from securefed.attacks._networks.flat_network import FlatNetwork


class ClientSimulation(Protocol):
    """Maps rows to a message, in torch from end to end."""

    def __call__(self, network: FlatNetwork, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the message (copies * parameters,) of rows (B, features) with targets (B, ...), from a flat point."""
        ...

    def copies(self) -> int:
        """Return the number of vectors of parameters in a message."""
        ...


@dataclass(frozen=True)
class OneGradient:
    """The mean gradient over the rows at the point."""

    def __call__(self, network: FlatNetwork, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient (parameters,)."""
        return network.gradient(point, x, y, mean_weights(x))

    def copies(self) -> int:
        """Return 1."""
        return 1


@dataclass(frozen=True)
class LocalSteps:
    """The update (end minus start) of gradient descent on the client's rows.

    The attacker does not know which rows each mini-batch held. The reconstructed rows may come in any order, so the
    first pass takes them in theirs; that later passes keep these batches is an assumption, and the residual of the
    inversion shows what it costs.

    Attributes:
        learning_rate: eta.
        steps: T, the number of steps.
        batch_size: rows of a step; `None` takes all.
        drop_last: whether a pass leaves out the rows that do not fill a last batch; by default they are a smaller one.
            Both mean what they do in torch's `DataLoader`. A batch larger than the rows leaves none, and is refused.
    """

    learning_rate: float
    steps: int
    batch_size: int | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.learning_rate > 0, f"learning_rate must be positive, not {self.learning_rate}")
        require(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        size = self.batch_size
        require(size is None or size >= 1, f"batch_size must be at least 1, or None for all rows, not {size}")

    def __call__(self, network: FlatNetwork, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the update (parameters,)."""
        parameters = point
        for batch in self._batches(len(x)):
            parameters = parameters - self.learning_rate * network.gradient(
                parameters, x[batch], y[batch], mean_weights(x[batch])
            )
        return parameters - point

    def _batches(self, rows: int) -> list[slice]:
        """Return the rows of each step.

        Raises:
            ConfigError: a pass has no batch.
        """
        if self.drop_last:
            require(
                self.batch_size is None or self.batch_size <= rows,
                f"a pass over {rows} rows has no batch of {self.batch_size} with drop_last=True, so that no step is "
                "made; lower batch_size, or let the last batch be smaller",
            )
            return batch_slices(rows, self.batch_size, self.steps)
        return list(islice(cycle(pass_slices(rows, self.batch_size, 1)), self.steps))

    def copies(self) -> int:
        """Return 1."""
        return 1


def batch_slices(rows: int, size: int | None, steps: int) -> list[slice]:
    """Return the rows of each step: all, or whole batches in the rows' order, pass after pass."""
    if size is None or size >= rows:
        return [slice(None)] * steps
    batches = rows // size
    return [slice(size * (k % batches), size * (k % batches + 1)) for k in range(steps)]


def pass_slices(rows: int, size: int | None, passes: int) -> list[slice]:
    """Return the rows of each step of so many passes over the rows in order; passes may end in a smaller batch."""
    if size is None or size >= rows:
        return [slice(None)] * passes
    return [slice(start, start + size) for start in range(0, rows, size)] * passes


def mean_gradient(simulation: OneGradient | LocalSteps, message: Tensor) -> Tensor:
    """Return the message as one gradient: exact for one step, the average along the path for several."""
    if isinstance(simulation, OneGradient):
        return message
    return -message / (simulation.learning_rate * simulation.steps)


def mean_weights(x: Tensor) -> Tensor:
    """Return the weights (B,) of the rows in a mean."""
    return torch.full((len(x),), 1.0 / len(x), dtype=x.dtype)
