"""Choose weights of a network with a fully connected ReLU layer such that one message tells rows of many clients apart.

With h what enters the layer for a row x (h = x, or b plus pooled pixels of x behind convolutions, see `layer_inputs`),
a direction g, thresholds t_1 < ... < t_H and a scale k > 0, the network computes

    layer 1:      u_j = ReLU(k (g (h - b) - t_j)),                j = 1..H: all outputs measure the same projection
    between:      v = u_1 + ... + u_H in one unit, which later layers pass on; all other units are 0
    logits:       z_c = a_c v + M [c = L],    a_L = 0, a_c = slope * code_c > 0 for the other classes c.

The margin M is so large, and slope and v are so small, that every row is predicted as class L. For a row of class y the
derivative of its loss by every active output of layer 1, which this project calls the row's slope, is thus

    s(y) = sum_c a_c (softmax(z)_c - [c = y]) = a_L - a_y = -slope * code_y,

a number that depends on the label alone. The gradients gW_j = sum of s(y) h and gb_j = sum of s(y), each over the rows
with g (h - b) > t_j, therefore differ from output j to output j + 1 by the rows between two thresholds. No sum of
several codes equals a code (`bin_reading.label_codes`). Rows of class L have slope 0; a second broadcast with another L
reads those. `TrapNetwork.works` tests the weights on rows that the server makes up. Source: Fowl et al. 2022, Robbing
the Fed (arXiv 2110.13057), (3); the codes and the fixed prediction are this package's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from securefed._tensors import Array
from securefed.attacks._active.bin_reading import label_codes
from securefed.attacks._active.layer_inputs import Enter, LayerInputs, pool_pixels
from securefed.attacks._active.model_behind import ModelBehind, measure_behind
from securefed.attacks._active.simulated_client import SimulatedClient

MARGIN = 100.0
"""`margin` where labels are read. Local steps raise v, all the more where many outputs are active, and a_c v
has to stay far below M. With 200 outputs, 4 classes and five steps the labels of 3 of 20 rows were wrong at 30, and
none at 100 and at 1000. Clients that send their model (ADMM with personal models) send M too: they refuse 1000."""
GENTLE = 1e-5
"""`height` in front of a model of any kind, which has to be linear over it: at 1e-2 a fifth of 150 networks
(convolutions, residual blocks, a transformer; random weights) were not, at 1e-4 and 1e-6 none."""
_PROBES = 3
"""Made-up rows on which chosen weights are tried."""


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
        behind: what lies between the second and the last of the fully connected layers, where that is a model of any
            kind; `None` where fully connected layers with ReLUs follow each other.
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    inputs: int
    outputs: int
    last: tuple[int, ...]
    kernels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kernel_biases: Mapping[str, str] = field(default_factory=dict)
    behind: ModelBehind | None = None

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], features: int, classes: int) -> DenseChain | None:
        """Recognise the layers by their parameters' shapes: matrices whose inputs fit the outputs before them.

        The rows enter the first matrix, or convolutions, whose outputs enter it. Shapes do not show whether the network
        really computes this; `TrapNetwork.works` tries it.

        Args:
            shapes: shape of each parameter, in the model's order: a bias follows its weight.
            features: width of a row.
            classes: number of classes; the last matrix has at least as many outputs.

        Returns:
            The chain, or `None` if fewer than two matrices fit, or convolutions do not follow each other.
        """
        weights: list[str] = []
        biases: list[str] = []
        kernels: dict[str, tuple[int, ...]] = {}
        kernel_biases: dict[str, str] = {}
        names, width = list(shapes), features  # width: numbers that enter the next layer; 0 where any number fits
        for name, bias in pairwise(names):
            shape, biased = shapes[name], shapes[bias] == shapes[name][:1]
            if len(shape) == 4 and biased and not weights:
                if kernels and shape[1] != next(reversed(kernels.values()))[0]:
                    return None  # a grouped convolution, or one beside the others
                kernels[name], kernel_biases[name], width = shape, bias, 0  # behind convolutions any width fits
            if len(shape) == 2 and biased and width in (0, shape[1]):
                weights.append(name)
                biases.append(bias)
                width = shape[0]
        if len(weights) < 2 or width < classes:
            return None
        first, last = shapes[weights[0]], shapes[weights[-1]]
        return cls(tuple(weights), tuple(biases), first[1], first[0], last, kernels, kernel_biases)

    def around_model(self, client: SimulatedClient, initial: Mapping[str, Array]) -> DenseChain | None:
        """Return the first two layers and the last one, with whatever lies between them measured.

        Args:
            client: computes gradients of made-up rows.
            initial: all parameters by name, in the model's order.

        Returns:
            The chain, or `None` where nothing lies between, or nothing passes through it.
        """
        classes = client.target.public.classes
        ends = [
            (name, bias)
            for name, bias in pairwise(initial)
            if initial[name].ndim == 2 and initial[bias].shape == initial[name].shape[:1]
        ]
        last, last_bias = ends[-1]
        if last in self.weights[:2] or len(initial[last_bias]) < classes:
            return None
        weights, biases = (*self.weights[:2], last), (*self.biases[:2], last_bias)
        behind = measure_behind(client, initial, weights, biases)
        shape = initial[last].shape
        if behind is None:
            return None
        return replace(self, weights=weights, biases=biases, last=shape, behind=behind)


def possible_chains(client: SimulatedClient, initial: Mapping[str, Array]) -> Iterator[DenseChain]:
    """Yield the ways to read a network's parameters as a chain of layers; `TrapNetwork.works` tries each.

    Args:
        client: computes gradients of made-up rows.
        initial: all parameters by name, in the model's order.
    """
    public, shapes = client.target.public, {name: value.shape for name, value in initial.items()}
    chain = DenseChain.of(shapes, public.features, public.classes)
    if chain is None:
        return
    later = list(shapes)[list(shapes).index(chain.weights[1]) :]
    if all(len(shapes[name]) < 2 or name in chain.weights for name in later):
        yield chain
    if (around := chain.around_model(client, initial)) is not None:
        yield around


@dataclass(frozen=True)
class TrapNetwork:
    """The choices from which all weights follow; the symbols are those at the head of this file.

    Attributes:
        chain: the layers.
        inputs: how a row x becomes h, what enters the first fully connected layer.
        direction: (inputs,) g.
        thresholds: (outputs,) t_1 < ... < t_H.
        label: L, the class that is predicted for every row.
        slope: factor of the codes in a_c, so that a row of class y has the slope s(y) = -slope * code_y.
        height: largest v of a row that lies below t_H: k = height / (H (t_H - t_1)). The margin M has to exceed all
            a_c v, which `height` and `slope` set.
        margin: M, the last bias of the predicted class.
    """

    chain: DenseChain
    inputs: LayerInputs
    direction: Array
    thresholds: Array
    label: int
    slope: float
    height: float
    margin: float = MARGIN

    def codes(self, classes: int) -> Array:
        """Return (classes,) the slope s(y) of one row of each label y; 0 for the predicted label L."""
        codes = -self.slope * label_codes(classes)
        codes[self.label] = 0.0
        return codes

    def parameters(self, initial: Mapping[str, Array], classes: int) -> dict[str, Array]:
        """Return the weights that make the network compute the equations at the head of this file.

        The slopes are negative on purpose: a local step against the gradient then raises the outputs that a row
        activates, so that a client's own steps never turn them off.

        Args:
            initial: all parameters by name; those outside the chain keep these values.
            classes: number of classes.

        Returns:
            All parameters by name.
        """
        chain = self.chain
        chosen = {name: np.array(value, float) for name, value in {**initial, **self.inputs.kernels}.items()}
        span = max(float(self.thresholds[-1] - self.thresholds[0]), 1e-12)
        # Layer 1: row j of the weight is k g, its bias -k (t_j + g b).
        scale = self.height / span / chain.outputs
        chosen[chain.weights[0]] = self.inputs.widen(np.tile(scale * self.direction, (chain.outputs, 1)))
        chosen[chain.biases[0]] = -scale * (self.thresholds + self.direction @ self.inputs.offset)
        by_class = np.zeros(chain.last[0])
        by_class[:classes] = -self.codes(classes)  # a_c
        if chain.behind is not None:
            return chosen | self._around(chain.behind, by_class)
        # Between: unit 0 of the second layer adds up all outputs, unit 0 of each further layer copies that sum.
        for weight, bias in zip(chain.weights[1:-1], chain.biases[1:-1], strict=True):
            summed = slice(None) if weight == chain.weights[1] else slice(1)
            chosen[weight] = np.zeros_like(chosen[weight])
            chosen[weight][0, summed] = 1.0
            chosen[bias] = np.zeros_like(chosen[bias])
        # Logits: column i of the last weight is (a_c) for every unit i that carries v, or a part of it where there is
        # no layer between. The bias is M e_L.
        last, bias = chain.weights[-1], chain.biases[-1]
        carriers = chain.outputs if len(chain.weights) == 2 else 1
        chosen[last] = np.zeros_like(chosen[last])
        chosen[last][:, :carriers] = by_class[:, None]
        chosen[bias] = np.zeros_like(chosen[bias])
        chosen[bias][self.label] = self.margin
        return chosen

    def _around(self, behind: ModelBehind, by_class: Array) -> dict[str, Array]:
        """Return the second and the last layer around a model of any kind: the equations of `model_behind`."""
        chain, margin = self.chain, np.zeros(len(by_class))
        margin[self.label] = self.margin
        return {
            chain.weights[1]: np.tile(behind.step[:, None], (1, chain.outputs)),
            chain.biases[1]: behind.point,
            chain.weights[2]: np.outer(by_class, behind.readout),
            chain.biases[2]: margin - by_class * behind.level,
        }

    def around(self, row: Array) -> TrapNetwork:
        """Return the same weights with all thresholds shifted such that the middle one meets this row (features,)."""
        level = float(self.direction @ self.inputs.of(row))  # g (h - b): `of` leaves the offset b out
        return replace(self, thresholds=self.thresholds - self.thresholds[len(self.thresholds) // 2] + level)

    def works(self, client: SimulatedClient, initial: Mapping[str, Array], rng: np.random.Generator) -> bool:
        """Return whether made-up rows have the slopes that the equations promise, so that the network computes them.

        The bias gradient of output j of one row is s(y) if the row lies above t_j, else 0.

        Args:
            client: computes gradients of made-up rows.
            initial: all parameters by name.
            rng: draws the rows and their labels.
        """
        public = client.target.public
        codes = self.codes(public.classes)
        for _ in range(_PROBES):
            row = rng.uniform(-public.feature_bound, public.feature_bound, public.features)
            target = int(rng.integers(public.classes))
            trap = self.around(row)
            found = client.gradient(trap.parameters(initial, public.classes), row[None], np.array([target]))
            beyond = trap.thresholds - trap.thresholds[len(trap.thresholds) // 2]  # t_j less the row's projection
            wanted = codes[target] * (beyond < 0)
            got = np.asarray(found[self.chain.biases[0]], float)
            clear = np.abs(beyond) > 1e-3 * (beyond[-1] - beyond[0])  # at the row's own threshold rounding decides
            # Other networks have slopes that depend on the row: they differ by more than codes of many classes do.
            if not np.allclose(got[clear], wanted[clear], atol=0.02 * self.slope):
                return False
        return True


def layer_inputs(client: SimulatedClient, chain: DenseChain, initial: Mapping[str, Array]) -> LayerInputs | None:
    """Measure how a row becomes h, what enters the first fully connected layer.

    Without convolutions h is the row. Else weights are chosen under which every output is active and none depends on
    the row (g = 0, t_j < 0). One made-up row then has the gradients gW_1 = s h and gb_1 = s with any s but 0, so that
    h = gW_1 / gb_1, and `pool_pixels` learns the map from rows to h from such measurements.

    Args:
        client: computes gradients of made-up rows.
        chain: the layers.
        initial: all parameters by name.

    Returns:
        The map, or `None` where the convolutions do not pass the pixels on.
    """
    public = client.target.public
    if not chain.kernels:
        return LayerInputs(public.features, np.zeros(public.features))
    enter, rng = entering(client, chain, initial), np.random.default_rng(0)
    return pool_pixels(chain.kernels, chain.kernel_biases, public.features, public.feature_bound, enter, rng)


def entering(client: SimulatedClient, chain: DenseChain, initial: Mapping[str, Array]) -> Enter:
    """Return the function that computes h for chosen kernels and a row, by the gradient of that row.

    Args:
        client: computes gradients of made-up rows.
        chain: the layers.
        initial: all parameters by name.
    """
    blank = LayerInputs(chain.inputs, np.zeros(chain.inputs))
    always_active = np.linspace(-2.0, -1.0, chain.outputs)
    height = 1.0 if chain.behind is None else GENTLE
    active = TrapNetwork(chain, blank, np.zeros(chain.inputs), always_active, label=0, slope=1.0, height=height)
    parameters = active.parameters(initial, client.target.public.classes)

    def enter(kernels: Mapping[str, Array], row: Array) -> Array:
        found = client.gradient({**parameters, **kernels}, row[None], np.array([1]))  # label 1 is not L
        weight, bias = (np.asarray(found[names[0]], float) for names in (chain.weights, chain.biases))
        return np.asarray(weight[0] / bias[0] if bias[0] else np.zeros(chain.inputs))

    return enter
