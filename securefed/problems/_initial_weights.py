"""Draw the initial weights of networks from a NumPy generator, so that a run's seed determines them without torch.

The problems whose models are dense or convolutional networks or autoencoders call it once, before the first round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from securefed._tensors import Array

InitialWeights = Literal["glorot", "uniform"]
STARTS = get_args(InitialWeights)


def draw_weights(
    shapes: Mapping[str, tuple[int, ...]], start: InitialWeights, rng: np.random.Generator
) -> dict[str, Array]:
    """Draw float64 weights (out, in, ...) and the biases (out,) that follow them, by name.

    `glorot`: weights uniform in +- sqrt(6 / (fan_in + fan_out)), biases zero (Glorot and Bengio 2010, (16)).
    `uniform`: both uniform in +- 1 / sqrt(fan_in), torch's default for linear and convolutional layers.
    fan_in and fan_out are the numbers of inputs and outputs of a unit, times the size of a convolution's window.

    Args:
        shapes: shapes of the parameters by name; a bias follows its weight.
        start: the rule.
        rng: source of all randomness.
    """
    out: dict[str, Array] = {}
    fan_in = 1
    for name, shape in shapes.items():
        if len(shape) >= 2:
            window = int(np.prod(shape[2:], dtype=np.int64))
            fan_in, fan_out = shape[1] * window, shape[0] * window
        if start == "uniform":
            out[name] = rng.uniform(-1.0, 1.0, shape) / np.sqrt(fan_in)
        elif len(shape) >= 2:
            out[name] = rng.uniform(-1.0, 1.0, shape) * np.sqrt(6.0 / (fan_in + fan_out))
        else:
            out[name] = np.zeros(shape)
    return out
