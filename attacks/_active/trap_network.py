"""Choose weights of a network with a fully connected ReLU layer such that one message tells rows of many clients apart.

All outputs of that layer look at the same direction of a row, at rising thresholds. Layers before it are convolutions
that pass the row's pixels on (`layer_inputs`), or there are none. Behind it every layer treats
these outputs alike: one unit of each later layer adds them up, and the logits see that unit with a weight that depends
on the label. The last bias holds the predicted class fixed at one label, so that a row's slope depends on its label
alone; rows of that one label have slope 0, and another broadcast with another label reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from securefed._tensors import Array
from securefed.attacks._active.bin_reading import label_codes
from securefed.attacks._active.layer_inputs import LayerInputs, pool_pixels
from securefed.attacks._active.simulated_client import SimulatedClient

_MARGIN = 30.0
"""Last bias of the class that is predicted for every row: softmax then differs from 0 and 1 by 1e-13."""
_DEAD = 1e3
"""Distance of the thresholds of outputs that are never active from the last other threshold, in units of the range of
the thresholds."""
_PROBES = 3
"""Rows on which chosen weights are tried."""


@dataclass(frozen=True)
class DenseChain:
    """Names of a network's fully connected layers up to the logits, and of the convolutions before them.

    Attributes:
        weights: names of the fully connected layers' weights, each (out, in).
        biases: names of their biases, each (out,).
        inputs: number of inputs of the first of them.
        outputs: number of its outputs.
        last: shape of the last weight.
        kernels: (out, in, height, width) of the convolutions' weights, by name.
        kernel_biases: names of their biases, by those of the weights.
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    inputs: int
    outputs: int
    last: tuple[int, ...]
    kernels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kernel_biases: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], features: int, classes: int) -> DenseChain | None:
        """Follow matrices whose inputs fit the outputs before them, each with the bias after it; `None` if none fit.

        The rows enter the first matrix, or convolutions with biases, whose outputs enter it. Whether the network really
        computes this is found out by trying the weights (`TrapNetwork.works`).
        """
        weights: list[str] = []
        biases: list[str] = []
        kernels: dict[str, tuple[int, ...]] = {}
        kernel_biases: dict[str, str] = {}
        names, width = list(shapes), features
        for name, bias in pairwise(names):
            shape, biased = shapes[name], shapes[bias] == shapes[name][:1]
            if len(shape) == 4 and biased and not weights:
                kernels[name], kernel_biases[name], width = shape, bias, 0
            if len(shape) == 2 and biased and shape[1] == (width or shape[1]):
                weights.append(name)
                biases.append(bias)
                width = shape[0]
        if len(weights) < 2 or width < classes:
            return None
        first, last = shapes[weights[0]], shapes[weights[-1]]
        return cls(tuple(weights), tuple(biases), first[1], first[0], last, kernels, kernel_biases)


