"""Masked all-reduce for torch's DistributedDataParallel, and recordings of torch loops for the audit.

    import securefed.torch

    model = DistributedDataParallel(network, forward_sync_buffers=False)
    state = securefed.torch.MaskingState(model, bound=1.0)              # agrees on keys with the other ranks
    model.register_comm_hook(state, securefed.torch.masked_allreduce)   # the loop stays as it is

Every rank learns the mean gradient, as in plain DDP; no rank and no link sees the gradient of another rank. There is no
server. Three ranks or more are needed. The page docs/torch.md says what is hidden from whom, and what is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.torch._batch_norm import average_batch_norm
    from securefed.torch._hook import masked_allreduce, secure_all_reduce
    from securefed.torch._lightning import LightningMasking
    from securefed.torch._record import LoopRecording, record
    from securefed.torch._state import MaskingState
    from securefed.torch._trainer import RecordingCallback
    from securefed.torch._trainer_masking import TrainerMasking

__all__ = [
    "LightningMasking",
    "LoopRecording",
    "MaskingState",
    "RecordingCallback",
    "TrainerMasking",
    "average_batch_norm",
    "masked_allreduce",
    "record",
    "secure_all_reduce",
]

EXPORTS = {
    "securefed.torch._state": "MaskingState",
    "securefed.torch._hook": "masked_allreduce secure_all_reduce",
    "securefed.torch._record": "record LoopRecording",
    "securefed.torch._batch_norm": "average_batch_norm",
    "securefed.torch._trainer": "RecordingCallback",
    "securefed.torch._trainer_masking": "TrainerMasking",
    "securefed.torch._lightning": "LightningMasking",
}
export_lazily(__name__, EXPORTS, needs=dict.fromkeys(__all__, "torch") | {"LightningMasking": "lightning"})
