"""Network inversion of clipped messages: which first rounds a clip has scaled, and the rows that it does not hide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from securefed.algorithms import FedAvg
from securefed.algorithms._optimization.method import GradientMethod
from securefed.attacks import NetworkInversion
from securefed.attacks._networks.first_round import read_first_round
from securefed.attacks.scores import sample_error
from securefed.problems import DenseNetwork
from tests.attacks.test_networks import METHODS, seen
from tests.combinations import first_ones


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


@pytest.mark.parametrize(("method", "count"), first_ones([*((method, 1) for method in METHODS), (METHODS[0], 3)], 2))
def test_a_clip_alone_hides_no_rows(method: GradientMethod, count: int) -> None:
    """Messages scaled down by an unknown factor of a fifth or less keep their direction; the attack clips too."""
    target, server, _, clients = seen(method, count, 0.02)
    sent = seen(method, count)[1].rounds[0].message.values()
    assert sum(np.square(value).sum() for value in sent) > 0.1**2
    found = NetworkInversion(low=0.0).run(server, target, np.random.default_rng(0))
    assert found.residual < 1e-5
    assert sample_error(found.value, clients[0].x) < 1e-4
    np.testing.assert_array_equal(np.sort(found.labels), clients[0].labels())
    blind = replace(server, rounds=tuple(replace(item, clips=()) for item in server.rounds))
    assert NetworkInversion(low=0.0, evaluations=10, fits=1).run(blind, target, np.random.default_rng(0)).residual > 0.1


def test_clips_of_a_sum_are_those_of_its_members() -> None:
    target, _, total, clients = seen(METHODS[0], 1, 0.02)
    found = NetworkInversion(low=0.0).run(total, target, np.random.default_rng(0))
    assert sample_error(found.value, np.concatenate([c.x for c in clients])) < 1e-4