@dataclass(frozen=True)
class TrapNetwork:
    """Weights that tell rows apart by a direction and thresholds.

    Attributes:
        chain: the layers.
        inputs: what enters the first fully connected layer.
        direction: (inputs,) g.
        thresholds: ascending, of the first outputs; outputs beyond are never active.
        label: the class that is predicted for every row.
        slope: size of a row's slope at the first layer, in units of the label codes.
        height: what an output reaches for a row as far above its threshold as all thresholds span.
        disguise: (outputs, inputs) added to the first weight, in columns in which all rows are zero.
        outgoing: (out, in) random last weights of units that are never active; empty without a disguise.
    """

    chain: DenseChain
    inputs: LayerInputs
    direction: Array
    thresholds: Array
    label: int
    slope: float
    height: float
    disguise: Array | None = None
    outgoing: Array | None = None

    def codes(self, classes: int) -> Array:
        """Return (classes,) the slope of one row of each label; 0 for the predicted one."""
        codes = -self.slope * label_codes(classes)
        codes[self.label] = 0.0
        return codes

    def parameters(self, initial: Mapping[str, Array], classes: int) -> dict[str, Array]:
        """Return all parameters; those outside the chain stay as in `initial`.

        The slopes are negative: a local step against the gradient then raises the outputs that a row activates, so that
        its own steps never turn them off.
        """
        chain = self.chain
        chosen = {name: np.array(value, float) for name, value in {**initial, **self.inputs.kernels}.items()}
        span = max(float(self.thresholds[-1] - self.thresholds[0]), 1e-12)
        scale = self.height / span / (1 if len(chain.weights) == 2 else chain.outputs)  # one unit adds up all outputs
        chosen[chain.weights[0]] = np.tile(scale * self.direction, (chain.outputs, 1))
        if self.disguise is not None:
            chosen[chain.weights[0]] += scale * self.disguise
        dead = np.full(chain.outputs - len(self.thresholds), self.thresholds[-1] + _DEAD * span)
        chosen[chain.biases[0]] = -scale * (np.append(self.thresholds, dead) + self.direction @ self.inputs.offset)
        for weight, bias in zip(chain.weights[1:-1], chain.biases[1:-1], strict=True):
            first = weight == chain.weights[1]
            chosen[weight] = np.zeros_like(chosen[weight])
            chosen[weight][0, : (None if first else 1)] = 1.0
            chosen[bias] = np.zeros_like(chosen[bias])
        last, bias = chain.weights[-1], chain.biases[-1]
        outgoing = np.zeros(len(chosen[bias]))
        outgoing[:classes] = -self.codes(classes)
        chosen[last] = np.zeros_like(chosen[last]) if self.outgoing is None else self.outgoing.copy()
        chosen[last][:, : (len(self.thresholds) if len(chain.weights) == 2 else 1)] = outgoing[:, None]
        chosen[bias] = np.zeros_like(chosen[bias])
        chosen[bias][self.label] = _MARGIN
        return chosen

    def around(self, row: Array) -> TrapNetwork:
        """Move the thresholds such that a row (features,) lies in the middle of them."""
        level = float(self.direction @ self.inputs.of(row))
        return replace(self, thresholds=self.thresholds - self.thresholds[len(self.thresholds) // 2] + level)

    def usable(self, row: Array) -> Array:
        """Return a row (features,) with zeros in disguised columns, as all rows have them."""
        return row if self.disguise is None else row * ~self.disguise.any(axis=0)

    def works(self, client: SimulatedClient, initial: Mapping[str, Array], rng: np.random.Generator) -> bool:
        """Return whether single rows have the slopes that they should have, so that the network is the chain."""
        public = client.target.public
        codes = self.codes(public.classes)
        for _ in range(_PROBES):
            row = self.usable(rng.uniform(0.0, public.feature_bound, public.features))
            target = int(rng.integers(public.classes))
            trap = self.around(row)
            found = client.gradient(trap.parameters(initial, public.classes), row[None], np.array([target]))
            beyond = trap.thresholds - trap.thresholds[len(trap.thresholds) // 2]
            wanted = codes[target] * (beyond < 0)
            got = np.asarray(found[self.chain.biases[0]], float)[: len(beyond)]
            beside = np.abs(beyond) > 1e-3 * (beyond[-1] - beyond[0])
            if not np.allclose(got[beside], wanted[beside], atol=0.02 * self.slope):
                return False
        return True


def layer_inputs(client: SimulatedClient, chain: DenseChain, initial: Mapping[str, Array]) -> LayerInputs | None:
    """Find out what enters the first fully connected layer; `None` where convolutions do not pass the pixels on.

    With equal outputs that are all active, a row's gradient is its slope times what enters: (inputs,) = gW_1 / gb_1.
    """
    public = client.target.public
    if not chain.kernels:
        return LayerInputs(public.features, np.zeros(public.features))
    blank = LayerInputs(chain.inputs, np.zeros(chain.inputs))
    active = TrapNetwork(chain, blank, np.zeros(chain.inputs), np.linspace(-2.0, -1.0, chain.outputs), 0, 1.0, 1.0)
    parameters = active.parameters(initial, public.classes)

    def enter(kernels: Mapping[str, Array], row: Array) -> Array:
        found = client.gradient({**parameters, **kernels}, row[None], np.array([1]))
        weight, bias = (np.asarray(found[names[0]], float) for names in (chain.weights, chain.biases))
        return np.asarray(weight[0] / bias[0] if bias[0] else np.zeros(chain.inputs))

    rng = np.random.default_rng(0)
    return pool_pixels(chain.kernels, chain.kernel_biases, public.features, public.feature_bound, enter, rng)
