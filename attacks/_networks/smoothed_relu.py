"""Replace ReLU by softplus, so that a search can cross the points where units switch on and off.

A gradient of a ReLU network depends on a row also through which units are active, and these change in jumps that no
derivative shows. With w softplus(z / w) in place of max(z, 0) the dependence is smooth, at the price of a residual of
order w. A search that goes from large widths w to small ones ends at the network itself (graduated non-convexity).
`staged_inversion` searches for the rows behind a gradient in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_RELU: frozenset[Any] = frozenset({torch.relu, functional.relu, Tensor.relu})
"""Functions of torch that compute a ReLU."""
_LEAKY: frozenset[Any] = frozenset({functional.leaky_relu})
"""Those that compute a leaky ReLU."""


class SmoothedReLU(TorchFunctionMode):
    """A context in which every ReLU is w softplus(z / w), with w = `width` times the root mean square of its inputs z.

    Derivatives take w as a constant. A leaky ReLU a z + (1 - a) max(z, 0) is smoothed likewise.
    """

    def __init__(self, width: float) -> None:
        """Choose the width."""
        super().__init__()
        self._width = width

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace the ReLUs."""
        if func not in _RELU | _LEAKY:
            return func(*args, **(kwargs or {}))
        z, leak = args[0], 0.0
        if func in _LEAKY:
            leak = args[1] if len(args) > 1 else (kwargs or {}).get("negative_slope", 0.01)
        # the last summand keeps w from being 0, by which z is divided, where all z are 0
        w = self._width * z.detach().square().mean().sqrt() + torch.finfo(z.dtype).tiny ** 0.5
        return leak * z + (1.0 - leak) * w * functional.softplus(z / w)


class _ReLUDetector(TorchFunctionMode):
    """Records whether a ReLU was computed."""

    found = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.found = self.found or func in _RELU | _LEAKY
        return func(*args, **(kwargs or {}))


def has_relu(objective: Callable[..., Tensor], parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> bool:
    """Return whether an objective (`flat_network.Objective`) computes a ReLU that `SmoothedReLU` would smooth."""
    with _ReLUDetector() as detector, torch.no_grad():
        objective(parameters, x, y, torch.ones(len(x), dtype=x.dtype))
    return bool(detector.found)
