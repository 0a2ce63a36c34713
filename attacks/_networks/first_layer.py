"""Recover rows and their targets from the gradient of the linear layer that the rows enter.

For z = W x + b and a batch of B rows X, (B, features), the mean gradients are gW = D^T X / B and gb = D^T 1 / B, where
D, (B, out), holds the slopes of each row's loss at the layer's outputs z. `row_separation` recovers X from them. Then D
follows from gW by least squares. One pass of a row through the rest of the network gives the slope that it would have
with a certain target (a label, or a real number in regression); the target whose slope agrees best is the row's own,
whatever lies behind the layer and whatever the loss. This is the first stage of `staged_inversion`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from securefed._tensors import Array
from securefed.attacks._networks.flat_network import FlatNetwork, LinearLayer
from securefed.attacks._networks.row_separation import FirstLayerGradient, ratio, row_space, separate

_ROUNDING = 1e-30
"""Entries of recovered rows below this share of the largest are rounding and become 0: as subnormal numbers in single
precision they make products ten times as slow."""
_MOST_SLOPES = 2**22
"""Most entries of slopes that are held at a time (32 MiB in double precision)."""


@dataclass(frozen=True)
class FirstLayerEvidence:
    """The first layer's part of a message; what follows from it is computed on first use and cached.

    Attributes:
        network: the model and its loss.
        point: (parameters,) where the message was computed.
        layer: names of the layer's parameters.
        observed: the layer's part of the mean gradient. Where several messages of the same rows are read together, the
            gradients at the other points are stacked below the first as further outputs.
        count: B, the number of rows behind the message.
        rng: draws the trials of the separation.
        scaled: whether a defence clipped the messages, so that slopes are known up to positive factors only, one for
            each client in the sum.
    """

    network: FlatNetwork
    point: Tensor
    layer: LinearLayer
    observed: FirstLayerGradient
    count: int
    rng: np.random.Generator
    scaled: bool = False

    @classmethod
    def of(
        cls, network: FlatNetwork, point: Tensor, gradient: Tensor, target: Tensor, count: int, features: int,
        rng: np.random.Generator, *, scaled: bool = False,
    ) -> FirstLayerEvidence | None:  # fmt: skip
        """Find the layer by a probe; `None` where the rows enter no linear layer as they are.

        Args:
            network: the model and its loss.
            point: (parameters,) where the message was computed.
            gradient: (parameters,) mean gradient of the rows.
            target: (1, ...) any valid target.
            count: number of rows.
            features: width of a row.
            rng: draws the trials of the separation.
            scaled: as the attribute.
        """
        layer = network.first_layer(point, features, target)
        if layer is None:
            return None
        parts = network.split(gradient)
        observed = FirstLayerGradient(parts[layer.weight].numpy(), parts[layer.bias].numpy() if layer.bias else None)
        return cls(network, point, layer, observed, count, rng, scaled)

    @property
    def stage(self) -> str:
        """The name of the closed form that gives the rows."""
        return "ratio" if self.count == 1 else "separation"

    @cached_property
    def rows(self) -> Array | None:
        """The rows (B, features) in any order; a simulation must confirm them.

        `None` where they cannot be separated, and always for a layer without a bias: all that follows from `rows`,
        such as labels, needs one.
        """
        rows = ratio(self.observed) if self.count == 1 else separate(self.observed, self.count, self.rng)
        if rows is None or not np.isfinite(rows).all():
            return None
        return np.where(np.abs(rows) > _ROUNDING * np.abs(rows).max(), rows, 0.0)

    @cached_property
    def row_space(self) -> Array:
        """Orthonormal rows (at most B, features) whose span holds the rows."""
        return row_space(self.observed, self.count)

    @cached_property
    def slopes(self) -> Array:
        """The slope (B, out) of each row's own loss at the layer's outputs, at the point. Needs `rows`."""
        assert self.rows is not None
        weight = self.observed.weight[: self.network.shapes[self.layer.weight][0]]  # of the first message
        # gW = D^T X / B, so D^T = B gW X^+ with the pseudoinverse X^+
        return np.asarray(self.count * (weight @ np.linalg.pinv(self.rows).astype(weight.dtype)).T)

    def residuals(self, targets: Tensor) -> Array:
        """Return the relative distance (B, T) of each row's slope from the one it would have with each target (T, ...).

        Of slopes that are `scaled` the directions are compared. Needs `rows`.
        """
        assert self.rows is not None
        rows, observed = (torch.as_tensor(batch, dtype=self.network.dtype) for batch in (self.rows, self.slopes))
        if self.scaled:
            observed = _directions(observed)
        distances, chunk = [], max(1, _MOST_SLOPES // (observed.shape[1] * len(targets)))
        for batch in (slice(start, start + chunk) for start in range(0, len(rows), chunk)):
            x = rows[batch].repeat_interleave(len(targets), dim=0)
            y = targets.repeat(len(rows[batch]), *(1 for _ in targets.shape[1:]))
            simulated = self._simulated(x, y).reshape(-1, len(targets), observed.shape[1])
            difference = (_directions(simulated) if self.scaled else simulated) - observed[batch, None]
            distances.append(difference.norm(dim=2) / observed[batch].norm(dim=1, keepdim=True).clamp_min(1e-30))
        return np.asarray(np.nan_to_num(torch.cat(distances).double().numpy(), nan=1e30, posinf=1e30))

    def _simulated(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the slope (B, out) of each row's loss at the layer's outputs, for rows `x` with targets `y`.

        Each row is given a copy of the bias of its own; the gradient by that copy is the row's slope.
        """
        assert self.layer.bias is not None  # without a bias there are no `rows`, which `residuals` asks for first
        network, name = self.network, self.layer.bias
        parts = network.split(self.point)
        bias = parts[name].expand(len(x), -1).clone().requires_grad_()

        def value(bias: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
            """Return the loss with this bias in the first layer, one (out,) for each row of x or one for all."""
            return network.objective({**parts, name: bias}, x, y, weights)

        with torch.enable_grad():
            try:  # most linear layers add a bias (B, out) as they add one (out,)
                total = value(bias, x, y, torch.ones(len(x), dtype=network.dtype))
            except RuntimeError:  # this one takes its rows in another shape
                weight = torch.ones(len(x), 1, dtype=network.dtype)
                total = torch.func.vmap(value)(bias, x[:, None], y[:, None], weight).sum()
            return torch.autograd.grad(total, bias)[0]

    def ordered(self, targets: Tensor) -> Array:
        """Return the rows (B, features) in the order of the targets (B, ...) that explains their slopes best."""
        assert self.rows is not None
        if torch.equal(targets, targets[:1].expand_as(targets)):
            return self.rows
        return self.rows[linear_sum_assignment(self.residuals(targets).T)[1]]

    def labelled(self, classes: int, targets: Tensor | None = None) -> tuple[Array, Array] | None:
        """Return the rows (B, features) by ascending label, and the labels (B,); `None` without `rows`.

        Args:
            classes: number of classes.
            targets: (classes, ...) the targets of the labels 0, 1, ...; by default the labels themselves.
        """
        if self.rows is None:
            return None
        labels = self.residuals(torch.arange(classes) if targets is None else targets).argmin(axis=1)
        order = np.argsort(labels, kind="stable")
        return self.rows[order], labels[order]


def _directions(slopes: Tensor) -> Tensor:
    """Scale slopes (..., out) to length 1."""
    lengths: Tensor = slopes.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    return slopes.div(lengths)
