"""Define and run a chain of linear layers with ReLU between them, as named parameters.

Autoencoders, bidirectional GANs (`run_layers`) and dense networks (`layer_shapes`) are made of such chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from securefed.problems._torch_problem import TorchTensors


def layer_shapes(part: str, widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a chain of linear layers' parameters, by name.

    Args:
        part: prefix of the names, as in `encoder.weight1`, `encoder.bias1`, `encoder.weight2`, ...; empty for none.
        widths: width of the input, then of the output of each layer; `weight1` is (widths[1], widths[0]).
    """
    out: dict[str, tuple[int, ...]] = {}
    prefix = f"{part}." if part else ""
    for k, (inner, outer) in enumerate(pairwise(widths), 1):
        out |= {f"{prefix}weight{k}": (outer, inner), f"{prefix}bias{k}": (outer,)}
    return out


def run_layers(part: str, parameters: TorchTensors, x: torch.Tensor, count: int, *, leak: float = 0.0) -> torch.Tensor:
    """Run rows through linear layers, with a leaky ReLU after each of them but the last.

    Args:
        part: prefix of the parameters' names, as in `layer_shapes`.
        parameters: parameters by name.
        x: (rows, width) inputs of the first layer.
        count: number of linear layers.
        leak: slope of the ReLU below zero.

    Returns:
        (rows, width) outputs of the last layer.
    """
    for k in range(1, count + 1):
        x = torch.nn.functional.linear(x, parameters[f"{part}.weight{k}"], parameters[f"{part}.bias{k}"])
        if k < count:
            x = torch.nn.functional.leaky_relu(x, leak)
    return x
