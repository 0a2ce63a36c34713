"""Choose weights of a network with a ReLU layer at its input such that one message tells rows of many clients apart.

All outputs of the first layer look at the same direction of a row, at rising thresholds. Behind it every layer treats
these outputs alike: one unit of each later layer adds them up, and the logits see that unit with a weight that depends
on the label. The last bias holds the predicted class fixed at one label, so that a row's slope depends on its label
alone; rows of that one label have slope 0, and another broadcast with another label reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.attacks._active.bin_reading import label_codes
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
    """Names of the layers of a fully connected network, from the rows to the logits.

    Attributes:
        weights: names of the weights, each (out, in).
        biases: names of the biases, each (out,).
        outputs: number of outputs of the first layer.
        last: shape of the last weight.
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    outputs: int
    last: tuple[int, ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], features: int, classes: int) -> DenseChain | None:
        """Follow matrices whose inputs fit the outputs before them, each with the bias after it; `None` if none fit.

        Whether the network really computes this chain is found out by trying the weights (`TrapNetwork.works`).
        """
        weights, biases, width = [], [], features
        names = list(shapes)
        for place, name in enumerate(names[:-1]):
            shape, after = shapes[name], shapes[names[place + 1]]
            if len(shape) == 2 and shape[1] == width and after == shape[:1]:
                weights.append(name)
                biases.append(names[place + 1])
                width = shape[0]
        if len(weights) < 2 or width < classes:
            return None
        return cls(tuple(weights), tuple(biases), shapes[weights[0]][0], shapes[weights[-1]])


@dataclass(frozen=True)
class TrapNetwork:
    """Weights that tell rows apart by a direction and thresholds.

    Attributes:
        chain: the layers.
        direction: (features,) g.
        thresholds: ascending, of the first outputs; outputs beyond are never active.
        label: the class that is predicted for every row.
        slope: size of a row's slope at the first layer, in units of the label codes.
        height: what an output reaches for a row as far above its threshold as all thresholds span.
        disguise: (outputs, features) added to the first weight, in columns in which all rows are zero.
        outgoing: (out, in) random last weights of units that are never active; empty without a disguise.
    """

    chain: DenseChain
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
        chain, chosen = self.chain, {name: np.array(value, float) for name, value in initial.items()}
        span = max(float(self.thresholds[-1] - self.thresholds[0]), 1e-12)
        scale = self.height / span / (1 if len(chain.weights) == 2 else chain.outputs)  # one unit adds up all outputs
        chosen[chain.weights[0]] = np.tile(scale * self.direction, (chain.outputs, 1))
        if self.disguise is not None:
            chosen[chain.weights[0]] += scale * self.disguise
        dead = np.full(chain.outputs - len(self.thresholds), self.thresholds[-1] + _DEAD * span)
        chosen[chain.biases[0]] = -scale * np.append(self.thresholds, dead)
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

    def row_at(self, level: float, row: Array) -> Array:
        """Move a row (features,) so that it lies at this level of the direction; disguised columns become zero."""
        used = np.ones(len(row), bool) if self.disguise is None else ~self.disguise.any(axis=0)
        row, direction = row * used, self.direction * used
        return np.asarray(row + direction * (level - self.direction @ row) / (direction @ direction))

    def works(self, client: SimulatedClient, initial: Mapping[str, Array], rng: np.random.Generator) -> bool:
        """Return whether single rows have the slopes that they should have, so that the network is the chain."""
        public = client.target.public
        parameters = self.parameters(initial, public.classes)
        codes = self.codes(public.classes)
        middle = self.thresholds[len(self.thresholds) // 2]
        for _ in range(_PROBES):
            row = self.row_at(float(middle), rng.uniform(-1.0, 1.0, public.features))
            target = int(rng.integers(public.classes))
            found = client.gradient(client_precision(client, parameters), row[None], np.array([target]))
            wanted = codes[target] * (self.thresholds < middle)
            got = np.asarray(found[self.chain.biases[0]], float)[: len(self.thresholds)]
            beside = np.abs(self.thresholds - middle) > 1e-3 * (self.thresholds[-1] - self.thresholds[0])
            if not np.allclose(got[beside], wanted[beside], atol=0.02 * self.slope):
                return False
        return True


def client_precision(client: SimulatedClient, parameters: Mapping[str, Array]) -> dict[str, Array]:
    """Return parameters as clients compute with them."""
    return {name: np.asarray(value, client.method.problem.dtype) for name, value in parameters.items()}
