"""Autoencoder: rows through a narrow layer and back; rows unlike the training rows come back worse."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from securefed.datasets.base import Dataset
from securefed.problems.initial import STARTS, Start, drawn
from securefed.problems.layers import layer_shapes, run_layers
from securefed.problems.torch_problem import Named, TorchProblem, tensor
from securefed.public import Public, require
from securefed.tensors import Array, Tensors


@dataclass(frozen=True, kw_only=True)
class Reconstruction(TorchProblem):
    """Base of the networks that are to give a row back. Needs no labels, and ignores those there are.

    The reported loss of a row is the mean over features of (x - reconstruct(x))^2; the score is minus its mean.

    Attributes:
        layers: widths of the encoder's layers, the last is the code; what leads back mirrors them.
        start: `glorot` with zero biases, or torch's `uniform`.
    """

    layers: tuple[int, ...] = (16, 4)
    start: Start = "glorot"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "layers", tuple(self.layers))
        require(
            len(self.layers) > 0 and min(self.layers) >= 1,
            f"layers must name the width of at least one layer, not {self.layers}",
        )
        require(self.start in STARTS, f"start is one of {STARTS}, not {self.start!r}")

    @abstractmethod
    def reconstruction(self, parameters: Named, x: torch.Tensor) -> torch.Tensor:
        """(rows, features) what becomes of the rows `x`."""

    def targets(self, data: Dataset) -> Array:
        """(rows, 0): a row is compared with itself."""
        return np.empty((data.rows, 0))

    def initial(self, public: Public, rng: np.random.Generator) -> dict[str, Array]:
        return drawn(self.shapes(public), self.start, rng)

    def reconstruct(self, parameters: Tensors, x: Array) -> Array:
        """(rows, features) what becomes of the rows `x`."""
        with torch.no_grad():
            found = self.reconstruction(self.tensors(parameters), tensor(np.asarray(x, self.dtype)))
        return np.asarray(found.numpy())


@dataclass(frozen=True, kw_only=True)
class Autoencoder(Reconstruction):
    """`encoder.weight1`, `encoder.bias1`, ..., `decoder.weight1`, ...: ReLU between layers, none after the last.

    Source: FedAE and FedAE-2 of Federated PCA on Grassmann Manifold, sec. V-A2, which names two and four layers and
    no widths: two layers by default, `layers=(32, 16, 8, 4)` for instance makes four.
    """

    name: ClassVar[str] = "autoencoder"

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        widths = (public.features, *self.layers)
        return layer_shapes("encoder", widths) | layer_shapes("decoder", widths[::-1])

    def row_losses(self, parameters: Named, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.reconstruction(parameters, x) - x).square().mean(dim=1)

    def reconstruction(self, parameters: Named, x: torch.Tensor) -> torch.Tensor:
        count = len(self.layers)
        code = run_layers("encoder", parameters, x, count)
        return run_layers("decoder", parameters, code, count)
