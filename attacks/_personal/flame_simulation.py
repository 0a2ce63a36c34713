"""Simulate FLAME's local steps through a network, all rounds at once, in torch, by calling the method's own `steps`.

`flame_network_inversion` calls this to check candidate rows of a client. In FLAME, a method that trains personal models
by ADMM, client i keeps a personal model theta_i. It is trained on the client's rows and drawn to an anchor w, the
client's copy of the global model or the broadcast one. The theta_i stay with the client, but its messages determine
them, and all else that it keeps (`admm_recursion`). A round's steps

    theta <- theta - eta (grad f(theta) + lambda (theta - w))

with learning rate eta and attraction lambda are linear in the gradients grad f, so that both ends of a round give a
weighted mean of these; the simulation computes the same mean for hypothetical rows. The theta of a round's steps form
its path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from securefed._public import Public
from securefed.algorithms._optimization.local_steps import LocalTraining
from securefed.algorithms._personalized.flame import FLAME
from securefed.attacks._networks.client_simulations import batch_slices, mean_weights, pass_slices
from securefed.attacks._networks.flat_network import FlatNetwork


@dataclass(frozen=True)
class FLAMESimulation:
    """The mean gradient along the path of each round, as a function of the rows (a `ClientSimulation`).

    With r = 1 - eta lambda, a path of T steps that starts at theta and is drawn to w ends at

        r^T theta + (1 - r^T) w - eta sum_h r^(T-1-h) grad f(theta_h),    h = 0 .. T - 1

    (r^T is a power), which is (9) of FLAME's paper written out for T steps. So the weighted sum of its gradients
    follows exactly from its two ends; the weights are made to sum to 1. With mini-batches, whose draws are the client's
    secret, the rows are taken in order instead.

    Attributes:
        method: the algorithm.
        public: the public facts.
        rows: number of the client's rows.
        received: (rounds, parameters) the broadcast models.
        memory: what the client keeps, before each round: theta_i, w_i and pi_i, (rounds, parameters) each.
        steps: number of local steps, T.
    """

    method: FLAME
    public: Public
    rows: int
    received: Tensor
    memory: tuple[Tensor, Tensor, Tensor]
    steps: int

    def copies(self) -> int:
        """Return the number of rounds."""
        return len(self.received)

    def __call__(self, network: FlatNetwork, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean gradients (rounds * parameters,) of rows.

        Args:
            network: the model and its loss.
            point: not used, since each path has its own start.
            x: rows, (rows, features).
            y: their targets, (rows, ...).
        """
        method = self.method
        if method.local_epochs is None:
            parts = batch_slices(len(x), method.batch_size, self.steps)
        else:
            parts = pass_slices(len(x), method.batch_size, method.local_epochs)
        network = replace(network, nested=True)  # its gradient is taken inside `vmap`, of all rounds' paths together

        def gradient(at: Tensor, step: int) -> Tensor:
            """Return the mean gradients of the step's rows at the models `at`, (rounds, parameters)."""
            own, aims = x[parts[step]], y[parts[step]]
            return torch.func.vmap(lambda theta: network.gradient(theta, own, aims, mean_weights(own)))(at)

        return self.mean_gradients(network, self._moved(gradient)).reshape(-1)

    def mean_gradients(self, network: FlatNetwork, moved: Tensor) -> Tensor:
        """Return the mean gradients (rounds, parameters) of paths whose ends lie `moved` from their starts.

        `moved` is linear in the mean gradient g: moved = drift + slope g, entry by entry. The drift is how far a path
        without rows moves, by attraction and penalty, and drift + slope how far one whose gradients are all 1 besides.
        The penalty is therefore not part of g; it is l2/2 ||theta||^2, and linear as well.

        Args:
            network: the model and its loss.
            moved: theta at the end of each round less theta at its start, (rounds, parameters).
        """
        no_rows = (self.received.new_zeros((0, self.public.features)), torch.zeros(0, dtype=torch.int64))

        def penalty(at: Tensor, _: int) -> Tensor:
            """Return the gradient of the penalty on the parameters, which is all that no rows leave."""
            return torch.func.vmap(lambda theta: network.gradient(theta, *no_rows, at.new_zeros(0)))(at)

        drift = self._moved(penalty)
        return (moved - drift) / (self._moved(lambda at, step: penalty(at, step) + 1.0) - drift)

    def _moved(self, gradient: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Return theta at the end of each round less theta at its start, (rounds, parameters).

        Args:
            gradient: function from (models (rounds, parameters), step) to gradients of the same shape.
        """
        work: Any = LocalTraining(gradient, gradient, self.public, float(self.rows), (), (1.0,) * self.steps)  # type: ignore[arg-type]
        _, (theta, *_) = self.method.steps(cast(Any, {"x": self.received}), cast(Any, self.memory), work)
        return cast(Tensor, theta) - self.memory[0]
