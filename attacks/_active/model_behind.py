"""Choose how the first layers of a network enter a model of any kind behind them, and how its last layer reads them.

A server that inserts an imprint module (linear, ReLU, linear) in front of a model needs no knowledge of that model: the
second linear layer moves a fixed point c of the model's input space by a small step d v, where v is the sum of the
module's outputs, and the model's last hidden layer f answers, for a vector w,

    w f(c + d v) = w f(c) + v w f'(c) d,    up to terms of order v^2.

These terms vanish where all layers are ReLU or linear, as long as no ReLU turns on or off on the way from v = 0. With w
scaled such that w f'(c) d = 1, and a_k w as the last weight's row of class k, logit k is a_k v, as behind a chain of
dense layers. `trap_network` calls this module and chooses the a_k. One gradient of a made-up row shows f(c) and
w f'(c).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.attacks._active.simulated_client import SimulatedClient

_STEP = 0.1
"""Length of d. Gradients of the model behind grow as it shrinks, and further local steps move the model farther as it
grows. With one local step all rows were read at 0.01 to 10 (4 seeds of a residual network). With five, clients left the
declared range in 8 of 24 runs of three networks at 0.03, 1 at 0.1, 1 at 0.3 and 5 at 1."""
_SURE = 1e4
"""Last bias of the predicted class while the model is measured; far above any w f."""


@dataclass(frozen=True)
class ModelBehind:
    """How the sum v of the first layer's outputs passes through a model.

    Attributes:
        point: (inputs,) c, what enters the model where v is zero.
        step: (inputs,) d.
        readout: (last hidden units,) w, scaled such that w f(c + d v) grows by v.
        level: w f(c).
    """

    point: Array
    step: Array
    readout: Array
    level: float


def measure_behind(
    client: SimulatedClient, initial: Mapping[str, Array], weights: tuple[str, ...], biases: tuple[str, ...]
) -> ModelBehind | None:
    """Measure a model between the second linear layer and the last one, at its initial parameters.

    Args:
        client: computes gradients of made-up rows.
        initial: all parameters by name.
        weights: names of the weights of the first, second and last linear layer.
        biases: names of their biases.

    Returns:
        The choices, or `None` where the model's input does not move its last hidden layer.
    """
    rng, public = np.random.default_rng(0), client.target.public
    point = rng.uniform(0.0, public.feature_bound, initial[biases[1]].shape)
    readout = np.asarray(rng.normal(size=initial[weights[2]].shape[1]))
    readout = readout / np.linalg.norm(readout)
    chosen = {name: np.array(value, float) for name, value in initial.items()}
    for name in (*weights, *biases):
        chosen[name] = np.zeros_like(chosen[name])
    # The first layer is zero, so that the point enters the model. Class 0 is predicted, and logit 1 is w f: for a row
    # of label 1 the derivatives by the logits are (1, -1, 0, ...).
    chosen[biases[1]], chosen[weights[2]][1] = point, readout
    chosen[biases[2]][0] = _SURE
    found = client.gradient(chosen, np.zeros((1, public.features)), np.array([1]))
    slope = -np.asarray(found[biases[1]], float)
    hidden, size = np.asarray(found[weights[2]][0], float), float(np.linalg.norm(slope))
    if not (np.isfinite(size) and size > 0):
        return None
    readout = readout / (_STEP * size)
    return ModelBehind(point, _STEP * slope / size, readout, float(readout @ hidden))
