"""Train fully connected classifiers with ReLU between the layers; `2nn` and `mlp` by name.

A row x passes layers k = 1, 2, ... with weights W_k and biases b_k:

    a_0 = x,   z_k = W_k a_{k-1} + b_k,   a_k = max(0, z_k),   loss = cross entropy of the last z

Gradient methods (securefed.algorithms) train them. A simulation computes several clients at once: x is then (clients,
widest, features), `widest` the largest number of rows of a client, and `weights` (clients, widest) holds 1 / rows of
the client, 0 on padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from securefed._hyperparameters import check_choice, checked_integers
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.problems._base import check_classes
from securefed.problems._cross_entropy import slope_of
from securefed.problems._initial_weights import STARTS, InitialWeights, draw_weights
from securefed.problems._layers import layer_shapes
from securefed.problems._torch_classifier import TorchClassifier
from securefed.problems._torch_problem import TorchTensors


@dataclass(frozen=True, kw_only=True)
class DenseNetwork(TorchClassifier):
    """Fully connected classifier with ReLU between the layers.

    2NN, (200, 200), has 199,210 parameters on MNIST; FLAME's MLP, (100,), has 79,510 on 784 features and 10 classes.

    The parameters are `weight1` (hidden, features), `bias1` (hidden,), `weight2`, ... up to the classes.

    Attributes:
        hidden: width of each hidden layer.
        start: `glorot` with zero biases, or torch's `uniform`.
    """

    name: ClassVar[str] = "dense"

    hidden: tuple[int, ...] = (200, 200)
    start: InitialWeights = "glorot"

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        object.__setattr__(self, "hidden", checked_integers("hidden", self.hidden))
        check_choice("start", self.start, STARTS)

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        check_classes(public)
        return layer_shapes("", (public.features, *self.hidden, public.classes))

    def initial(self, public: Public, rng: np.random.Generator) -> dict[str, Array]:
        """Return the parameters before the first round."""
        return draw_weights(self.shapes(public), self.start, rng)

    def logits(self, parameters: TorchTensors, x: torch.Tensor) -> torch.Tensor:
        """Compute the (rows, classes) logits of the rows `x` by torch."""
        for k in self._layers[:-1]:
            x = torch.relu(torch.nn.functional.linear(x, parameters[f"weight{k}"], parameters[f"bias{k}"]))
        last = self._layers[-1]
        return torch.nn.functional.linear(x, parameters[f"weight{last}"], parameters[f"bias{last}"])

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the mean gradients of several clients at once, as in `Problem.gradients`."""
        out = {name: np.empty(np.shape(value), self.dtype) for name, value in parameters.items()}
        self.write_gradients(parameters, x, y, weights, out)
        return out

    def write_gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array, out: Tensors) -> None:
        """Write the mean gradients of several clients into `out`, as in `WritesGradients`.

        Back-propagation is written out as batched matrix products, which moves less memory than tracing by torch.
        Names: `slope` is d loss / dz_k, `entered` the input a_{k-1} of layer k.
        """
        parameters = {name: np.asarray(value, self.dtype) for name, value in parameters.items()}
        inputs: list[Array] = [np.asarray(x, self.dtype)]  # a_0, a_1, ..., and the logits last
        for k in self._layers:
            z = inputs[-1] @ parameters[f"weight{k}"].swapaxes(1, 2)
            z += parameters[f"bias{k}"][:, None, :]
            inputs.append(np.maximum(z, 0, out=z) if k < self._layers[-1] else z)
        slope = slope_of(inputs.pop(), y, np.asarray(weights, self.dtype))
        for k in reversed(self._layers):
            weight, gradient, entered = parameters[f"weight{k}"], out[f"weight{k}"], inputs.pop()
            np.matmul(slope.swapaxes(1, 2), entered, out=gradient)
            np.sum(slope, axis=1, out=out[f"bias{k}"])
            if self.l2:
                gradient += self.dtype.type(self.l2) * weight
            if k > 1:
                slope = slope @ weight
                slope *= entered > 0  # the derivative of ReLU

    @property
    def _layers(self) -> range:
        return range(1, len(self.hidden) + 2)
