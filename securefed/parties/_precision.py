"""Say or refuse where fixed point or noise takes the digits of a sum.

Fixed point rounds entries to multiples of a step, which is in proportion to the declared bound. The plan says before a
run what its mean loses: by rounding where weights are small, by noise where clients are few (`noted`), and
`SumTerms.like` refuses default bounds where they would cost digits (`check_declared`). Where all values are in one
process (`secure_mean`), a step beyond all entries of a tensor is refused. The server of a sum sees its result only, and
warns where the stated error is larger than the result. A client sees its own update only, and logs that nothing of it
is left; it answers all the same, so that the server does not learn how large its values are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from securefed._tensors import Array
from securefed.defenses._base import Plan, TensorPlan
from securefed.errors import ConfigError, PlanError
from securefed.parties._terms_parts import UPDATE

_COARSE: Final = 2.0**-20
"""Smallest unit of a tensor for which a client looks for entries below it: a pass over the update, which a sum with
ordinary bounds does without. Entries of an update below 1e-6 in all of a tensor are rare in training."""


def check_representable(plan: Plan, updates: Sequence[Mapping[str, Array]], shares: Sequence[float]) -> None:
    """Refuse bounds under which a tensor's entries are all below one unit of fixed point, and would be sent as zeros.

    Args:
        plan: the plan of the sum; under a clip or noise nothing is checked.
        updates: the clients' updates, by name.
        shares: by client, the factor by which its update is multiplied before it is rounded.

    Raises:
        PlanError: it names the tensor, its largest entry and the unit.
    """
    if plan.privacy is not None:
        return
    for tensor in plan.tensors:
        name = tensor.name.removeprefix(UPDATE)
        if name == tensor.name:  # a weight or the indicator
            continue
        largest = max(largest_entry(update[name]) * share for update, share in zip(updates, shares, strict=True))
        if 0 < largest < _unit(tensor, plan):
            raise PlanError(
                f"{name!r} has entries up to {largest:.3g}, and under its bound of {tensor.bound:.3g} sums are in "
                f"multiples of {_unit(tensor, plan):.3g}, so that nothing of it would be left; declare a bound near "
                "its largest entry, by name where tensors differ, or leave the bound out"
            )


def lost_entirely(plan: Plan, contribution: Mapping[str, Array]) -> list[str]:
    """Return the tensors of a contribution that rounding to coarse units turns into zeros, by their names in the plan.

    Args:
        plan: the plan of the sum.
        contribution: the tensors that the client sends, before they are rounded.
    """
    if plan.privacy is not None:
        return []
    coarse = [tensor for tensor in plan.tensors if tensor.name in contribution and _unit(tensor, plan) >= _COARSE]
    return [tensor.name for tensor in coarse if 0 < largest_entry(contribution[tensor.name]) < _unit(tensor, plan) / 2]


def _unit(tensor: TensorPlan, plan: Plan) -> float:
    """Return the step of a tensor; under an approximate scheme the error of one client's entry."""
    return tensor.step or tensor.error / plan.clients


def largest_entry(value: Array) -> float:
    """Return the largest absolute entry; without `abs`, which overflows at the smallest integer of a type."""
    return max(float(np.max(value, initial=0)), -float(np.min(value, initial=0)))


BATCH_NORM: Final = (
    ". Of batch norm keep local=('*running_*', '*num_batches_tracked'), and evaluate with each client's own, or train "
    "with GroupNorm, which has no such tensors"
)
"""Advice on statistics of batch norm, which noise makes useless; the end of an error."""
_EXACT_RING: Final = 64
"""Width in bits of a ring in which default bounds cost no digits that a float has."""
_DROWNED: Final = 1.0
"""Length of the mean's noise, in clips, from which on the plan says so: the noise is then longer than any update."""


def check_declared(plan: Plan, undeclared: Collection[str]) -> None:
    """Refuse coarse sums of tensors whose bound no caller declared.

    Such sums have an error in proportion to the bound: with three clients and the default bound of 2^20 a mean is off
    by up to 1e-3 in a ring of 32 bits and by 2e-4 under CKKS, where 64 bits leave 2e-13. A clip bounds all tensors.

    Args:
        plan: the plan of the sum.
        undeclared: names of the plan's tensors that keep the default bound.

    Raises:
        ConfigError: one of them is summed in a narrow ring, or approximately.
    """
    if plan.privacy is not None:
        return
    for tensor in plan.tensors:
        if tensor.name in undeclared and tensor.error > 0 and tensor.ring != _EXACT_RING:
            kind, _, name = tensor.name.partition(".")
            write = f"metrics={{{name!r}: 10.0, ...}}" if kind == "metric" else "bounds=8.0, or by name,"
            raise ConfigError(
                f"{plan.defense} sums {name!r} with an error of up to {tensor.error:.2g}, in proportion to its bound, "
                f"which is not declared (2^20 by default); give SumTerms.like {write} with the largest absolute value "
                "that one client may have, and largest_weight= where updates are weighted"
            )


def noted(plan: Plan, largest_weight: float | None) -> Plan:
    """Add to a plan what the tensors' errors do not show.

    Args:
        plan: the plan of the sum.
        largest_weight: the largest weight that a client may have; `None` for a sum without weights.
    """
    for note in (_weights(plan, largest_weight), _noise(plan)):
        if note:
            plan = plan.assume(note)
    return plan


def _weights(plan: Plan, largest_weight: float | None) -> str:
    """Say the rounding error of a mean whose weights are all 1.

    Weighted updates are divided by `largest_weight`, so that the plan's error e of the sum is in units of it. The mean,
    sum of w_i u_i over sum of w_i, is off by largest_weight e / sum of w_i: most where the weights are small.
    """
    if largest_weight is None:
        return ""
    error = max(tensor.error for tensor in plan.tensors) * largest_weight / plan.clients
    return (
        f"Errors of the sum are in units of the largest weight, {largest_weight:g}: a mean is off by at most "
        f"{error:.2g} where every client's weight is 1, and by less in proportion to larger weights."
    )


def _noise(plan: Plan) -> str:
    """Say how long the noise of the mean is beside one clipped update, where it is longer.

    With noise multiplier z and clip C, each of the d entries of the sum gets noise of standard deviation z C, so the
    noise vector of the mean over n clients has a length of about z C sqrt(d) / n, and under Poisson sampling with rate
    q of z C sqrt(d) / (n q), since sums are divided by q. Where clients add the noise, z is that of as few survivors as
    the plan allows, and of all n clients the noise is sqrt(n / survivors) as large.
    """
    if plan.privacy is None or plan.privacy.noise_multiplier <= 0:
        return ""
    entries = sum(tensor.size for tensor in plan.tensors)
    least = plan.privacy.noise_survivors or plan.clients
    contributing = plan.clients * plan.sampling_rate
    length = plan.privacy.noise_multiplier * math.sqrt(entries * plan.clients / least) / contributing  # in units of C
    if length <= _DROWNED:
        return ""
    times = f"{length:.1f}" if length < 10 else f"{length:.0f}"
    return (
        f"The noise of the mean is about {times} times as long as a clipped update can be, over all {entries:,} "
        f"entries: train fewer entries, or with more than {plan.clients} clients (about "
        f"{math.ceil(length * plan.clients):,} bring both to one length), or hide single rows instead of clients."
    )
