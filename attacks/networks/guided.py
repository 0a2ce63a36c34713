"""Local steps whose last layer is known at each of them (`last_layer`): what a row does to the layers before it.

The update of several steps is a steep function of the row: what a step changes decides what the next one sees, and the
loss is gone after a few. With the slopes at the outputs and the last layer's weights given, a candidate's steps no
longer run away from the client's, and each step's input of the last layer is compared by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from securefed.attacks.networks.last_layer import Known, Told, told
from securefed.attacks.networks.matching import Prior, Problem
from securefed.attacks.networks.network import Layer, Network
from securefed.attacks.networks.steps import LocalSteps


@dataclass(frozen=True)
class Guided:
    """As `steps.Simulation`, of one row: the update, with the last layer's weight and bias replaced.

    Row t of that weight's place holds what enters the layer at step t, in units of `told.inputs[t]` and weighed by the
    step's slopes, so that steps at which nothing is left to learn do not count; all rows together have the energy of
    the update of the weight. The bias's place is empty. The last step of which
    something is told is repeated for those of which nothing is.

    Attributes:
        energy: of the update of the last layer's weight.
    """

    local: LocalSteps
    layer: Layer
    told: Told
    energy: float

    @classmethod
    def of(
        cls,
        network: Network,
        local: LocalSteps,
        problem: Problem,
        prior: Prior,
        features: int,
        rng: np.random.Generator,
    ) -> Guided | None:
        """`None` where the message is not of several steps of one row, or does not tell them apart."""
        integers = not problem.targets.is_floating_point() and problem.targets.shape == (1,)
        if not integers or local.steps < 2:
            return None
        label = int(problem.targets[0])
        layer = network.exit(problem.point, features, max(label + 1, 2))
        if layer is None or layer.bias is None:
            return None
        parts, sent = network.split(problem.point), network.split(problem.message / -local.learning_rate)
        weight, bias = parts[layer.weight], parts[layer.bias]
        known = Known(weight, bias, sent[layer.weight], sent[layer.bias], label, local.learning_rate, local.steps)

        def propose() -> Tensor:
            """Of a row of any brightness."""
            row = rng.uniform(size=(1, features)) ** np.exp(rng.uniform(0.0, 2.0))
            x = torch.tensor(prior.low + (prior.high - prior.low) * row, dtype=network.dtype)
            return _inputs(network, problem.point, x, problem.targets, layer, local)

        try:
            found = told(known, propose)
        except _NotSeen:
            return None
        energy = float(network.split(problem.message)[layer.weight].square().sum())
        return None if found is None else cls(local, layer, found, energy)

    def problem(self, network: Network, problem: Problem) -> Problem:
        """The message as this simulation makes it."""
        parts = dict(network.split(problem.message))
        own = (self._scales[:, None] * self.told.inputs).to(network.dtype)
        return Problem(problem.point, self._filled(network, parts, list(own)), problem.targets)

    def __call__(self, network: Network, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        start = {name: part.detach() for name, part in network.split(point).items()}
        last = {name: start[name] for name in start if name in (self.layer.weight, self.layer.bias)}
        inner = {name: part for name, part in start.items() if name not in last}
        weight, seen = last[self.layer.weight].double(), []
        onward = torch.is_grad_enabled() and x.requires_grad
        for inputs, slope, scale in zip(self.told.inputs, self.told.slopes, self._scales, strict=True):
            with torch.enable_grad():
                leaves = {
                    n: part if part.requires_grad else part.detach().requires_grad_() for n, part in inner.items()
                }
                entering = _entering(network, {**last, **leaves}, x, y, self.layer)
                value = entering @ (slope @ weight).to(network.dtype)
                found = torch.autograd.grad(
                    value, list(leaves.values()), create_graph=onward, allow_unused=True, materialize_grads=True
                )
            seen.append(scale.to(network.dtype) * entering)
            repeats = 1 if len(seen) < len(self.told.inputs) else self.local.steps - len(seen) + 1
            rate = self.local.learning_rate * repeats
            inner = {n: leaves[n] - rate * g for n, g in zip(leaves, found, strict=True)}
            weight = weight - rate * torch.outer(slope, inputs)
        return self._filled(network, {name: part - start[name] for name, part in inner.items()}, seen)

    def copies(self) -> int:
        return self.local.copies()

    @property
    def _scales(self) -> Tensor:
        """(T,) what an input is multiplied with."""
        shares = self.told.slopes.square().sum(1)
        lengths = self.told.inputs.norm(dim=1).clamp_min(1e-30)
        scales: Tensor = (self.energy * shares / shares.sum()).sqrt() / lengths
        return scales

    def _filled(self, network: Network, parts: dict[str, Tensor], rows: list[Tensor]) -> Tensor:
        shape = network.shapes[self.layer.weight]
        empty = torch.zeros(shape[0] - len(rows), shape[1], dtype=network.dtype)
        assert self.layer.bias is not None
        bias = torch.zeros(network.shapes[self.layer.bias], dtype=network.dtype)
        whole = {**parts, self.layer.weight: torch.cat([torch.stack(rows), empty]), self.layer.bias: bias}
        return torch.cat([whole[name].reshape(-1) for name in network.shapes])


def _inputs(network: Network, point: Tensor, x: Tensor, y: Tensor, layer: Layer, local: LocalSteps) -> Tensor:
    """(T, m) what enters the layer at each step of a row (1, features)."""
    at, out = point, []
    for _ in range(local.steps):
        with torch.no_grad():
            out.append(_entering(network, network.split(at), x, y, layer))
        at = at - local.learning_rate * network.plain.gradient(at, x, y, torch.ones(1, dtype=network.dtype))
    return torch.stack(out)


def _entering(network: Network, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, layer: Layer) -> Tensor:
    """(m,) what enters a linear layer for one row."""
    watch = _Watch(parameters[layer.weight])
    with watch:
        network.objective(parameters, x, y, torch.ones(1, dtype=network.dtype))
    seen = watch.seen
    if seen is None or seen.numel() != network.shapes[layer.weight][1]:
        raise _NotSeen
    return seen.reshape(-1)


class _NotSeen(Exception):
    """A layer that is not computed by `torch.nn.functional.linear`, or not of one vector a row."""


class _Watch(TorchFunctionMode):
    """Notes what the linear layer of a weight is given."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self._weight, self.seen = weight, None

    seen: Tensor | None

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is functional.linear and len(args) > 1 and args[1] is self._weight:
            self.seen = args[0]
        return func(*args, **(kwargs or {}))
