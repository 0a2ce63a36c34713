"""The two ways to a masked sum: a communication hook for DistributedDataParallel, and a call for own code."""

# No `from __future__ import annotations`: DistributedDataParallel compares the hook's annotations with the types.

import torch
from torch._C._distributed_c10d import GradBucket  # torch.distributed.GradBucket, as type checkers find it

from securefed.errors import ConfigError
from securefed.torch._state import MaskingState


def masked_allreduce(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all ranks under masks: a hook for `model.register_comm_hook`.

    Args:
        state: a `MaskingState` of the same model.
        bucket: gradients of this rank.

    Returns:
        The mean over all ranks, ready when the backward pass ends; inf throughout where some rank's gradient was
        beyond the bound or not finite.

    Raises:
        ConfigError: `state` is no `MaskingState` of a model, gradients are sparse, or the model is inside Join. At the
            end of the backward pass also where a parameter took no part in the loss.
        MaskMismatch: at the end of the backward pass, on every rank, where the masks did not cancel.
    """
    return _checked(state).reduce_bucket(bucket)


def secure_all_reduce(tensor: torch.Tensor, state: MaskingState, *, bound: float) -> torch.Tensor:
    """Sum a tensor over all ranks under masks, in place, as `torch.distributed.all_reduce` does in the clear.

    Args:
        tensor: floating-point values of this rank; of one shape and type on all ranks.
        state: a `MaskingState`; a model's may be used too.
        bound: largest absolute entry of any rank, a public fact; the same on all ranks.

    Returns:
        The tensor, which holds the sum, off the exact sum by ranks * step / 2 at most, where step is about
        2^-29 of the bound at three ranks in a ring of 32 bits, and 2^-61 in one of 64.

    Raises:
        ConfigError: `state` is no `MaskingState`, or the tensor is of another type or layout.
        PlanError: the bound is too small for the ring.
        RangeRefused: on every rank, where an entry of some rank is beyond the bound or not finite; the tensor stays as
            it was.
        MaskMismatch: on every rank, where the masks did not cancel.
    """
    _checked(state).add_up(tensor, bound)
    return tensor


def _checked(state: object) -> MaskingState:
    if not isinstance(state, MaskingState):
        raise ConfigError(f"a MaskingState is needed, from MaskingState(model, bound=...); got {type(state).__name__}")
    return state
