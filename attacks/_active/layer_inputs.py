"""Describe how a row enters the first fully connected layer: as it is, or through convolutions that pass its pixels on.

In the attack `TrapWeights` a malicious server broadcasts chosen parameters, and reads off a client's gradient what
entered the first fully connected layer, h. This module finds the row behind h. The server chooses convolutions whose
kernels hold a single 1, so that each output channel is a copy of the picture, shifted by some pixels (Boenisch et al.
2023, When the Curious Abandon Honesty, arXiv 2112.02918, for convolutions without pooling). Let x_p be pixel p of the
row. After pooling, entry f of h is

    mean pooling:  h_f = b_f + sum_p A_fp x_p,        maximum pooling:  h_f = b_f + max(m_f, max over A_fp > 0 of x_p),

where row f of the windows A is positive on the pixels that are pooled together, b_f is a constant that the biases add,
and m_f is what the window holds beside pixels: 0 where it reaches into the zeros around a picture, else no more than
any pixel. Channels with different shifts give windows at every offset, where there are enough of them. The server
measures A, b and m at home, before the attack, from gradients of made-up rows (`pool_pixels`, called by `layer_inputs`
in `trap_network`), so that strides, paddings and pooling need not be known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np

from securefed._tensors import Array

_CUT = 1e-3
"""Singular values of mean pooling below this share of the largest are left out: details that it nearly averages away
would be magnified rounding errors."""
_ALIKE = 1e-3
"""Error of the two forms above, in units of the range, up to which layers count as pooling: single precision leaves
1e-5, other layers more than a tenth. Smaller entries of A are rounding."""

Enter = Callable[[Mapping[str, Array], Array], Array]
"""Computes the input (inputs,) of the first fully connected layer from chosen parameters and a row (features,)."""


@dataclass(frozen=True)
class LayerInputs:
    """The map h = x + b of a network without convolutions, and the base of the other map.

    Attributes:
        width: number of inputs of the layer.
        offset: (width,) b, added to all inputs.
        kernels: chosen weights and biases of the convolutions before it, by name.
    """

    width: int
    offset: Array
    kernels: Mapping[str, Array] = field(default_factory=dict)

    def of(self, row: Array) -> Array:
        """Return what enters for a row (features,), less the offset: (width,)."""
        return row

    def rows(self, entered: Array) -> Array:
        """Return rows (rows, features) for which these inputs (rows, width), less the offset, enter."""
        return entered

    def widen(self, weight: Array) -> Array:
        """Return the layer's whole weight, given its columns (outputs, width) of the inputs described here."""
        return weight

    def read(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """Return the gradients (outputs, width) and (outputs,) of these columns and of the bias.

        Args:
            weight: gradient of the layer's whole weight.
            bias: gradient of its bias.
        """
        return weight, bias


@dataclass(frozen=True)
class PooledPixels(LayerInputs):
    """The map from a picture to the means or the maxima of windows of its pixels.

    Attributes:
        windows: (width, features) A.
        least: (width,) m where the layers take maxima; `None` where they take means.
    """

    windows: Array = field(default_factory=lambda: np.empty((0, 0)))
    least: Array | None = None

    def of(self, row: Array) -> Array:
        """Pool one row."""
        if self.least is None:
            return np.asarray(self.windows @ row)
        return np.asarray(np.maximum(self.least, np.where(self.windows > 0, row, -np.inf).max(axis=1)))

    def rows(self, entered: Array) -> Array:
        """Return the pictures (rows, features) of least norm with these means, or the largest ones with these maxima.

        A pixel is at most the least of the maxima of the windows that hold it, and the picture of these bounds has the
        same maxima (a closing, in the words of mathematical morphology). Pixels in no window become zero.
        """
        if self.least is None:
            return np.asarray(entered @ self._from_means)
        covered = self.windows.any(axis=0)
        out = np.zeros((len(entered), self.windows.shape[1]))
        for place, values in enumerate(entered):
            out[place, covered] = np.where(self.windows[:, covered] > 0, values[:, None], np.inf).min(axis=0)
        return out

    @cached_property
    def _from_means(self) -> Array:
        """Return (width, features) the map from means to the picture of least norm."""
        return np.asarray(np.linalg.pinv(self.windows, rcond=_CUT).T)


def pool_pixels(
    kernels: Mapping[str, tuple[int, ...]], biases: Mapping[str, str], features: int, bound: float, enter: Enter,
    rng: np.random.Generator,
) -> PooledPixels | None:  # fmt: skip
    """Choose kernels that pass the pixels on, and measure which windows enter the first fully connected layer.

    Each convolution either copies its input channels, or makes copies of them that are shifted by 0 or 1 pixels down
    and right, as many as it has output channels for. A picture of random pixels shows how many different entries h
    has, hence how many different windows there are. At first all convolutions shift. Each in turn then makes plain
    copies, if that gives more windows: where two convolutions follow each other without pooling, both shift by the
    same pixel, and the copies of the second are partly those of the first.

    Args:
        kernels: (out, in, height, width) of the convolutions' weights, by name.
        biases: names of the biases, by those of the weights.
        features: number of pixels, over all colours.
        bound: declared range of the pixels.
        enter: the network up to the layer: given the chosen parameters and a row, returns h.
        rng: draws the pictures on which the map is tried.

    Returns:
        The map and the chosen parameters; `None` where the layers neither average nor take maxima of windows.
    """
    probe = rng.uniform(-bound, bound, features)

    def windows_of(shifting: Collection[str]) -> int:  # the number of different windows
        return len(np.unique(np.round(enter(_passing(kernels, biases, bound, shifting), probe) / bound, 4)))

    shifting = set(kernels)
    for name in kernels:
        if windows_of(shifting - {name}) > windows_of(shifting):
            shifting -= {name}
    return measure_pixels(_passing(kernels, biases, bound, shifting), features, bound, enter, rng)


def measure_pixels(
    chosen: Mapping[str, Array], features: int, bound: float, enter: Enter, rng: np.random.Generator
) -> PooledPixels | None:
    """Measure which windows enter the first fully connected layer through chosen kernels.

    Args:
        chosen: weights and biases of the convolutions, by name.
        features: as in `pool_pixels`, with the other arguments.
        bound: see there.
        enter: see there.
        rng: see there.

    Returns:
        The map; `None` where the layers neither average nor take maxima of windows.
    """
    offset = enter(chosen, np.zeros(features))
    pulses = (enter(chosen, bound * pulse) for pulse in np.eye(features))  # one bright pixel shows a column of A
    windows = np.stack([(entered - offset) / bound for entered in pulses], axis=1)
    windows[np.abs(windows) < _ALIKE] = 0.0
    for least in (None, enter(chosen, np.full(features, -bound)) - offset):
        found = PooledPixels(len(offset), offset, chosen, windows, least)
        probes = rng.uniform(-bound, bound, (3, features))
        if all(np.abs(enter(chosen, row) - offset - found.of(row)).max() < _ALIKE * bound for row in probes):
            return found
    return None


def _passing(
    kernels: Mapping[str, tuple[int, ...]], biases: Mapping[str, str], bound: float, shifting: Collection[str]
) -> dict[str, Array]:
    """Return weights and biases of convolutions whose output channels are shifted copies of the picture's colours.

    The first bias lifts all pixels, which lie in [-bound, bound], above zero, where a ReLU does not change them.

    Args:
        kernels: as in `pool_pixels`.
        biases: as in `pool_pixels`.
        bound: as in `pool_pixels`.
        shifting: names of the convolutions whose output channels are shifted copies; those of others are plain copies.
    """
    chosen: dict[str, Array] = {}
    channels = next(iter(kernels.values()))[1]
    for place, (name, shape) in enumerate(kernels.items()):
        weight, bias = np.zeros(shape), np.zeros(shape[0])
        shifts = product(*(_shifts(side) if name in shifting else [(side - 1) // 2] for side in shape[2:]))
        # by output channel, the shift and the input channel that it copies; outputs beyond these stay zero
        copies = [(shift, channel) for shift in shifts for channel in range(channels)][: shape[0]]
        for output, ((down, right), channel) in enumerate(copies):
            weight[output, channel, down, right] = 1.0
            bias[output] = bound if place == 0 else 0.0
        channels = len(copies)
        chosen |= {name: weight, biases[name]: bias}
    return chosen


def _shifts(side: int) -> list[int]:
    """Return the two middle places of a kernel's side, or its only one."""
    return [(side - 1) // 2, (side - 1) // 2 + 1] if side > 1 else [0]
