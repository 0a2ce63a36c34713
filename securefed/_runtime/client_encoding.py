"""Encode a client's contribution as the aggregation sums it, taking as long where there is none.

A server that times replies must not see which client has no contribution, or one that is refused.
"""

from __future__ import annotations

from traceback import clear_frames

import numpy as np

from securefed._tensors import Tensors
from securefed.defenses._base import Defense, Plan, has_indicator
from securefed.errors import RangeRefused


def encoded_or_refusal(defense: Defense, plan: Plan, raw: Tensors) -> Tensors | Exception:
    """Encode a contribution; return the exception where that fails.

    To raise and to catch takes time that a small upload shows, so an exception is raised in either case. The caller
    frees `raw`, and then `free`s the exception: both hold arrays as large as the model.
    """
    encoded: Tensors | None = None
    try:
        encoded = defense.encode(raw, plan)
        raise RangeRefused(f"{plan.tensors[0].name!r} reaches {0.0:.3g}, within the planned bound {1.0:.3g}")
    except Exception as error:
        if encoded is None:
            return error
        free(error)
        return encoded


def free(refusal: Exception) -> Exception:
    """Free the arrays that the frames of a refusal hold, and return it."""
    clear_frames(refusal.__traceback__)
    return refusal


def encode_nothing(defense: Defense, plan: Plan) -> None:
    """Take the time of encoding a contribution, where there is none and the server must not learn that."""
    if has_indicator(plan):
        encoded_or_refusal(defense, plan, {spec.name: np.zeros(spec.shape) for spec in plan.own})


def encoded_zeros(defense: Defense, plan: Plan) -> Tensors:
    """Encode zeros, the contribution of a client that sits out under noise."""
    return defense.encode({spec.name: np.zeros(spec.shape) for spec in plan.own}, plan)
