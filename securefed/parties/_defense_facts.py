"""Facts of a defence on which the terms of a sum depend: whether it clips, or changes whole updates."""

from __future__ import annotations

import math
from dataclasses import replace

from securefed.defenses._base import ChainStage, Defense
from securefed.defenses._secure_aggregation.double_masking import SecureAggregation


def power_of_two(least: float) -> float:
    """Return the smallest power of two from `least` > 0 on: exact, whereas a rounded logarithm may fall short."""
    mantissa, exponent = math.frexp(least)  # least = mantissa 2^exponent, 1/2 <= mantissa < 1
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def pipelined(defense: Defense) -> Defense:
    """Return the defence whose secure aggregation agrees the keys of the next round in each; others as they are."""
    aggregation = defense.aggregation
    if not isinstance(aggregation, SecureAggregation):
        return defense
    return replace(defense, aggregation=replace(aggregation, pipelined=True))


def changes_updates(defense: Defense) -> bool:
    """Tell whether a defence sparsifies, clips or noises the whole contribution, which excludes weights beside it.

    Noise of the clients has the stage `ENCODE`, but needs a clip before it, which is found here.
    """
    return any(transform.stage < ChainStage.ENCODE for transform in defense.transforms)


def clips(defense: Defense) -> bool:
    """Tell whether a defence clips contributions."""
    return any(transform.stage == ChainStage.CLIP for transform in defense.transforms)
