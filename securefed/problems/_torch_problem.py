"""Compute gradients of a problem by torch: parameters by name, one loss a row. Importing this imports torch.

Gradient methods (securefed.algorithms) call `gradient` for one client; simulations call `gradients` for several clients
at once. Rows x are then (clients, widest, features), `widest` the largest number of rows of a client, and `weights`
(clients, widest) holds 1 / rows of the client, 0 on padding.

Arrays and tensors share memory; torch's global settings (threads, default dtype, random state) are left as found.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from securefed._hyperparameters import check_choice, check_number, check_positive
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.problems._base import PRECISIONS, BaseProblem, Precision

TorchTensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class TorchProblem(BaseProblem):
    """Base class of networks: a subclass defines the loss of a row, torch computes the gradients.

    Rows must not see each other (no batch statistics), since several clients are computed on rows padded at weight 0.

    Attributes:
        precision: the precision of parameters, gradients and all arithmetic.
        gradient_bound: declared largest entry of a gradient, which scales fixed-point sums. No bound is known for a
            network: beyond it a client refuses, and the run repeats the round with twice the bound, twenty times at
            most.
        l2: weight of l2/2 ||W||^2 over the parameters with two or more axes, >= 0; biases are not penalised.
    """

    precision: Precision = "float32"
    gradient_bound: float = 1.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        check_choice("precision", self.precision, PRECISIONS)
        check_positive("gradient_bound", self.gradient_bound)
        check_number("l2", self.l2, 0)

    @abstractmethod
    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""

    @abstractmethod
    def row_losses(self, parameters: TorchTensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Compute the (rows,) losses of the rows `x` (rows, features); each depends on its own row alone."""

    def companions(self, x: Array, y: Array) -> Array:
        """Return what `row_losses` gets as its y for one client's rows: an array with one line for each row.

        These are the targets `y`, unless a subclass needs something else: a GAN draws each row's random code here. No
        generator is passed, so the result must follow from `x` and `y` alone: the GAN seeds its own by a digest of `x`.
        """
        return y

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of parameters and gradients."""
        return np.dtype(self.precision)

    def gradient_bounds(self, public: Public) -> dict[str, float]:
        """Return the declared `gradient_bound` for every tensor."""
        return dict.fromkeys(self.shapes(public), self.gradient_bound)

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Compute the mean loss of the rows `x`, regulariser included."""
        x = np.asarray(x, self.dtype)
        with torch.no_grad():
            weights = torch.full((len(x),), 1 / len(x), dtype=getattr(torch, self.precision))
            return float(self.objective(self.tensors(parameters), tensor(x), tensor(self.companions(x, y)), weights))

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> dict[str, Array]:
        """Compute the gradient of `loss`."""
        x = np.asarray(x, self.dtype)
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in self.tensors(parameters).items()}
            weights = torch.full((len(x),), 1 / len(x), dtype=getattr(torch, self.precision))
            total = self.objective(leaves, tensor(x), tensor(self.companions(x, y)), weights)
            found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return {name: value.numpy() for name, value in zip(leaves, found, strict=True)}

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the mean gradients of several clients at once, (clients, *shape) by name."""
        x = np.asarray(x, self.dtype)
        y, weights = self._companions(x, y, weights), np.asarray(weights, self.dtype)
        with torch.enable_grad():  # a client's loss depends on its own parameters, so one gradient of the sum is all
            leaves = {name: value.detach().requires_grad_() for name, value in self.tensors(parameters).items()}
            total = torch.func.vmap(self.objective)(leaves, tensor(x), tensor(y), tensor(weights)).sum()
            found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return {name: value.numpy() for name, value in zip(leaves, found, strict=True)}

    def objective(
        self, parameters: TorchTensors, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute the weighted sum of the rows' losses, regulariser included."""
        total = torch.dot(self.row_losses(parameters, x, y), weights)
        if self.l2:
            total = total + 0.5 * self.l2 * sum(w.square().sum() for w in parameters.values() if w.ndim >= 2)
        return total

    def tensors(self, parameters: Tensors) -> dict[str, torch.Tensor]:
        """Return the parameters as torch tensors in the problem's precision."""
        return {name: tensor(np.asarray(value, self.dtype)) for name, value in parameters.items()}

    def _companions(self, x: Array, y: Array, weights: Array) -> Array:
        """Return `companions` of several clients' rows, (clients, widest, ...); padding has zeros."""
        if type(self).companions is TorchProblem.companions:
            return y
        out = None
        for k, weight in enumerate(weights):
            rows = int(np.count_nonzero(weight))
            own = self.companions(x[k, :rows], y[k, :rows])
            out = np.zeros((*x.shape[:2], *own.shape[1:]), own.dtype) if out is None else out
            out[k, :rows] = own
        return y if out is None else out


def tensor(array: Array) -> torch.Tensor:
    """Make a tensor on the array's memory, for reading only.

    `torch.from_numpy` warns of arrays that are read-only (broadcast, or mapped from a file); nothing here writes.
    """
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_WritableView(array)))


class _WritableView:
    """A read-only array's memory, declared writable."""

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}
