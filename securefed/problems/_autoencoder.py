"""Train an autoencoder: a network that encodes rows in a narrow layer and decodes them, with small squared error.

Rows unlike the training rows are reconstructed worse, which detects anomalies (securefed.detection). Gradient methods
(securefed.algorithms) train the network; parameters are torch tensors by name here, and arrays by name for them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from securefed._hyperparameters import check_choice, checked_integers
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.datasets._base import Dataset
from securefed.problems._initial_weights import STARTS, InitialWeights, draw_weights
from securefed.problems._layers import layer_shapes, run_layers
from securefed.problems._torch_problem import TorchProblem, TorchTensors, tensor


@dataclass(frozen=True, kw_only=True)
class ReconstructionNetwork(TorchProblem):
    """Base class of networks that reconstruct a row; labels are not needed and ignored.

    The reported loss of a row is the mean over features of (x - reconstruct(x))^2; the score is minus its mean.

    Attributes:
        layers: widths of the encoder's layers, the last is the code; the decoder mirrors them.
        start: `glorot` with zero biases, or torch's `uniform`.
    """

    layers: tuple[int, ...] = (16, 4)
    start: InitialWeights = "glorot"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        object.__setattr__(self, "layers", checked_integers("layers", self.layers))
        check_choice("start", self.start, STARTS)

    @abstractmethod
    def reconstruction(self, parameters: TorchTensors, x: torch.Tensor) -> torch.Tensor:
        """Compute the (rows, features) reconstructions of the rows `x`."""

    def targets(self, data: Dataset) -> Array:
        """Return an empty (rows, 0) array: there are no targets, since a row is compared with itself."""
        return np.empty((data.rows, 0))

    def initial(self, public: Public, rng: np.random.Generator) -> dict[str, Array]:
        """Return the parameters before the first round."""
        return draw_weights(self.shapes(public), self.start, rng)

    def reconstruct(self, parameters: Tensors, x: Array) -> Array:
        """Compute the (rows, features) reconstructions of the rows `x`."""
        with torch.no_grad():
            found = self.reconstruction(self.tensors(parameters), tensor(np.asarray(x, self.dtype)))
        return np.asarray(found.numpy())


@dataclass(frozen=True, kw_only=True)
class Autoencoder(ReconstructionNetwork):
    """Autoencoder with ReLU between the encoder's layers and between the decoder's, not on the code or the output.

    Parameters: `encoder.weight1`, `encoder.bias1`, ..., `decoder.weight1`, ...

    Source: FedAE and FedAE-2 of Federated PCA on Grassmann Manifold, sec. V-A2, which names two and four layers and
    no widths: two layers by default, `layers=(32, 16, 8, 4)` for instance makes four.
    """

    name: ClassVar[str] = "autoencoder"

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        widths = (public.features, *self.layers)
        return layer_shapes("encoder", widths) | layer_shapes("decoder", widths[::-1])

    def row_losses(self, parameters: TorchTensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Compute the (rows,) losses of the rows `x`."""
        return (self.reconstruction(parameters, x) - x).square().mean(dim=1)

    def reconstruction(self, parameters: TorchTensors, x: torch.Tensor) -> torch.Tensor:
        """Compute decoder(encoder(x)), (rows, features)."""
        count = len(self.layers)
        code = run_layers("encoder", parameters, x, count)
        return run_layers("decoder", parameters, code, count)
