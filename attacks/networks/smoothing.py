"""ReLU made smooth, so that a search sees where its slopes lead across the kinks.

A gradient of a ReLU network depends on a row through which units are cut off, and that changes in jumps: between two of
them the slopes of a misfit say nothing of the next. With w softplus(z / w) in place of max(z, 0) they do, at the price
of a misfit of order w; a search that goes on from width to width ends at the network itself (graduated non-convexity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_RELU: frozenset[Any] = frozenset({torch.relu, functional.relu, Tensor.relu})
_LEAKY: frozenset[Any] = frozenset({functional.leaky_relu})


class Smoothed(TorchFunctionMode):
    """Within it max(z, 0) is w softplus(z / w) in every ReLU, w = `width` times the root mean square of its inputs z.

    w counts as a constant where derivatives are taken. A leaky ReLU a z + (1 - a) max(z, 0) is smoothed likewise.
    """

    def __init__(self, width: float) -> None:
        super().__init__()
        self._width = width

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in _RELU | _LEAKY:
            return func(*args, **(kwargs or {}))
        z, leak = args[0], 0.0
        if func in _LEAKY:
            leak = args[1] if len(args) > 1 else (kwargs or {}).get("negative_slope", 0.01)
        w = self._width * z.detach().square().mean().sqrt() + torch.finfo(z.dtype).tiny ** 0.5
        return leak * z + (1.0 - leak) * w * functional.softplus(z / w)


class _Seen(TorchFunctionMode):
    """Notes whether a ReLU was computed."""

    found = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.found = self.found or func in _RELU | _LEAKY
        return func(*args, **(kwargs or {}))


def has_relu(objective: Callable[..., Tensor], parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> bool:
    """Whether an objective of `network.Objective`'s kind computes a ReLU that `Smoothed` would smooth."""
    with _Seen() as seen, torch.no_grad():
        objective(parameters, x, y, torch.ones(len(x), dtype=x.dtype))
    return bool(seen.found)
