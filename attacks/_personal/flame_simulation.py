"""Simulate FLAME's local steps through a network, all rounds at once, in torch.

Given are the personal models theta_i at both ends of each round (`admm_recursion`). A round's steps

    theta <- theta - eta (grad f(theta) + lambda (theta - w))

with learning rate eta, attraction lambda and anchor w are linear in the gradients grad f, so that the ends give a
weighted mean of these; the simulation computes the same mean for hypothetical rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from securefed._public import Public
from securefed.algorithms._optimization.local_steps import LocalTraining
from securefed.attacks._networks.client_simulations import batch_slices, mean_weights
from securefed.attacks._networks.flat_network import FlatNetwork
from securefed.attacks._personal.flame_row_fit import FLAMELocalSteps


@dataclass(frozen=True)
class FLAMESimulation:
    """The mean gradient along the path of each round, as a function of the rows (a `ClientSimulation`).

    With r = 1 - eta lambda, a path of T steps that starts at theta and is drawn to w ends at

        r^T theta + (1 - r^T) w - eta sum_h r^(T-1-h) grad f(theta_h)                                    (9) unrolled

    so that the weighted sum of its gradients follows exactly from its two ends. The weights are made to sum to 1.

    Attributes:
        local: the local steps of the algorithm.
        public: facts that every party knows.
        starts: (rounds, parameters) theta_i before each round.
        anchors: (rounds, parameters) what theta_i is drawn to.
        steps: number of local steps, T.
    """

    local: FLAMELocalSteps
    public: Public
    starts: Tensor
    anchors: Tensor
    steps: int

    def copies(self) -> int:
        """Return the number of rounds."""
        return len(self.starts)

    def __call__(self, network: FlatNetwork, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean gradients (rounds * parameters,). `point` is not used: each path has its own start."""
        parts = batch_slices(len(x), self.local.method.batch_size, self.steps)
        network = replace(network, nested=True)  # the paths are transformed together

        def gradient(at: Tensor, step: int) -> Tensor:
            own, aims = x[parts[step]], y[parts[step]]
            return torch.func.vmap(lambda theta: network.gradient(theta, own, aims, mean_weights(own)))(at)

        return self.mean_gradients(network, self._ends(gradient, len(x))).reshape(-1)

    def mean_gradients(self, network: FlatNetwork, moved: Tensor) -> Tensor:
        """Return the mean gradients (rounds, parameters) of paths whose ends lie `moved` from their starts.

        They are the distances beyond those of paths without rows, divided by what a gradient of 1 adds. A penalty does
        not depend on the rows and is not part of them.
        """
        no_rows = (self.starts.new_zeros((0, self.public.features)), torch.zeros(0, dtype=torch.int64))

        def penalty(at: Tensor, _: int) -> Tensor:
            return torch.func.vmap(lambda theta: network.gradient(theta, *no_rows, at.new_zeros(0)))(at)

        drift = self._ends(penalty)
        return (moved - drift) / (self._ends(lambda at, step: penalty(at, step) + 1.0) - drift)

    def _ends(self, gradient: Any, rows: int = 0) -> Tensor:
        """Return theta^{t+1} - theta^t of each round."""
        sizes = (float(rows),) * self.steps
        work = LocalTraining(gradient, gradient, self.public, float(rows), (0,) * self.steps, sizes)
        sent, _ = self.local.steps(cast(Any, {"x": self.starts, "anchor": self.anchors}), (), work)
        return cast(Tensor, sent["delta"])
