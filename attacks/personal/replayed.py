"""FLAME's local steps through a network, all rounds at once, as torch computes them and in its slopes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from securefed.algorithms.optimization.work import Work
from securefed.attacks.networks.network import Network
from securefed.attacks.networks.steps import passes
from securefed.attacks.personal.path import Pull
from securefed.public import Public


@dataclass(frozen=True)
class Paths:
    """From rows to the mean gradient along each round's path, weighted as the steps weigh it; a `networks` simulation.

    With r = 1 - eta lambda, a path of T steps that starts at theta and is drawn to w ends at

        r^T theta + (1 - r^T) w - eta sum_h r^(T-1-h) grad f(theta_h)                                    (9) unrolled

    so that the weighted sum of its gradients is known exactly from the two ends. The weights are made to sum to 1.

    Attributes:
        starts, anchors: (rounds, parameters) theta_i and what it is drawn to.      sizes: rows of each local step.
    """

    pull: Pull
    public: Public
    starts: Tensor
    anchors: Tensor
    steps: int

    def copies(self) -> int:
        return len(self.starts)

    def __call__(self, network: Network, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """(rounds * parameters,). `point` is not looked at: paths start where they started."""
        parts = passes(len(x), self.pull.method.batch_size, self.steps)
        network = replace(network, nested=True)  # the paths are transformed together

        def gradient(at: Tensor, step: int) -> Tensor:
            own, aims = x[parts[step]], y[parts[step]]
            weights = torch.full((len(own),), 1.0 / len(own), dtype=own.dtype)
            return torch.func.vmap(lambda theta: network.gradient(theta, own, aims, weights))(at)

        return self.mean_gradients(network, self._ends(gradient, len(x))).reshape(-1)

    def mean_gradients(self, network: Network, moved: Tensor) -> Tensor:
        """(rounds, parameters) of paths that went this far: what they went further than paths without rows do, over how
        much further a constant gradient of 1 leads. A penalty is no row's, and is not in it."""
        nobody = (self.starts.new_zeros((0, self.public.features)), torch.zeros(0, dtype=torch.int64))

        def penalty(at: Tensor, _: int) -> Tensor:
            return torch.func.vmap(lambda theta: network.gradient(theta, *nobody, at.new_zeros(0)))(at)

        drift = self._ends(penalty)
        return (moved - drift) / (self._ends(lambda at, step: penalty(at, step) + 1.0) - drift)

    def _ends(self, gradient: Any, rows: int = 0) -> Tensor:
        """theta^{t+1} - theta^t of each round."""
        sizes = (float(rows),) * self.steps
        work = Work(gradient, gradient, self.public, float(rows), (0,) * self.steps, sizes)
        sent, _ = self.pull.steps(cast(Any, {"x": self.starts, "anchor": self.anchors}), (), work)
        return cast(Tensor, sent["delta"])
