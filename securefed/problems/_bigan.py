"""Train a bidirectional GAN: encoder E, generator G, and discriminator D of (x, E(x)) against (G(z), z).

    loss of D       = softplus(-D(x, E(x))) + softplus(D(G(z), z))
    loss of E and G = softplus(D(x, E(x))) + softplus(-D(G(z), z))          (non-saturating)

x is a row of data, z a random code. G(E(x)) reconstructs a row, and a large error marks an anomaly. Gradient methods
(securefed.algorithms) train all three networks as one problem, with parameters as arrays by name.

Source: Donahue et al., Adversarial Feature Learning, (2)-(3); FedBiGAN of Federated PCA on Grassmann Manifold, V-A2.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

import numpy as np
import torch
from torch.nn.functional import softplus

from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.problems._autoencoder import ReconstructionNetwork
from securefed.problems._layers import layer_shapes, run_layers
from securefed.problems._torch_problem import TorchTensors

LEAK = 0.2
"""Slope of the discriminator's ReLU below zero, so that it always has something to tell the generator."""


@dataclass(frozen=True, kw_only=True)
class BiGAN(ReconstructionNetwork):
    """Bidirectional GAN, reconstruct(x) = G(E(x)); parameters `encoder.*`, `generator.*`, `discriminator.*`.

    `gradient` is the direction of simultaneous descent: of D's loss in D's parameters, of E's and G's loss in theirs.
    It is not the gradient of any function; `loss` and `score` report the reconstruction error, which no step minimises.

    The codes z are standard normal, drawn anew for every set of rows: the generator is seeded with a hash of the rows
    in their order (in the problem's precision). So a step on given rows always sees the same z, one client at a time
    or several at once, and mini-batches of a fresh permutation see fresh ones; full-batch steps see the same z in
    every round. z is not secret: any party that holds the rows can draw it.

    `layers` are the encoder's; the generator mirrors them, the discriminator has as many, the last of width one.
    The paper names two and four layers and no widths.
    """

    name: ClassVar[str] = "bigan"

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        widths = (public.features, *self.layers)
        judge = (public.features + self.layers[-1], *self.layers[:-1], 1)
        parts = {"encoder": widths, "generator": widths[::-1], "discriminator": judge}
        return {name: shape for part, sizes in parts.items() for name, shape in layer_shapes(part, sizes).items()}

    def companions(self, x: Array, y: Array) -> Array:
        """Draw the (rows, code) codes z that these rows are trained with; `row_losses` gets them as its y."""
        digest = blake2b(np.ascontiguousarray(x).tobytes(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        return generator.standard_normal((len(x), self.layers[-1])).astype(self.dtype)

    def row_losses(self, parameters: TorchTensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Compute each row's sum of the two losses, in which each holds the other players' parameters fixed.

        The gradient of this sum is the direction of simultaneous descent.
        """
        frozen = {name: value.detach() for name, value in parameters.items()}
        judge = {name for name in parameters if name.startswith("discriminator.")}
        own, _ = self.players(frozen | {name: parameters[name] for name in judge}, x, y)
        _, others = self.players(dict(parameters) | {name: frozen[name] for name in judge}, x, y)
        return own + others

    def players(self, parameters: TorchTensors, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the (rows,) losses of the discriminator, and those of encoder and generator."""
        real = self._judge(parameters, x, self._encode(parameters, x))
        made = self._judge(parameters, self._generate(parameters, z), z)
        return softplus(-real) + softplus(made), softplus(real) + softplus(-made)

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Compute the mean reconstruction error."""
        return float(np.mean((self.reconstruct(parameters, x) - np.asarray(x, self.dtype)) ** 2))

    def reconstruction(self, parameters: TorchTensors, x: torch.Tensor) -> torch.Tensor:
        """Compute the reconstructions G(E(x)) of the rows `x`, (rows, features)."""
        return self._generate(parameters, self._encode(parameters, x))

    def _encode(self, parameters: TorchTensors, x: torch.Tensor) -> torch.Tensor:
        """Compute E(x), (rows, code)."""
        return run_layers("encoder", parameters, x, len(self.layers))

    def _generate(self, parameters: TorchTensors, z: torch.Tensor) -> torch.Tensor:
        """Compute G(z), (rows, features)."""
        return run_layers("generator", parameters, z, len(self.layers))

    def _judge(self, parameters: TorchTensors, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Compute D(x, z), (rows,): the logit that a pair is a real row with its code."""
        joined = torch.cat([x, z], dim=1)
        return run_layers("discriminator", parameters, joined, len(self.layers), leak=LEAK)[:, 0]
