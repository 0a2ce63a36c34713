"""Say or refuse where fixed point takes the digits of a sum: bounds that are far beyond the values.

Fixed point rounds entries to multiples of a step, which is in proportion to the declared bound. Where all values are in
one process (`secure_mean`), a step beyond all entries of a tensor is refused. The server of a sum sees its result only,
and warns where the stated error is larger than the result. A client sees its own update only, and logs that nothing of
it is left; it answers all the same, so that the server does not learn how large its values are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from securefed._tensors import Array
from securefed.defenses._base import Plan, TensorPlan
from securefed.errors import PlanError
from securefed.parties._result import SumResult
from securefed.parties._terms import METRIC, UPDATE

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
        largest = max(_largest(update[name]) * share for update, share in zip(updates, shares, strict=True))
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
    return [tensor.name for tensor in coarse if 0 < _largest(contribution[tensor.name]) < _unit(tensor, plan) / 2]


def imprecise(result: SumResult) -> list[str]:
    """Describe the tensors and metrics of a result whose stated error is larger than the result; exact zeros are none.

    Args:
        result: of a round.
    """
    stated = {name: (_largest(total) / result.weight, result.error[name]) for name, total in result.total.items()}
    errors = {tensor.name: tensor.error for tensor in result.plan.tensors}
    stated |= {
        f"metric {name}": (abs(value), errors.get(f"{METRIC}{name}", 0.0)) for name, value in result.metrics.items()
    }
    return [
        f"{name} (at most {size:.2g}, error {error:.2g})" for name, (size, error) in stated.items() if 0 < size < error
    ]


def _unit(tensor: TensorPlan, plan: Plan) -> float:
    """Return the step of a tensor; under an approximate scheme the error of one client's entry."""
    return tensor.step or tensor.error / plan.clients


def _largest(value: Array) -> float:
    """Return the largest absolute entry; without `abs`, which overflows at the smallest integer of a type."""
    return max(float(np.max(value, initial=0)), -float(np.min(value, initial=0)))
