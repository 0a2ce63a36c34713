"""DP-SGD in floating point: sums and noise on one grid, whatever a row holds, and nothing that leaves without noise."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from securefed import Dataset, Federation, chain
from securefed._sampling.rounded_normal import grid_for
from securefed.algorithms import FedAvg, PrivateFedAvg
from securefed.algorithms._private.dp_fedavg import _SecureOptimizer
from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError
from securefed.problems import TorchModule
from tests.seeded_stream import SeededStream

ROWS = 8


def zeros(features: int, precision: str) -> TorchModule:
    class Zeros(nn.Linear):
        def __init__(self) -> None:
            super().__init__(features, 1, bias=False)
            nn.init.zeros_(self.weight)

    return TorchModule(module=Zeros, criterion="squared_error", compared_with="responses", precision=precision)


def started(algorithm: PrivateFedAvg, data: Dataset) -> tuple[Any, Any]:
    federation = Federation(algorithm, [data])
    return federation.nodes[0].state.committed, algorithm.broadcast(federation.state)


def test_every_upload_lies_on_the_grid_whichever_rows_are_there() -> None:
    """One step of size 1 from zero: what is uploaded, without fixed point, is minus the noisy sum itself.

    With and without a row both sums lie on the grid that the noise is drawn on, all of whose steps are within reach
    (`test_privacy_rounded_normal.py`). Sums that float64 rounds betray the row: as many digits as they have are no
    multiple of the grid.
    """
    rng, features, noise = np.random.default_rng(0), 40, 3.0
    x, y = rng.normal(size=(ROWS, features)), rng.normal(size=(ROWS, 1))
    x[0] = 1e3
    without = x.copy()
    without[0] = 0
    algorithm = PrivateFedAvg(
        problem=zeros(features, "float64"), local_steps=1, batch_size=None, learning_rate=float(ROWS),
        noise_multiplier=noise, max_grad_norm=0.7,
    )  # fmt: skip
    grid = grid_for(noise * 0.7)
    for rows in (x, without):
        client, broadcast = started(algorithm, Dataset(rows, y))
        for _ in range(20):
            sent = algorithm.contribute(client, broadcast, rng)[1]
            units = np.concatenate([value.ravel() for value in sent.values()]) / grid
            np.testing.assert_array_equal(units, np.rint(units))
            assert np.abs(units).max() > 2**28  # and are no few bits
    assert not np.array_equal(np.rint(x / grid), x / grid)  # the data do not lie there by themselves


def optimizer(module: nn.Module, noise: float = 1.0, norm: float = 0.5) -> _SecureOptimizer:
    return _SecureOptimizer(
        SeededStream(0),
        ROWS,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        noise_multiplier=noise,
        max_grad_norm=norm,
        expected_batch_size=ROWS,
        loss_reduction="sum",
    )


def summed(rows: list[torch.Tensor], norm: float = 0.5, noise: float = 1.0) -> tuple[np.ndarray, float]:
    """The sum of these rows' gradients in steps of the grid, and the grid."""
    module = nn.Linear(rows[0].numel(), 1, bias=False)
    made = optimizer(module, noise, norm)
    module.weight.grad_sample = torch.stack(rows)[:, None]
    made.clip_and_accumulate()
    return module.weight.summed_grad.numpy().ravel(), made.grid


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_adds_zeros_and_leaves_the_others(bad: float) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = [10.0**k * torch.randn(30, generator=generator) for k in (-2, 0, 3, 30)]
    odd = torch.ones(30)
    odd[4] = bad
    np.testing.assert_array_equal(summed([*rows, odd])[0], summed(rows)[0])
    np.testing.assert_array_equal(summed([odd])[0], np.zeros(30))


@pytest.mark.parametrize("noise", [1.0, 1e-12])
def test_a_row_moves_the_sum_by_the_same_integers_whatever_the_others_are(noise: float) -> None:
    generator = torch.Generator().manual_seed(2)
    rows = [10.0**k * torch.randn(50, generator=generator) for k in (-3, 0, 0, 2, 30)]
    alone, grid = summed([rows[-1]], noise=noise)
    np.testing.assert_array_equal(summed(rows, noise=noise)[0] - summed(rows[:-1], noise=noise)[0], alone)
    assert np.abs(alone).max() > 1e3
    assert math.sqrt(float(np.square(alone).sum())) * grid <= 0.5 + math.sqrt(50) * grid / 2
    assert math.sqrt(float(np.square(alone).sum())) * grid >= 0.4999999


def network(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 5), nn.ReLU(), nn.Linear(5, 2))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_no_row_makes_a_client_refuse_before_its_noise(precision: str) -> None:
    """A row whose gradient overflows, drawn in every fourth step: the upload is there all the same."""
    largest = 1e307 if precision == "float64" else 1e37
    x = np.random.default_rng(3).normal(size=(ROWS, 4))
    x[0] = largest
    problem = TorchModule(module=partial(network, 4), precision=precision)
    algorithm = PrivateFedAvg(problem=problem, batch_size=2, local_steps=2, noise_multiplier=20.0)
    client, broadcast = started(algorithm, Dataset(x, np.arange(ROWS) % 2))
    wild = {name: 100 + value for name, value in broadcast.items()}
    for start in (broadcast, wild):
        for _ in range(30):
            sent = algorithm.contribute(client, start, np.random.default_rng(0))[1]
            assert all(np.isfinite(value).all() for value in sent.values())


@pytest.mark.parametrize("defense", [chain(), chain(secure_aggregation())], ids=["plain", "secure_aggregation"])
def test_evaluation_is_refused_before_a_round_is_paid_for(defense: Any) -> None:
    x = np.random.default_rng(3).normal(size=(ROWS, 4))
    clients = [Dataset(x, np.arange(ROWS) % 2)] * 3
    problem = TorchModule(module=partial(network, 4))
    federation = Federation(PrivateFedAvg(problem=problem), clients, defense)
    with pytest.raises(ConfigError, match="without noise"):
        federation.run(2, evaluate_every=1)
    assert all(node.state.committed.spent == () for node in federation.nodes.values())
    client = federation.nodes[0].state.committed
    with pytest.raises(ConfigError, match="without noise"):  # nor does a client that a server asks all the same
        federation.algorithm.evaluate(client, federation.algorithm.broadcast(federation.state))
    assert Federation(FedAvg(problem=problem), clients, defense).run(1, evaluate_every=1).history[0].metrics
