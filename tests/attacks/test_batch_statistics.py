"""Batch statistics are read exactly off the running statistics of torch's own layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from securefed.attacks._networks.batch_statistics import batch_statistics
from securefed.errors import ConfigError


@pytest.mark.parametrize("momentum", [0.1, 0.7, 1.0, None])
@pytest.mark.parametrize("batches", [1, 3])
def test_equal_batches_are_read_exactly(momentum: float | None, batches: int) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.BatchNorm1d(5, momentum=momentum).double()
    layer(torch.randn(9, 5, generator=generator).double() + 3)  # a batch that came before
    before = [layer.running_mean.clone(), layer.running_var.clone()]
    rows = torch.randn(7, 5, generator=generator).double()
    for _ in range(batches):
        layer(rows)
    after = [layer.running_mean, layer.running_var]
    found = [batch_statistics(a.numpy(), b.numpy(), momentum, batches, 1) for a, b in zip(before, after, strict=True)]
    np.testing.assert_allclose(found[0], rows.mean(dim=0).numpy(), atol=1e-12)
    np.testing.assert_allclose(found[1], rows.var(dim=0).numpy(), atol=1e-12)
    wrong = batch_statistics(before[0].numpy(), after[0].numpy(), momentum, batches + 1, 1)
    assert momentum == 1.0 or np.abs(wrong - found[0]).max() > 0.01  # the wrong number of batches is another answer


def test_no_batch_and_no_momentum_are_refused() -> None:
    with pytest.raises(ConfigError, match="batches must be at least 1"):
        batch_statistics(np.zeros(2), np.ones(2), 0.1, 0)
    with pytest.raises(ConfigError, match="momentum must lie above 0"):
        batch_statistics(np.zeros(2), np.ones(2), 0.0, 1)
