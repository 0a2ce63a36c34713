"""Mask the gradients of a distributed Lightning Trainer, as a callback of the Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from securefed.torch._hook import masked_allreduce
from securefed.torch._state import MaskingState


class LightningMasking(Callback):
    """Registers `masked_allreduce` on the model of Lightning's DDPStrategy, and skips a step that has no sum.

        trainer = Trainer(
            devices=4,
            strategy=DDPStrategy(process_group_backend="gloo", broadcast_buffers=False),
            callbacks=[securefed.torch.LightningMasking(bound=1.0)],
        )

    Guarantees: those of `MaskingState`; the optimiser never sees the inf gradients of a step that was lost.
    Not guaranteed: what else a module shares between ranks. `self.log(..., sync_dist=True)` and
    `self.all_gather` send their values in the clear.

    Args:
        options: arguments of `MaskingState`, such as `bound`.

    Attributes:
        state: the `MaskingState`; `None` before the training.

    Raises:
        ConfigError: from `fit`: the strategy has no DistributedDataParallel, or it exchanges data besides gradients.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.state: MaskingState | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Agree on keys with the other ranks, and register the hook."""
        model: Any = trainer.strategy.model
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.state = MaskingState(model, scaler=scaler, **self._options)
        model.register_comm_hook(self.state, masked_allreduce)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Let the optimiser pass over all parameters where the step has no sum."""
        if self.state is not None:
            self.state.skip_lost_step(optimizer)
