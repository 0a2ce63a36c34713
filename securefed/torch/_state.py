"""The state of the masked all-reduce on one rank: keys, counters, the bound, and the step under way.

DistributedDataParallel splits the gradients into buckets, and calls the hook for each when the backward pass has filled
it. The hook starts a masked sum of the bucket (`reduce_bucket`) and returns a future of its mean. At the end of the
backward pass `_end_step` opens all sums of the step together, because one bucket that is too large or not finite makes
the whole step void, and sets the futures.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from securefed._hyperparameters import check_number
from securefed._public import require
from securefed._tensors import Ring
from securefed.defenses._secure_aggregation.identities import Identities
from securefed.errors import ConfigError, MaskMismatch, RangeRefused
from securefed.torch._agreement import AgreedSettings, agree_on_keys, check_ranks
from securefed.torch._bound import GradientBound
from securefed.torch._device_sums import sums_for
from securefed.torch._encoding import decode_into, largest, rounding_error, typical_size
from securefed.torch._masking import Call, Trouble, planned
from securefed.torch._refusals import check_model, check_step, check_values, describe
from securefed.torch._sums import OpenedSum, StartedSum
from securefed.torch._unused import reach_all_parameters

_LOG = logging.getLogger("securefed.torch")


class MaskingState:
    """Keys, counters and bound of one rank. All ranks make it together, as it agrees on keys with the others.

        state = MaskingState(model, bound=1.0)
        model.register_comm_hook(state, masked_allreduce)

    A gradient entry x of a rank travels as round(x / step), masked, in a ring of 32 or 64 bits. `step` follows from the
    bound on x, which is public: declared for the first step, and `headroom` times the largest entry of the last mean
    after it. The mean differs from the exact one by `error` at most. Where a rank's entry is beyond the bound or not
    finite, the gradients of the whole step become inf on all ranks, and `overflowed` is true: a GradScaler skips such
    a step; a loop without one calls `skip_lost_step(optimizer)` before `optimizer.step()`.

    Guarantee: of another rank's gradients a rank learns what the means tell, a coalition of all but two ranks learns
    the sum of those two, and a party that reads the network learns their number and sizes.
    Not promised: anything against an active attacker on the network without `identities`. It may answer the agreement
    of keys in the name of every rank, and then reads all gradients; compare `fingerprint` over another channel, or give
    identities. Nor that sums are right where a rank or a link alters values.

    Args:
        model: the DistributedDataParallel; `None` for a state that serves `secure_all_reduce` alone.
        bound: declared largest absolute entry of a rank's gradient in the first step. Too small costs a step or two,
            too large costs resolution in the first step.
        headroom: bound of a later step, in units of the last mean's largest entry. Half of it loses a step sooner when
            gradients grow or cancel in the mean; twice of it costs one bit of resolution. At 64 and three ranks, 23
            bits are left below the mean's largest entry, the digits of a float32.
        scaler: the loop's GradScaler, whose scale multiplies `bound` and `ceiling` in each step, so that both are of
            gradients without the scale.
        ceiling: bound that no step exceeds, so that a rank that lies cannot raise it until the gradients of the others
            round to 0. By default it follows from `bound` and the first sum (`GradientBound`). Steps whose gradients
            are larger have no sum.
        largest_error: largest `relative_error` without a warning, which is logged once.
        ring: width in bits of the integers: 32 sends as many bytes as float32, 64 twice as many, for 32 more bits of
            resolution.
        identities: public identities of all ranks, by rank, and this rank's private one.
        group: process group; the model's, or the default one.
        device: where the group's backend sums; the model's, or the CPU. A card makes the masks itself, of ChaCha20,
            where triton is installed (the extra `gpu`), and ranks must agree on it: `device="cpu"` is for those that
            sum with ranks without a card.

    Attributes:
        overflowed: whether the last step had no sum, so that its gradients are inf.
        relative_error: rounding error of an entry of the last mean, in units of the root mean square of its entries
            without the largest hundredth; 0 before the first.

    Raises:
        PlanError: fewer than three ranks, or too many for the ring.
        VersionRefused: the ranks speak different versions of the protocol.
        ConfigError: the ranks' settings differ, a setting is out of range, or the model exchanges data besides
            gradients (SyncBatchNorm, buffers, `find_unused_parameters`).
        AuthenticationError: a rank's signature or message does not verify.
        MaskMismatch: a trial sum did not come out right.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        bound: float,
        scaler: torch.amp.GradScaler | None = None,
        headroom: float = 64.0,
        ceiling: float | None = None,
        largest_error: float = 0.01,
        ring: Ring = 32,
        identities: Identities | None = None,
        group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        require(ring in (32, 64) and type(ring) is int, f"ring must be 32 or 64; got {ring!r}")
        place: Any = device
        if model is not None:
            ours = check_model(model)
            require(group in (None, ours.process_group), "group is the model's own; leave it out, or model")
            group, place = ours.process_group, device or ours.device
        self._model: Any = model
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        require(self.rank >= 0, "this process is not in the group; make the state on the group's ranks alone")
        check_ranks(self.ranks)
        self.bound, self._ring = GradientBound(bound, headroom, ring, self.ranks, ceiling=ceiling), ring
        check_number("largest_error", largest_error, positive=True)
        self._largest_error, self._warned, self._told_of_loss = largest_error, False, False
        self._scaler, self._scale = scaler, 1.0
        self._follow_scale()
        self._size = self.relative_error = 0.0  # size of the entries of the last mean that had any
        highest = self._scale * (ceiling or 0)
        self._sums = sums_for(group, torch.device(place or "cpu"))
        signed, stream = identities is not None, self._sums.stream
        settings = AgreedSettings(ring, self.bound.value, float(headroom), highest, signed, stream)
        agreement = agree_on_keys(self.rank, self.ranks, settings, identities, self._sums.in_the_clear)
        self._session = agreement.fingerprint
        self._sums.use(agreement.masks)
        self._calls, self._own_calls = 0, 0
        self._step: list[StartedSum] = []  # one for each bucket of the step under way
        self._means: list[torch.futures.Future[torch.Tensor]] = []
        self._whole = False  # the last bucket of the step has come
        if model is not None and reach_all_parameters not in ours.module._forward_hooks.values():
            ours.module.register_forward_hook(reach_all_parameters)
        self._ended = False  # a sum failed: the ranks' counters may differ, and no further sum is started
        self.overflowed = False

    def __repr__(self) -> str:
        return f"MaskingState(rank {self.rank} of {self.ranks}, {self._ring} bits, bound {self.bound.value:.3g})"

    def __getstate__(self) -> NoReturn:
        """Refuse to be copied or pickled: a second copy would use the same streams twice."""
        raise ConfigError("a MaskingState holds secrets that serve once; make a new one instead of copying it")

    @property
    def fingerprint(self) -> str:
        """Digest of the agreement. If it is the same on all ranks, no third party has answered in the name of one."""
        return self._session

    @property
    def error(self) -> float:
        """Largest difference, per entry, of the next step's mean from the exact one; float rounding comes on top.

        Each rank rounds its entry by at most step / 2, so their mean is off by at most as much.
        """
        return self.bound.plan.step / 2

    # What the hook and secure_all_reduce do

    def reduce_bucket(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the masked sum of one bucket; the future gives its mean when the backward pass ends."""
        values = bucket.buffer()
        check_values(values, describe(bucket))
        if bucket.index() == 0:
            self._begin_step()
        call = Call("hook", self._calls, values.numel(), self._ring, self.bound.plan.step)
        self._calls += 1
        self._step.append(self._sums.start(call, values, self.bound.value))
        self._means.append(_future(values.device))
        self._whole = bucket.is_last()
        return self._means[-1]

    def add_up(self, values: torch.Tensor, bound: float) -> None:
        """Sum a tensor over all ranks, in place; the arguments and errors are those of `secure_all_reduce`."""
        self._check_usable()
        check_values(values, "the tensor")
        require(0 < bound < math.inf, f"bound must be a positive number; got {bound!r}")
        plan = planned(float(bound), self._ring, self.ranks)
        flat = values.detach().contiguous().view(-1)  # the same memory as `values`, if that is contiguous
        call = Call("own", self._own_calls, flat.numel(), self._ring, plan.step)
        self._own_calls += 1
        started = [self._sums.start(call, flat, float(bound))]
        (total,) = self._opened(started)
        self._raise(total)
        if total.trouble is not None:
            raise RangeRefused(
                f"the values of some rank are beyond the bound {bound:.3g} or not finite, so that there is no sum; all "
                "ranks see this error. Give a larger bound"
            )
        decode_into(flat, total.words, plan.step)
        if not values.is_contiguous():
            values.detach().copy_(flat.view(values.shape))
        self._sums.give_back(started)

    def skip_lost_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the gradients of a step without a sum away, so that the optimiser passes over all parameters.

        Call it before `optimizer.step()`; after a step with a sum, or with `scaler`, which skips such steps itself, it
        does nothing.
        """
        if self.overflowed and self._scaler is None:
            optimizer.zero_grad(set_to_none=True)

    def mean_error(self, largest_entry: float, dtype: torch.dtype = torch.float32) -> float:
        """Bound the difference of the next step's mean from the exact one, rounding to the gradients' type included.

        Args:
            largest_entry: largest absolute entry of the exact mean.
            dtype: type of the gradients.
        """
        return self.error + rounding_error(dtype) * (largest_entry + self.error)

    # A step

    def _begin_step(self) -> None:
        """Check that a step may begin, and have `_end_step` called at the end of its backward pass."""
        self._check_usable()
        if self._model is None:
            raise ConfigError("this MaskingState was made without a model; make it as MaskingState(model, bound=...)")
        check_step(self._model)
        self._follow_scale()
        if self._step:
            raise ConfigError(
                "a backward pass began before the one before it ended: a MaskingState serves one model; make one for "
                "each, and let every backward pass end"
            )
        _at_the_end(self._end_step)

    def _end_step(self) -> None:
        """Wait for all sums of the step, and hand out the means, or inf where some rank was out."""
        step, means, self._step, self._means = self._step, self._means, [], []
        if not self._whole:
            self._ended = True
            raise ConfigError(
                "some parameter's gradient never came: the loss does not use it, and the model's output is no tensor "
                "and no list, tuple or dict of tensors, or the parameter was frozen too late; return such an output, "
                "or freeze it (requires_grad=False) before DistributedDataParallel is made"
            )
        sums = self._opened(step)
        failed = next((total for total in sums if total.error is not None), None)
        troubles = {total.trouble for total in sums} - {None}
        self.overflowed = failed is not None or bool(troubles)
        unit = self.bound.plan.step / self.ranks
        for started, mean, total in zip(step, means, sums, strict=True):
            if self.overflowed:
                started.values.fill_(torch.inf)
            else:
                decode_into(started.values, total.words, unit)
            mean.set_result(started.values)
        if failed is not None:
            # After DistributedDataParallel has put inf into all gradients, so that no step can be made of local ones.
            _at_the_end(lambda: self._raise(failed))
        elif troubles:
            self._tell_of_loss(troubles)
            self.bound.lost(Trouble.TOO_LARGE if troubles == {Trouble.TOO_LARGE} else Trouble.NOT_FINITE)
            if self.bound.stuck:
                _at_the_end(self._stop_at_the_ceiling)
        else:
            self._note_error([started.values for started in step])
            self.bound.summed(unit * max(largest(total.words) for total in sums))
        self._sums.give_back(step)
        self._expect([started.call.length for started in step])

    def _follow_scale(self) -> None:
        """Let the bound follow the scale of the loss, which is the same on all ranks as their mean gradients are."""
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        if scale != self._scale:
            self.bound.rescale(scale / self._scale)
            self._scale = scale

    def _tell_of_loss(self, troubles: set[Trouble | None]) -> None:
        if Trouble.TOO_LARGE in troubles and not self._told_of_loss:
            self._told_of_loss = True
            _LOG.warning(
                "a step was lost: some rank's gradient had an entry beyond the bound %.3g, which grows for the next "
                "step; give MaskingState a larger bound%s",
                self.bound.value, "" if self._scaler else ", or scaler= where a GradScaler multiplies the loss",
            )  # fmt: skip

    def _note_error(self, means: Sequence[torch.Tensor]) -> None:
        """Compare the rounding error of this step's mean with the size of its entries, which every rank knows."""
        self._size = typical_size(means) or self._size  # 0 where all of them were rounded to 0: then the last one
        self.relative_error = self.error / self._size if self._size else 0.0
        if self.relative_error > self._largest_error and not self._warned:
            self._warned = True
            _LOG.warning(
                "the rounding error of the mean gradient is %.2g of its entries (largest_error=%.2g), at a bound of "
                "%.2g: some rank's gradient has far larger entries than the mean; give ring=64, or a lower ceiling",
                self.relative_error, self._largest_error, self.bound.value,
            )  # fmt: skip

    def _stop_at_the_ceiling(self) -> NoReturn:
        self._ended = True
        raise RangeRefused(
            f"the gradients of some rank were beyond the ceiling {self.bound.ceiling:.3g} in every one of the last "
            "steps, so that none had a sum; all ranks see this error. Lower the learning rate or the loss scale, or "
            "give MaskingState a larger ceiling"
        )

    def _expect(self, lengths: Sequence[int]) -> None:
        """Let the masks of the next step be expanded ahead of it, for buckets of the same lengths as in this step.

        After the first step DistributedDataParallel may form other buckets; then these masks are computed in the step.
        """
        step = self.bound.plan.step
        self._sums.expect(Call("hook", self._calls + k, n, self._ring, step) for k, n in enumerate(lengths))

    def _opened(self, started: Sequence[StartedSum]) -> list[OpenedSum]:
        """Wait for sums and read them; after an error of the backend no further sum is started."""
        try:
            return self._sums.open(started)
        except RuntimeError:
            self._ended = True
            raise

    def _check_usable(self) -> None:
        if self._ended:
            raise MaskMismatch("an earlier sum failed, and the ranks no longer agree; start the run again on all ranks")

    def _raise(self, total: OpenedSum) -> None:
        """Raise the error of a sum whose masks did not cancel, after which no further sum is started."""
        if total.error is not None:
            self._ended = True
            raise total.error


def _at_the_end(call: Callable[[], None]) -> None:
    """Let the engine run `call` at the end of this backward pass; the caller of `backward` gets its errors as they are.

    A step is ended before DistributedDataParallel waits for the means, whose own call is queued after the last bucket.
    """
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _future(device: torch.device) -> torch.futures.Future[Any]:
    return torch.futures.Future(devices=[device]) if device.type == "cuda" else torch.futures.Future()
