"""Mask the gradients of a distributed Hugging Face Trainer, as a callback of the Trainer.

    trainer = Trainer(model, arguments, train_dataset=...)      # started by torchrun on three ranks or more
    trainer.add_callback(securefed.torch.TrainerMasking(trainer, bound=1.0))
    trainer.train()

The Trainer's package is not imported: the Trainer calls the methods by the names of its events (`on_train_begin`, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from securefed.torch._hook import masked_allreduce
from securefed.torch._state import MaskingState


class TrainerMasking:
    """Registers `masked_allreduce` on the Trainer's DistributedDataParallel, and skips a step that has no sum.

    Guarantees: those of `MaskingState`; the optimiser never sees the inf gradients of a step that was lost.
    Not guaranteed: what else the Trainer shares between ranks. It gathers the loss of each rank for its log, and the
    predictions of an evaluation: both in the clear, see docs/torch.md.

    Args:
        trainer: the Trainer; its model becomes a DistributedDataParallel when `train()` begins.
        options: arguments of `MaskingState`, such as `bound`.

    Attributes:
        state: the `MaskingState`; `None` before `train()`.

    Raises:
        ConfigError: from `train()`: the model is no DistributedDataParallel (the Trainer was not started on several
            ranks), or exchanges data besides gradients; TrainingArguments takes `ddp_broadcast_buffers=False` and
            `ddp_find_unused_parameters=False`.
    """

    def __init__(self, trainer: Any, **options: Any) -> None:
        self._trainer, self._options = trainer, options
        self.state: MaskingState | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Agree on keys with the other ranks, and register the hook."""
        model, scaler = self._trainer.model_wrapped, self._trainer.accelerator.scaler
        self.state = MaskingState(model, scaler=scaler, **self._options)
        model.register_comm_hook(self.state, masked_allreduce)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, optimizer: Any, **more: Any) -> None:
        """Let the optimiser pass over all parameters where the step has no sum."""
        if self.state is not None:
            self.state.skip_lost_step(optimizer)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing, for every other event of a Trainer."""
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **more: None
