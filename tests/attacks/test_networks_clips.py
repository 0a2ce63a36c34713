"""Which first rounds of a network a clip has scaled, as its inversion reads them."""

from __future__ import annotations

import pytest
import torch

from securefed.algorithms import FedAvg
from securefed.attacks._networks.first_round import read_first_round
from securefed.problems import DenseNetwork
from tests.attacks.test_networks import seen


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_only_a_message_that_reached_the_clip_counts_as_scaled(precision: str) -> None:
    """One that is shorter keeps its length, which tells the labels' counts; a message of zeros has derivatives too."""
    method = FedAvg(problem=DenseNetwork(hidden=(80,), precision=precision), learning_rate=0.1, local_steps=3)
    for norm, scaled in ((None, False), (0.02, True), (50.0, False)):
        target, server, total, _ = seen(method, 3, norm)
        assert read_first_round(server, target).scaled() is scaled
        assert read_first_round(total, target).scaled() is (norm is not None)  # of several the lengths are not seen
    first = read_first_round(seen(method, 3, 0.02)[1], target)
    zeros = torch.zeros_like(first.message, requires_grad=True)
    (slope,) = torch.autograd.grad(first.simulation._clipped(zeros).sum(), zeros)
    assert torch.isfinite(slope).all()
