"""Treat a network's loss as a function of one flat vector of parameters and of rows, with gradients in torch.

Gradient inversion (`staged_inversion`) simulates gradients on candidate rows, and needs them as one differentiable
function. The module also finds, by probing gradients, which parameters belong to the linear layer that the rows enter,
and which to the linear layer that outputs the logits, so that attacks need no description of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from securefed._public import require
from securefed.problems._module_calls import call_with

Objective = Callable[[Mapping[str, Tensor], Tensor, Tensor, Tensor], Tensor]
"""(parameters by name, rows (B, features), targets (B, ...), weights (B,)) -> weighted sum of the rows' losses."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output of the module, target) -> (B,) losses of the rows."""

_EQUAL = 1e-4
"""Relative difference below which two float32 vectors count as equal when layers are probed."""


@dataclass(frozen=True)
class LinearLayer:
    """The names of a linear layer's parameters.

    Attributes:
        weight: name of the weight (out, in).
        bias: name of the bias (out,); `None` without one.
    """

    weight: str
    bias: str | None


@dataclass(frozen=True)
class FlatNetwork:
    """A loss as a function of parameters and rows.

    Attributes:
        shapes: shapes of the parameters by name, in the order in which they lie in a flat vector.
        objective: see `Objective`; a regulariser may be part of it.
        dtype: precision of all computations.
        nested: whether `gradient` works inside the transforms of torch.func (vmap, jacfwd). Outside them plain autograd
            takes less time, and the first gradient of a process does not load torch's compiler for a second.
    """

    shapes: Mapping[str, tuple[int, ...]]
    objective: Objective
    dtype: torch.dtype = torch.float32
    nested: bool = True

    @classmethod
    def of(cls, module: nn.Module, loss: Loss, *, input_shape: tuple[int, ...] | None = None) -> FlatNetwork:
        """Wrap a module as it stands; only parameters that require a gradient count.

        Args:
            module: the model.
            loss: losses of the rows one by one, e.g. `functools.partial(F.cross_entropy, reduction="none")`.
            input_shape: shape in which the module takes a row; `None` leaves it flat.

        Raises:
            ConfigError: nothing to train, or batch normalisation, whose rows see each other.
        """
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        require(len(trained) > 0, "the module has no parameters to train, so there is no gradient to invert")
        for name, part in module.named_modules():
            batch = isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training
            require(not batch, f"part {name!r} is batch normalisation in training mode; call eval() if the client did")

        def objective(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
            rows = x if input_shape is None else x.reshape(-1, *input_shape)
            return torch.dot(loss(call_with(module, parameters, rows), y), weights)

        return cls({n: tuple(v.shape) for n, v in trained.items()}, objective, next(iter(trained.values())).dtype)

    @cached_property
    def places(self) -> dict[str, slice]:
        """The slice of each parameter in a flat vector."""
        out, start = {}, 0
        for name, shape in self.shapes.items():
            size = int(torch.Size(shape).numel())
            out[name], start = slice(start, start + size), start + size
        return out

    @property
    def size(self) -> int:
        """Number of parameters."""
        return max((place.stop for place in self.places.values()), default=0)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a flat vector (size,) by name."""
        return {name: vector[place].reshape(self.shapes[name]) for name, place in self.places.items()}

    def flatten(self, tensors: Mapping[str, Any]) -> Tensor:
        """Return one vector (size,) in the network's precision.

        Raises:
            ConfigError: a tensor is missing or has another shape; the text names it.
        """
        for name, shape in self.shapes.items():
            require(name in tensors, f"the message lacks parameter {name!r}; it holds {sorted(tensors)[:8]}")
            received = tuple(tensors[name].shape)
            require(
                received == tuple(shape), f"{name!r} has shape {received} in the message, {tuple(shape)} in the model"
            )
        vectors = [torch.as_tensor(tensors[name]).detach().reshape(-1).to(self.dtype) for name in self.shapes]
        return torch.cat(vectors)

    def gradient(self, point: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient (size,) of the weighted loss; it is differentiable in `x` and `point`.

        Args:
            point: (size,) parameters.
            x: (B, features) rows.
            y: (B, ...) their targets.
            weights: (B,) weights of their losses.
        """
        if not self.nested:
            gradients = self.gradients(point, x, y, weights)
            return torch.cat([gradients[name].reshape(-1) for name in self.shapes])

        def value(parameters: dict[str, Tensor]) -> Tensor:
            return self.objective(parameters, x, y, weights)

        # By tensor: through a flat vector every tensor's gradient would be padded to the length of all and added up.
        gradients = torch.func.grad(value)(self.split(point))
        return torch.cat([gradients[name].reshape(-1) for name in self.shapes])

    def gradients(self, point: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Return `gradient` by name, by plain autograd: not for use inside torch.func's transforms."""
        differentiable = torch.is_grad_enabled() and (x.requires_grad or point.requires_grad)
        with torch.enable_grad():
            tensors = self.split(point if point.requires_grad else point.detach())
            parameters = {name: part if part.requires_grad else part.requires_grad_() for name, part in tensors.items()}
            value = self.objective(parameters, x, y, weights)
            slopes = torch.autograd.grad(
                value, list(parameters.values()), create_graph=differentiable, allow_unused=True, materialize_grads=True
            )
        return dict(zip(parameters, slopes, strict=True))

    @cached_property
    def plain(self) -> FlatNetwork:
        """A copy of the network for use outside torch.func's transforms."""
        return replace(self, nested=False)

    def first_layer(self, point: Tensor, features: int, target: Tensor) -> LinearLayer | None:
        """Find the linear layer that the rows enter as they are, by a probe: its gradient for one row x is d x^T.

        Its bias is the parameter whose gradient is d.

        Args:
            point: (size,) parameters.
            features: width of a row.
            target: (1, ...) any valid target.

        Returns:
            The layer with most outputs if there are several, `None` if there is none.
        """
        generator = torch.Generator().manual_seed(0)
        row = torch.rand(1, features, generator=generator, dtype=self.dtype)
        gradients = self.gradients(point, row, target, torch.ones(1, dtype=self.dtype))
        # Multiplying by a random vector shows whether a matrix is d x^T, at less cost than comparing all entries.
        random_vector = torch.randn(features, generator=generator, dtype=self.dtype)
        best: tuple[int, LinearLayer] | None = None
        for name, gradient in gradients.items():
            if gradient.ndim != 2 or gradient.shape[1] != features:
                continue
            slope = gradient @ row[0] / row[0].square().sum()  # d, if the gradient is d x^T
            if (
                slope.norm() == 0
                or (gradient @ random_vector - slope * (row[0] @ random_vector)).norm() > _EQUAL * gradient.norm()
            ):
                continue
            bias = next(
                (n for n, g in gradients.items() if g.shape == slope.shape and _close(g, slope) and g.ndim == 1), None
            )
            if best is None or len(slope) > best[0]:
                best = (len(slope), LinearLayer(name, bias))
        return best[1] if best else None

    def logit_layer(self, point: Tensor, features: int, classes: int) -> LinearLayer | None:
        """Find the linear layer whose outputs are the logits of a cross entropy, by a probe.

        Its bias has gradient softmax(z) - one_hot(label) for one row. The entries sum to 0, and the difference between
        two labels is 1 and -1 at these labels and 0 elsewhere. Its weight has the gradient of the bias times the input.

        Args:
            point: (size,) parameters.
            features: width of a row.
            classes: number of classes; the layer may have further outputs.

        Returns:
            The layer, or `None` if there is none.
        """
        if classes < 2:
            return None
        generator = torch.Generator().manual_seed(1)
        row = torch.rand(1, features, generator=generator, dtype=self.dtype)
        weight = torch.ones(1, dtype=self.dtype)
        first, last = (self.gradients(point, row, torch.tensor([c]), weight) for c in (0, classes - 1))
        for name, slope in first.items():
            if slope.ndim != 1 or len(slope) < classes:
                continue
            difference = torch.zeros_like(slope)
            difference[0], difference[classes - 1] = -1.0, 1.0
            if not (_close(slope - last[name], difference) and abs(float(slope.sum())) < _EQUAL):
                continue
            for weight_name, gradient in first.items():
                if gradient.ndim == 2 and len(gradient) == len(slope):
                    inner = slope @ gradient / slope.square().sum()
                    if (gradient - slope[:, None] * inner).norm() <= _EQUAL * gradient.norm():
                        return LinearLayer(weight_name, name)
        return None


def _close(one: Tensor, other: Tensor) -> bool:
    """Return whether two vectors are equal up to rounding in single precision."""
    return bool((one - other).norm() <= _EQUAL * other.norm())
