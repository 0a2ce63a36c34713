"""Average the running statistics of BatchNorm layers over all ranks, under masks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from securefed.errors import ConfigError
from securefed.torch._hook import secure_all_reduce
from securefed.torch._state import MaskingState


def average_batch_norm(model: nn.Module, state: MaskingState, *, bound: float) -> None:
    """Give every rank the running statistics of all ranks' batches, in place; no rank sees those of another.

    Each rank keeps BatchNorm statistics of its own batches while it trains. Call this before the model is evaluated or
    published, on all ranks at the same step. With equal batches on all ranks

        mean = (1/N) sum_i mean_i,    variance = (1/N) sum_i (variance_i + (mean_i - mean)^2),

    so that differences between the ranks' data count in the variance. All ranks learn both, and nothing else.

    Args:
        model: any module with BatchNorm layers; the DistributedDataParallel or the network in it.
        state: a `MaskingState` of the same ranks; the model's serves.
        bound: largest absolute running mean, and largest variance plus squared distance from the common mean, of any
            rank; public, and the same on all ranks.

    Raises:
        ConfigError: no layer of the model keeps running statistics, or `state` is no `MaskingState`.
        RangeRefused: on every rank, where a statistic of some rank is beyond the bound; the model stays as it was.
        MaskMismatch: on every rank, where the masks did not cancel.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _NormBase) and layer.running_mean is not None]
    if not layers:
        raise ConfigError(
            f"no layer of this {type(model).__name__} keeps running statistics; there is nothing to average"
        )
    with torch.no_grad():
        means, variances = (_flat(layers, pick) for pick in (_running_mean, _running_var))
        mean = secure_all_reduce(means.clone(), state, bound=bound) / state.ranks
        spread = variances + (means - mean) ** 2
        variance = secure_all_reduce(spread, state, bound=bound) / state.ranks
        for values, pick in ((mean, _running_mean), (variance, _running_var)):
            parts = torch.split(values, [pick(layer).numel() for layer in layers])
            for layer, part in zip(layers, parts, strict=True):
                pick(layer).copy_(part)


def _running_mean(layer: _NormBase) -> torch.Tensor:
    assert layer.running_mean is not None
    return layer.running_mean


def _running_var(layer: _NormBase) -> torch.Tensor:
    assert layer.running_var is not None
    return layer.running_var


def _flat(layers: list[_NormBase], pick: Callable[[_NormBase], torch.Tensor]) -> torch.Tensor:
    return torch.cat([pick(layer).reshape(-1).double() for layer in layers])
