"""Refuse settings of DistributedDataParallel under which ranks exchange data beside the masked gradients.

A rank is one process of the training. Masks, which a communication hook adds, protect gradients only. What
DistributedDataParallel or a layer sends besides, in the clear, would tell other ranks about this rank's rows. The
hook's `MaskingState` checks the model once (`check_model`) and its settings before every step (`check_step`).
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from securefed.errors import ConfigError

_SHARDED: Final = {
    "torch.FSDPModule": "FSDP2 (fully_shard)",
    "torch.FullyShardedDataParallel": "FSDP (FullyShardedDataParallel)",
    "deepspeed.DeepSpeedEngine": "ZeRO (DeepSpeed)",
}
_NORM: Final = (
    "replace it by GroupNorm or LayerNorm, or use BatchNorm with forward_sync_buffers=False, so that each rank keeps "
    "the statistics of its own batches"
)


def check_model(model: nn.Module) -> DistributedDataParallel:
    """Return the model; raise `ConfigError` unless gradients are all that its ranks exchange while training."""
    _check_unsharded(model)
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"MaskingState takes the DistributedDataParallel that the hook is registered on; got {type(model).__name__}"
        )
    for name, module in model.module.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ConfigError(
                f"SyncBatchNorm at {name!r} sends the sums of each rank's activations in the clear; {_NORM}"
            )
        if getattr(module, "sparse", False) is True and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise ConfigError(
                f"{name!r} makes sparse gradients, whose positions say which rows a rank's data touch; "
                "make it with sparse=False"
            )
    _check_flags(model)
    return model


def _check_unsharded(model: nn.Module) -> None:
    """Raise `ConfigError` where ranks hold shards of the model, so that gradients do not travel by the hook."""
    for part in model.modules() if isinstance(model, nn.Module) else ():
        # by name, as torch has had these classes in several places, and DeepSpeed may not be installed
        kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(part).__mro__}
        if kinds & _SHARDED.keys():
            raise ConfigError(
                f"{_SHARDED[min(kinds & _SHARDED.keys())]} sends each rank's gradients by reduce-scatter, which no "
                "hook of securefed masks. Train with DistributedDataParallel; where the whole model does not fit one "
                "device, freeze it and train adapters (LoRA), or use activation checkpointing"
            )


def check_step(model: DistributedDataParallel) -> None:
    """Raise `ConfigError` where a setting that may change between steps is refused now."""
    _check_flags(model)
    if model._join_config.enable:
        raise ConfigError(
            "inside the context Join, or model.join(), ranks say in the clear which of them ran out of data, and a "
            "rank without data adds zeros; give all ranks as many batches (DistributedSampler does), without Join"
        )


def _check_flags(model: DistributedDataParallel) -> None:
    if model.broadcast_buffers and any(True for _ in model.module.buffers()):
        names = ", ".join(name for name, _ in list(model.module.named_buffers())[:3])
        raise ConfigError(
            f"the model has buffers ({names}, ...), which DistributedDataParallel would broadcast from rank 0 in the "
            "clear before every forward pass: statistics of rank 0's data. Pass forward_sync_buffers=False to it "
            "(broadcast_buffers=False where torch does not know that name)"
        )
    if model.find_unused_parameters:
        raise ConfigError(
            "with find_unused_parameters=True ranks exchange in the clear which parameters their data used; set it to "
            "False: a parameter that a batch does not use counts as one whose gradient is zero"
        )
    if model.static_graph:
        raise ConfigError(
            "with static_graph=True ranks exchange in the clear, in the first step, which parameters their data used; "
            "leave it out"
        )


def check_values(values: torch.Tensor, where: str) -> None:
    """Raise `ConfigError` unless the tensor is dense and of a real floating-point type."""
    if values.layout != torch.strided or not values.is_floating_point():
        raise ConfigError(
            f"{where} must be a dense tensor of a real floating-point type; got {values.dtype}, {values.layout}. "
            "Convert it first: .double() for counts, two tensors for complex numbers"
        )


def describe(bucket: Any) -> str:
    """Name a bucket, for errors."""
    return f"bucket {bucket.index()} of the gradients"
