"""Record what a Hugging Face Trainer sends to others, as a callback of the Trainer.

    with securefed.torch.record("run.transcript", rows=[100, 80, 120], features=64, classes=10) as recording:
        for _ in range(rounds):
            recording.broadcast(model)
            for client in range(3):                        # one update a client and round
                callback = securefed.torch.RecordingCallback(recording, client)
                Trainer(copy.deepcopy(model), arguments, train_dataset=..., callbacks=[callback]).train()

The recording is a transcript, which the audit attacks (`audit_transcript`). The Trainer's package is not imported: the
Trainer calls the methods by the names of its events (`on_train_begin`, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from securefed._messages import ClientId
from securefed.errors import ConfigError
from securefed.torch._record import LoopRecording


class RecordingCallback:
    """Records one client's update of a round, or the mean gradient of every optimiser step, from inside a Trainer.

    With a client's number, each `train()` is that client's part of the round that `recording.broadcast(model)` began:
    the model is read when the training ends, after the best one was loaded where the Trainer is asked to. Without a
    number, each optimiser step is a round: the broadcast is the model before it, and the sum is the gradient that the
    ranks of a distributed Trainer share, for clients (ranks) that each have `rows` rows a step. Rank 0 records.

    Guarantees: the values are those that the plain calls of `record` would have recorded at the same points.
    Not guaranteed: that the recorded run is one that an audited algorithm describes. Gradient accumulation and other
    optimisers than gradient descent are the loop's own; `audit_transcript` is told by the caller what the loop did.

    Args:
        recording: the recording that `securefed.torch.record` makes.
        client: number of the client that the Trainer trains for; `None` records the mean gradient of every step.

    Raises:
        ConfigError: from the Trainer's `train()`, without a client's number: gradients that are clipped
            (`max_grad_norm`) or scaled (`fp16`) after they were shared, so that what is recorded was not sent.
        DataError: from the Trainer's `train()`: it begins from another model than the round's broadcast.
    """

    def __init__(self, recording: LoopRecording, client: ClientId | None = None) -> None:
        self._recording, self._client = recording, client

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **more: Any) -> None:
        """Check that the training begins from the round's model, and that gradients are read as they were sent."""
        if self._client is not None:
            self._recording.check_received(self._client, model)
        elif args.max_grad_norm or args.fp16:
            raise ConfigError(
                f"the recorded gradient must be the one that is shared, and the Trainer changes it afterwards; "
                f"set max_grad_norm=0.0 (got {args.max_grad_norm}) and fp16=False (got {args.fp16})"
            )

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: nn.Module, **more: Any) -> None:
        """Record a step's gradient, where each step is a round."""
        if self._client is None and state.is_world_process_zero:
            self._recording.broadcast(model)
            if self._recording.clients == 1:  # what is shared is this client's own gradient
                self._recording.gradient(0, model)
            else:
                self._recording.mean_gradient(model)

    def on_train_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **more: Any) -> None:
        """Record the trained model as the client's update, or as the result where each step was a round."""
        if not state.is_world_process_zero:
            return
        if self._client is None:
            self._recording.broadcast(model)
        else:
            self._recording.update(self._client, model)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing, for every other event of a Trainer."""
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **more: None
