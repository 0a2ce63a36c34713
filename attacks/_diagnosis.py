"""Say in a report's sentences what limited an attack: missing broadcasts, few digits, unexplained messages.

The audit of a recorded run (`transcript_audit`) calls `diagnose` after each attack. The inputs are a reconstruction
and the view that it was made from. The sentences follow from the reconstruction's residual and condition and from the
precision of the messages' numbers, so that they hold for every attack.

An attack's residual is the distance between the messages that its estimate would have caused and the observed ones,
relative to these. The estimate explains the messages where the residual is no larger than what their rounding alone
would leave. The condition is that of the linear system or Jacobian that the attack solves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from securefed._tensors import Array, Tensors
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._precision import before_change

EXPLAINED: Final = 1e-6
"""Relative residual of float64 messages up to which a reconstruction counts as one that explains them. Right
hyper-parameters leave 1e-8 and less where the attack is exact (2^-40 of fixed point included), a step size that is off
by 1 % leaves 1e-5 and more."""
ROUNDING: Final = "rounding residual"
"""Key of `Reconstruction.diagnostics` for the relative residual that the messages' rounding leaves in an attack's
equations, where these are not in units of the messages."""
_ROUNDINGS: Final = 10.0
"""Multiples of the residual under `ROUNDING` that still count as rounding. In ten runs of FedPG on UNSW rows in float32
the right step size left .7 to 1.3 of it, and one that was off by a tenth 50 to 300."""
_DOUBLE: Final = float(np.finfo(np.float64).eps)
"""Relative rounding error of float64 numbers."""
_MOST_AMPLIFIED: Final = 1e-4
"""Largest residual that is put down to round-off, however large the condition is."""
_NOTABLE: Final = 1e-3
"""Relative error of the estimate from which on a report says that the rounding of float64 messages causes it."""


def resolution(observed: View) -> float:
    """Return the relative rounding error of the messages, by their types; the largest over all rounds and tensors.

    A message that is a change of a broadcast tensor (`delta.weight` of `weight`) was rounded at the size of that
    tensor, so that it has fewer digits the smaller the change is.
    """
    steps = [
        float(np.finfo(value.dtype).eps) * _cancelled(name, value, o.broadcast)
        for o in observed.rounds
        for name, value in o.message.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size
    ]
    return max(steps, default=_DOUBLE)


def amplified(found: Reconstruction) -> float:
    """Return the residual that round-off leaves at the condition of the attack's system.

    It is at most 1e-4, and 0 where the attack states no condition.
    """
    return min(_MOST_AMPLIFIED, _DOUBLE * found.condition) if math.isfinite(found.condition) else 0.0


def explained(found: Reconstruction, observed: View) -> bool | None:
    """Return whether the reconstruction explains the messages to their precision; `None` without a residual."""
    if math.isnan(found.residual):
        return None
    of_rounding = _ROUNDINGS * float(found.diagnostics.get(ROUNDING, 0.0))
    return bool(found.residual <= max(_level(observed), amplified(found), of_rounding))  # no NumPy bool


def _level(observed: View) -> float:
    """Return the relative residual up to which messages of this precision count as explained: 100 rounding errors."""
    return max(EXPLAINED, 100 * resolution(observed))


def diagnose(
    found: Reconstruction, observed: View, target: Target, *, known: bool | None = None, error: float = math.nan
) -> tuple[str, ...]:
    """Describe what the attack lacked and what that costs: missing broadcasts, digits, or an explanation.

    Args:
        found: the reconstruction.
        observed: the view that it was made from.
        target: as given to the attack.
        known: whether the attack leaves no smaller residual in a run of the auditor's own, whose data it recovers. Then
            a residual above rounding is no sign of wrong hyper-parameters. `None` without such a comparison.
        error: relative error of the estimate that the messages' rounding allows (`repeatability`); NaN if it was not
            measured.

    Returns:
        One sentence for each; empty where the attack had all it needs and explains every message.
    """
    return (
        *_left_out(observed),
        *_coarse(found, observed, error),
        *_unexplained(found, observed, target, known=bool(known)),
    )


def _cancelled(name: str, value: Array, broadcast: Tensors) -> float:
    """Return how many times larger the broadcast tensor is than its change.

    It is at least 1; it is 1 for a tensor that is no change, and for a change in float64, which keeps enough digits.
    """
    before = before_change(name, broadcast)
    if before is None or np.shape(before) != value.shape or value.dtype.itemsize > np.dtype(np.float32).itemsize:
        return 1.0
    size = float(np.linalg.norm(value))
    return max(1.0, float(np.linalg.norm(before)) / size) if size > 0 else 1.0


def _left_out(observed: View) -> Iterator[str]:
    """Say how many rounds lack their broadcast."""
    silent = sum(not o.broadcast for o in observed.rounds)
    if silent:
        yield f"{silent} of {len(observed.rounds)} rounds hold no broadcast and were left out."


def _coarse(found: Reconstruction, observed: View, error: float) -> Iterator[str]:
    """Say how many digits the messages have and what the missing ones cost; nothing for full ones that cost little."""
    step = resolution(observed)
    coarse = step > _DOUBLE
    digits = f"The messages have {-math.log10(step):.0f} digits, not 16" if coarse else "The messages have 16 digits"
    if not math.isnan(error):
        if coarse or error > _NOTABLE:
            yield f"{digits}: changed by as much as their rounding, they give an estimate that differs by {error:.0e}."
    elif coarse and math.isnan(found.condition):
        yield f"{digits}: no estimate can be better than {step:.0e} of its size."
    elif coarse:
        cost = min(1.0, step * found.condition)
        yield (
            f"{digits}: at a condition of {found.condition:.0e} the attack's own system may be off by {cost:.0e}, and "
            "what is computed from it by more."
        )


def _unexplained(found: Reconstruction, observed: View, target: Target, *, known: bool) -> Iterator[str]:
    """Say whether the estimate explains the messages, and if not, why it may be."""
    own = explained(found, observed)
    if own is None:
        yield "The attack solves and checks nothing: wrong hyper-parameters would not show in it."
    elif not own and known:
        yield (
            f"The misfit ({found.residual:.1e}) is no more than the attack leaves in a run of the auditor's own, in "
            "numbers of the same precision, whose data it recovers."
        )
    elif not own:
        yield (
            f"The estimate does not explain the messages (misfit {found.residual:.1e}): the hyper-parameters are not "
            f"those given ({target.algorithm!r}), the clients draw at random, noise was added, or the search failed."
        )
    elif found.residual > _level(observed):
        yield (
            f"The misfit ({found.residual:.1e}) is no more than rounding leaves at a condition of "
            f"{found.condition:.0e}, in which hyper-parameters that are a little off would not show."
        )
