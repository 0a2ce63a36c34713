"""What one message says of its rows where they enter a linear layer, and which target each of them has.

The slopes D (B, out) at the layer's outputs follow from the rows, gW = D^T X / B being linear in them. What a row's
slope would be with any target takes one pass of that row through the rest of the network: the target that gives the
slope seen is the row's own, whatever lies behind the layer and whatever the loss. B passes find what would take B!
orders of the rows to find by simulating them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from securefed.attacks.networks.exact import Entering, ratio, separate, span
from securefed.attacks.networks.network import Layer, Network
from securefed.tensors import Array

_NOTHING = 1e-30
"""Entries of this part of the largest are 0."""
_TOGETHER = 2**22
"""Entries of slopes that are held at a time."""


@dataclass(frozen=True)
class FirstLayer:
    """The first layer's part of a message, read when asked and kept.

    Attributes:
        network: the whole of it.      point: (parameters,) where the message was computed.
        layer: the layer's names.
        seen: its part of the mean gradient; outputs of later points may follow, where messages are read together.
        count: B, the rows behind the message.
        rng: of the separation.
    """

    network: Network
    point: Tensor
    layer: Layer
    seen: Entering
    count: int
    rng: np.random.Generator

    @classmethod
    def of(
        cls, network: Network, point: Tensor, gradient: Tensor, target: Tensor, count: int, features: int,
        rng: np.random.Generator,
    ) -> FirstLayer | None:  # fmt: skip
        """The layer found by a probe with a target (1, ...); `None` where rows enter no linear layer as they are."""
        layer = network.entrance(point, features, target)
        if layer is None:
            return None
        parts = network.split(gradient)
        seen = Entering(parts[layer.weight].numpy(), parts[layer.bias].numpy() if layer.bias else None)
        return cls(network, point, layer, seen, count, rng)

    @property
    def stage(self) -> str:
        """The name of what finds the rows."""
        return "ratio" if self.count == 1 else "separation"

    @cached_property
    def rows(self) -> Array | None:
        """(B, features) the rows in any order, or `None` where they cannot be told apart; likely, not certain."""
        found = ratio(self.seen) if self.count == 1 else separate(self.seen, self.count, self.rng)
        if found is None or not np.isfinite(found).all():
            return None
        # What rounding leaves of a 0 may be subnormal in single precision, which makes products ten times as slow.
        return np.where(np.abs(found) > _NOTHING * np.abs(found).max(), found, 0.0)

    @cached_property
    def span(self) -> Array:
        """(at most B, features) orthonormal rows whose span holds the rows."""
        return span(self.seen, self.count)

    @cached_property
    def slopes(self) -> Array:
        """(B, out) slope of each row's own loss at the layer's outputs, at the point. Needs `rows`."""
        assert self.rows is not None
        weight = self.seen.weight[: self.network.shapes[self.layer.weight][0]]
        return np.asarray(self.count * (weight @ np.linalg.pinv(self.rows).astype(weight.dtype)).T)

    def misfits(self, targets: Tensor) -> Array:
        """(B, T) relative distance of each row's slope from the one it would have with each target (T, ...).

        Needs `rows` and a bias, without which there are none.
        """
        assert self.rows is not None
        rows, seen = (torch.as_tensor(part, dtype=self.network.dtype) for part in (self.rows, self.slopes))
        found, chunk = [], max(1, _TOGETHER // (seen.shape[1] * len(targets)))
        for part in (slice(start, start + chunk) for start in range(0, len(rows), chunk)):
            x = rows[part].repeat_interleave(len(targets), dim=0)
            y = targets.repeat(len(rows[part]), *(1 for _ in targets.shape[1:]))
            gap = self._simulated(x, y).reshape(-1, len(targets), seen.shape[1]) - seen[part, None]
            found.append(gap.norm(dim=2) / seen[part].norm(dim=1, keepdim=True).clamp_min(1e-30))
        return np.asarray(np.nan_to_num(torch.cat(found).double().numpy(), nan=1e30, posinf=1e30))

    def _simulated(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, out) slope of each row's own loss at the layer's outputs: the gradient of a bias of its own."""
        assert self.layer.bias is not None
        network, name = self.network, self.layer.bias
        parts = network.split(self.point)
        bias = parts[name].expand(len(x), -1).clone().requires_grad_()

        def value(bias: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
            return network.objective({**parts, name: bias}, x, y, weights)

        with torch.enable_grad():
            try:  # a linear layer of rows adds a bias (B, out) as it does one (out,)
                total = value(bias, x, y, torch.ones(len(x), dtype=network.dtype))
            except RuntimeError:  # it sees them in another shape
                one = torch.ones(len(x), 1, dtype=network.dtype)
                total = torch.func.vmap(value)(bias, x[:, None], y[:, None], one).sum()
            return torch.autograd.grad(total, bias)[0]

    def ordered(self, targets: Tensor) -> Array:
        """(B, features) the rows in the order of the targets (B, ...) that explains their slopes best."""
        assert self.rows is not None
        if torch.equal(targets, targets[:1].expand_as(targets)):
            return self.rows
        return self.rows[linear_sum_assignment(self.misfits(targets).T)[1]]

    def labelled(self, classes: int) -> tuple[Array, Array] | None:
        """The rows (B, features) by ascending label, and those (B,); `None` where rows cannot be told apart."""
        if self.rows is None:
            return None
        labels = self.misfits(torch.arange(classes)).argmin(axis=1)
        order = np.argsort(labels, kind="stable")
        return self.rows[order], labels[order]
