"""The protocol of what gradient algorithms train: a loss over rows, and its gradient by named tensors."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from securefed.algorithms.base import Public
from securefed.registry import Registry
from securefed.tensors import Array, Tensors


@runtime_checkable
class Problem(Protocol):
    """A model and its loss. Parameters and gradients are `Tensors` of the same names and shapes.

    Losses and gradients are MEANS over the rows given; who needs sums multiplies by the number of rows.
    """

    name: ClassVar[str]

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """The parameters' names and shapes. Raises `ConfigError` where the data cannot be trained on."""
        ...

    def gradient_bounds(self, public: Public) -> dict[str, float]:
        """By tensor, the largest absolute entry of a gradient, from public facts."""
        ...

    def initial(self, public: Public, rng: np.random.Generator) -> Tensors:
        """Parameters before the first round."""
        ...

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Mean loss of the rows `x` (rows, features) with labels `y` (rows,)."""
        ...

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> Tensors:
        """Gradient of `loss`."""
        ...

    def predict(self, parameters: Tensors, x: Array) -> Array:
        """(rows,) int64 labels."""
        ...

    def accuracy(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Share of rows whose label is predicted, in [0, 1]."""
        ...


problems: Registry[Problem] = Registry("problem")
