"""What entered the last layer at each local step, and with which slopes, read off that layer's update.

One row through T steps of gradient descent changes the last layer's weight by -eta sum_t d_t h_t^T and its bias by
-eta sum_t d_t, where h_t enters the layer at step t and d_t = softmax(W_t h_t + b_t) - e_y. The singular vectors of the
first sum span the h_t. Of their T^2 coordinates all d_t follow in turn, the layer being known at the start, and the two
sums are (C - 1) (T + 1) equations for them: for 5 steps and 10 classes 54 for 25.

The slopes of an untrained network hardly turn from step to step, so that the singular values fall steeply (from 1 to
between 4e-6 and 3e-10 in 5 steps of LeNet). What tells the steps apart is in the small ones, which single precision
does not hold. Last steps at which hardly anything was left to learn are alike, and count as one that is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import jacfwd, vmap

_SHARES = ((0.0, 30), (0.25, 30), (0.5, 40), (0.75, 50), (0.9, 60), (1.0, 120))
"""How far the singular directions are weighed alike, and iterations: the large ones are fitted first."""
_ROUND_OFF = 1e4
"""Singular values below this many roundings of the largest are noise."""
_SURE, _FOUND = 1e-6, 3e-3
"""Norms of the equations' misfit at which the search ends after one round, and at which it ends after more. At the
latter the inputs are right to 1 %, which is enough to guide by."""


@dataclass(frozen=True)
class Known:
    """The last layer as all know it, and its update.

    Attributes:
        weight: (C, m) at the start.      bias: (C,) at the start.
        weights, biases: (C, m), (C,) sums of the steps' gradients.
        label: of the row.      rate: eta.      steps: T.
    """

    weight: Tensor
    bias: Tensor
    weights: Tensor
    biases: Tensor
    label: int
    rate: float
    steps: int


@dataclass(frozen=True)
class Told:
    """What the update says of the first steps: of all T unless the last ones are alike.

    Attributes:
        inputs: (T, m) what entered the layer.      slopes: (T, C) of the loss in its outputs.
        misfit: of the equations, each in units of the singular direction that it is of.
    """

    inputs: Tensor
    slopes: Tensor
    misfit: float


def told(known: Known, propose: Callable[[], Tensor], *, rounds: int = 3, together: int = 64) -> Told | None:
    """Inputs and slopes of each step, by Levenberg-Marquardt from many starts; `None` where none explains the update.

    Where the layer's rank counts fewer steps than there were, the last of them is taken to have been repeated: where
    hardly anything is left to learn, steps are alike.

    Args:
        propose: a start (T, m): inputs that some row would have given.
        rounds: of `together` starts at most.
    """
    left, values, right = torch.linalg.svd(known.weights.double(), full_matrices=False)
    noise = _ROUND_OFF * torch.finfo(known.weights.dtype).eps
    steps = min(known.steps, int((values > noise * values[0]).sum()))
    if steps < 2 or steps == min(len(known.bias) - 1, len(values)) < known.steps:
        return None
    seen = replace(known, steps=steps)
    equations = _Equations(seen, left[:, :steps], values[:steps], right[:steps].T, known.steps - steps + 1)
    best = Told(torch.empty(0), torch.empty(0), np.inf)
    for number in range(rounds):
        found = torch.stack([equations.start(propose()[:steps]) for _ in range(together)])
        for share, iterations in _SHARES:
            found, norms = _levenberg(equations.weighed(share), found, iterations)
        least = int(norms.nan_to_num(nan=np.inf).argmin())
        if norms[least] < best.misfit:
            coordinates = equations.square(found[least])
            slopes = equations.slopes(coordinates)
            best = Told(coordinates @ equations.basis.T, slopes, float(norms[least]))
        if best.misfit <= (_FOUND if number else _SURE):
            break
    return best if best.misfit <= _FOUND else None


@dataclass(frozen=True)
class _Equations:
    """The two sums as functions of the inputs' coordinates, which are flat (T * T,), step after step.

    Attributes:
        left: (C, T).      values: (T,).      basis: (m, T) of the inputs.
        repeats: of the last step.
    """

    known: Known
    left: Tensor
    values: Tensor
    basis: Tensor
    repeats: int

    def square(self, flat: Tensor) -> Tensor:
        return flat.reshape(self.known.steps, -1)

    def start(self, inputs: Tensor) -> Tensor:
        """Coordinates of inputs (T, m), in their length."""
        inside = inputs.double() @ self.basis
        lengths = inputs.double().norm(dim=1) / inside.norm(dim=1).clamp_min(1e-30)
        found: Tensor = (inside * lengths[:, None]).reshape(-1)
        return found

    def slopes(self, coordinates: Tensor) -> Tensor:
        """(T, C), each of the layer that those before it left."""
        known = self.known
        outputs = coordinates @ (known.weight.double() @ self.basis).T + known.bias.double()
        products = known.rate * (coordinates @ coordinates.T + 1.0)
        aim = torch.nn.functional.one_hot(torch.tensor(known.label), len(known.bias))
        out: list[Tensor] = []
        for t, own in enumerate(outputs):
            left = own - sum((products[s, t] * slope for s, slope in enumerate(out)), torch.zeros_like(own))
            out.append(left.softmax(0) - aim)
        return torch.stack(out)

    def weighed(self, share: float) -> Callable[[Tensor], Tensor]:
        """Misfits of the sums, those of each direction over (its singular value)^share."""
        scale = self.values**share * self.values[0] ** (1.0 - share)

        def misfit(flat: Tensor) -> Tensor:
            coordinates = self.square(flat)
            slopes = self.slopes(coordinates)
            summed = torch.cat([slopes[:-1], self.repeats * slopes[-1:]])
            inner = (summed.T @ coordinates - self.left * self.values) / scale
            return torch.cat([inner.reshape(-1), summed.sum(0) - self.known.biases.double()])

        return misfit


def _levenberg(misfit: Callable[[Tensor], Tensor], starts: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Ends (k, n) of starts (k, n) computed together, and their misfits' norms; over once one is at rounding."""
    each, slopes = vmap(misfit), vmap(jacfwd(misfit))
    points, gaps = starts, each(starts)
    costs = gaps.square().sum(1)
    damping = torch.full_like(costs, 1e-2)
    for _ in range(iterations):
        jacobians = slopes(points)
        downhill = -torch.einsum("kmn,km->kn", jacobians, gaps)
        normal = jacobians.mT @ jacobians
        diagonal = normal.diagonal(dim1=1, dim2=2)
        done = torch.zeros(len(points), dtype=torch.bool)
        for _ in range(4):
            damped = normal + torch.diag_embed(damping[:, None] * diagonal + 1e-14)
            moved = points + torch.linalg.solve_ex(damped, downhill).result
            new = each(moved)
            cost = new.square().sum(1)
            better = (cost < costs) & ~done
            points, gaps = torch.where(better[:, None], moved, points), torch.where(better[:, None], new, gaps)
            costs, done = torch.where(better, cost, costs), done | better
            damping = torch.where(done, damping, 4.0 * damping).clamp_max(1e12)
            if done.all():
                break
        damping = torch.where(done, damping / 5.0, damping).clamp_min(1e-14)
        if costs.min() < 1e-16:
            break
    return points, costs.sqrt()
