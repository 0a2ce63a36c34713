"""Train FLAME's network for images (`cnn`): two convolutions with pooling, two linear layers.

Rows hold images; parameters and gradients are arrays by name. `TorchProblem` computes gradients by torch, and gradient
methods (securefed.algorithms) train the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from securefed._hyperparameters import check_choice, check_integer, checked_integers
from securefed._public import Public, require
from securefed._tensors import Array, Tensors
from securefed.problems._base import BaseProblem, check_classes
from securefed.problems._initial_weights import STARTS, InitialWeights, draw_weights
from securefed.problems._torch_classifier import TorchClassifier
from securefed.problems._torch_problem import TorchTensors

SMALLEST_SIDE = 10
"""Smallest height and width of an image; below, nothing is left after the second pooling."""


@dataclass(frozen=True, kw_only=True)
class ConvolutionalNetwork(TorchClassifier):
    """Convolutional network: twice (convolution 3x3, ReLU, pooling 2x2), then linear, ReLU, linear.

    The paper gives the count of parameters only (FLAME, table I); the authors' code has these layers: on 3x64x64
    images and 6 classes they hold 206,678. Its dropout before the first linear layer is left out: every client would
    draw its own, and no two runs would agree.

    The parameters are `convolution1` (32, channels, 3, 3), `convolution1_bias` (32,), `convolution2` (16, 32, 3, 3),
    ..., `linear1`, `linear2` with their biases.

    Attributes:
        image_shape: (channels, height, width); rows hold an image in this order.
        channels: outputs of the two convolutions.
        hidden: width of the first linear layer.
        start: torch's `uniform`, or `glorot` with zero biases.
    """

    name: ClassVar[str] = "cnn"

    image_shape: tuple[int, int, int] = (1, 28, 28)
    channels: tuple[int, int] = (32, 16)
    hidden: int = 64
    start: InitialWeights = "uniform"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        object.__setattr__(self, "image_shape", checked_integers("image_shape", self.image_shape, 3))
        object.__setattr__(self, "channels", checked_integers("channels", self.channels, 2))
        shape = self.image_shape
        require(
            min(shape[1:]) >= SMALLEST_SIDE,
            f"image_shape must be (channels, height, width) with sides of at least {SMALLEST_SIDE}; got {shape}",
        )
        check_integer("hidden", self.hidden, 1)
        check_choice("start", self.start, STARTS)

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        check_classes(public)
        pixels = int(np.prod(self.image_shape))
        require(
            pixels == public.features,
            f"image_shape {self.image_shape} holds {pixels} numbers, the rows hold {public.features}; "
            "pass image_shape=(channels, height, width)",
        )
        first, second = self.channels
        # a convolution without padding takes 2 off each side, and pooling halves it
        pooled = [((side - 2) // 2 - 2) // 2 for side in self.image_shape[1:]]
        kernels = {
            "convolution1": (first, self.image_shape[0], 3, 3),
            "convolution2": (second, first, 3, 3),
            "linear1": (self.hidden, second * pooled[0] * pooled[1]),
            "linear2": (public.classes, self.hidden),
        }
        out: dict[str, tuple[int, ...]] = {}
        for name, shape in kernels.items():
            out |= {name: shape, f"{name}_bias": shape[:1]}
        return out

    def initial(self, public: Public, rng: np.random.Generator) -> dict[str, Array]:
        """Return the parameters before the first round."""
        return draw_weights(self.shapes(public), self.start, rng)

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the mean gradients of several clients, (clients, *shape) by name.

        It goes client by client: convolutions batched over weights take 1.7 times as long (measured).
        """
        return BaseProblem.gradients(self, parameters, x, y, weights)

    def logits(self, parameters: TorchTensors, x: torch.Tensor) -> torch.Tensor:
        """Compute the (rows, classes) logits of the rows `x` (rows, features)."""
        functional = torch.nn.functional
        x = x.reshape(-1, *self.image_shape)
        for name in ("convolution1", "convolution2"):
            x = functional.conv2d(x, parameters[name], parameters[f"{name}_bias"])
            x = functional.max_pool2d(torch.relu(x), 2)
        x = torch.relu(functional.linear(x.flatten(1), parameters["linear1"], parameters["linear1_bias"]))
        return functional.linear(x, parameters["linear2"], parameters["linear2_bias"])
