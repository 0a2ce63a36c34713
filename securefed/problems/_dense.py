"""Train fully connected classifiers with ReLU between the layers; `2nn` and `mlp` by name.

A row x passes layers k = 1, 2, ... with weights W_k and biases b_k:

    a_0 = x,   z_k = W_k a_{k-1} + b_k,   a_k = max(0, z_k),   loss = cross entropy of the last z

Gradient methods (securefed.algorithms) train them. A simulation computes several clients at once: x is then (clients,
widest, features), `widest` the largest number of rows of a client, and `weights` (clients, widest) holds 1 / rows of
the client, 0 on padding. It may keep a large W_k as received plus a sum of factors D^T A, which saves its gradient in
every local step. So back-propagation here asks a `WeightProducts` for the products A W^T, D W and D^T A + l2 W.
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
from securefed.problems._weight_products import DenseWeightProducts, WeightProducts


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

    @property
    def inner(self) -> tuple[str, ...]:
        """Names of the weights after the first layer, which a simulation may keep as factors too."""
        return tuple(f"weight{k}" for k in self._layers[1:])

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the mean gradients of several clients at once, (clients, *shape) by name.

        Back-propagation is written out as batched matrix products, which moves less memory than tracing by torch.
        Names: `slope` is d loss / dz_k, `entered` the input a_{k-1} of layer k, `others` all parameters but W_1.

        Args:
            parameters: (clients, *shape) by name.
            x: rows, (clients, widest, features).
            y: labels, (clients, widest).
            weights: weight of each row in its client's mean, (clients, widest).
        """
        parameters = {name: np.asarray(value, self.dtype) for name, value in parameters.items()}
        x, products = np.asarray(x, self.dtype), DenseWeightProducts(parameters, self.l2)
        slope, found = self.after_input(products.forward("weight1", x), parameters, products, y, weights)
        return found | {"weight1": products.gradient("weight1", slope, x)}

    def after_input(
        self, z: Array, others: Tensors, products: WeightProducts, y: Array, weights: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Compute d loss / dz_1 and the gradients of all parameters but W_1, for several clients.

        Args:
            z: W_1 x for all rows, (clients, widest, hidden); overwritten.
            others: the biases, (clients, *shape) by name; weights in it are not used.
            products: products with the inner weights W_2, W_3, ...
            y: labels, (clients, widest).
            weights: (clients, widest).

        Returns:
            d loss / dz_1, and the gradients by name, without those that `products` keeps as factors.
        """
        inputs: list[Array] = []  # a_1, a_2, ..., and the logits last
        for k in self._layers:
            z = products.forward(f"weight{k}", inputs[-1]) if inputs else z
            z += others[f"bias{k}"][:, None, :]
            inputs.append(np.maximum(z, 0, out=z) if k < self._layers[-1] else z)
        slope = slope_of(inputs.pop(), y, np.asarray(weights, self.dtype))
        found: dict[str, Array] = {}
        for k in reversed(self._layers[1:]):
            name, entered = f"weight{k}", inputs.pop()
            found[f"bias{k}"] = slope.sum(axis=1)
            if (gradient := products.gradient(name, slope, entered)) is not None:
                found[name] = gradient
            slope = products.backward(name, slope)
            slope *= entered > 0  # the derivative of ReLU
        found["bias1"] = slope.sum(axis=1)
        return slope, found

    @property
    def _layers(self) -> range:
        return range(1, len(self.hidden) + 2)
