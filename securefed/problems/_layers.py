"""Define and run a chain of linear layers with ReLU between them, as named parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from securefed.problems._torch_problem import TorchTensors


def layer_shapes(part: str, widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `part.weight1` (widths[1], widths[0]), `part.bias1`, `part.weight2`, ..."""
    out: dict[str, tuple[int, ...]] = {}
    for k, (inner, outer) in enumerate(pairwise(widths), 1):
        out |= {f"{part}.weight{k}": (outer, inner), f"{part}.bias{k}": (outer,)}
    return out


def run_layers(part: str, parameters: TorchTensors, x: torch.Tensor, count: int, *, leak: float = 0.0) -> torch.Tensor:
    """Compute the (rows, width) outputs of the last, linear layer; before it ReLU with slope `leak` below zero."""
    for k in range(1, count + 1):
        x = torch.nn.functional.linear(x, parameters[f"{part}.weight{k}"], parameters[f"{part}.bias{k}"])
        if k < count:
            x = torch.nn.functional.leaky_relu(x, leak)
    return x
