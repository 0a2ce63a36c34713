"""Decide whether an estimate explains the messages, which tells "there is no leak" from "the search failed".

An attack reports the relative residual ||observed - predicted|| / ||observed|| of the messages under its estimate. The
right secret leaves no more than rounding, fixed point and noise put there; `precision` computes that level. An audit of
registered algorithms, and the search for an advised defence, call `precision` and `explains` for each estimate, and
`fall_back_on_guess` when the attempts of all seeds are gathered. A seed is one repetition of the run.

Leakage is 1 for an exact estimate and 0 for one no better than the guess without messages. The null is the same attack
on messages that say nothing about the target: its leakage is what chance gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from securefed._auditing.engine.results import Attempt
from securefed.attacks._base import Reconstruction, View
from securefed.attacks._diagnosis import EXPLAINED, amplified, resolution

_ROUNDINGS: Final = 100
"""Rounding errors of the messages' type that an estimate may leave: a long computation adds up to tens of them."""
_STEPS: Final = 3.0
"""Standard deviations of fixed-point rounding that the residual's norm may reach."""
_NOISES: Final = 1.5
"""Standard deviations of the noise. The norm of n normal numbers exceeds 1.5 of its mean once in 10^15 runs at n = 144,
so that more would only let wrong estimates pass."""


def precision(observed: View) -> float:
    """Compute the relative residual that the right secret may leave.

    A view holds rounds; each has a `message` (tensors by name), the sum of its `members`' contributions, and by tensor
    the `step` of the fixed-point grid and the standard deviation of the `noise` of an entry.

    The level is the largest of: 100 roundings of the messages' type (at least 1e-6), 3 standard deviations of
    fixed-point rounding (of variance step^2 / 12 for each member and number), and 1.5 of the noise, whose distribution
    is public.
    """
    size = rounded = noise = 0.0  # ||messages||^2, and the expected squares of rounding and of noise
    for view in observed.rounds:
        for name, value in view.message.items():
            numbers = np.asarray(value, np.float64)
            size += float(np.vdot(numbers, numbers))
            rounded += numbers.size * len(view.members) * view.step.get(name, 0.0) ** 2 / 12
            noise += numbers.size * view.noise.get(name, 0.0) ** 2
    level = max(EXPLAINED, _ROUNDINGS * resolution(observed))
    return max(level, _STEPS * math.sqrt(rounded / size), _NOISES * math.sqrt(noise / size)) if size > 0 else level


def explains(estimate: Reconstruction, level: float) -> bool | None:
    """Tell whether an estimate explains the messages; `None` where the attack computes no residual.

    An attack that solves a linear system of condition number c leaves a residual of up to c times the round-off of
    float64, even with the right secret. So much is allowed too, up to 1e-4 (`amplified`).

    Args:
        estimate: the estimate of an attack, which may judge this itself (`diagnostics["explained"]`).
        level: relative residual that is still rounding and noise (`precision`).
    """
    if "explained" in estimate.diagnostics:
        return bool(estimate.diagnostics["explained"])
    if math.isnan(estimate.residual):
        return None
    return bool(estimate.residual <= max(level, amplified(estimate)))


def fall_back_on_guess(attempts: Sequence[Attempt]) -> tuple[list[float], list[float]]:
    """Compute the leakages of an attack over seeds, and of its null, as a sensible attacker would use it.

    The attacker sees whether each estimate explains the messages. An estimate that does not may be worse than the guess
    without messages, whose leakage is 0. So the attacker follows one of two rules for all runs: use every estimate, or
    replace by the guess each estimate that does not explain its messages. The rule with the higher mean counts, for the
    null too. Where no run is explained the estimates are taken as they are, since such an attacker has nothing to
    choose by.

    Args:
        attempts: the attempts of one attack on one secret in one view, seed by seed.

    Returns:
        The leakages, and those of the null, seed by seed.
    """
    leaks, nulls = [a.leakage for a in attempts], [a.null_leakage for a in attempts]
    replaced = [0.0 if a.explained is False else a.leakage for a in attempts]
    if not any(a.explained for a in attempts) or sum(replaced) <= sum(leaks):
        return leaks, nulls
    return replaced, [0.0 if a.null_explained is False else a.null_leakage for a in attempts]
