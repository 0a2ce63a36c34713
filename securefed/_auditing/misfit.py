"""Whether an estimate explains the messages: what tells "nothing is there" from "the search failed"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from securefed.attacks._base import Reconstruction, View
from securefed.attacks._diagnosis import EXPLAINED, amplified, resolution

_ROUNDINGS: Final = 100
_STEPS, _NOISES = 3.0, 1.5


def precision(observed: View) -> float:
    """Relative misfit that the right secret may leave: of the numbers' type, of fixed point, of noise.

    Of the noise the attacker knows the distribution; over as many numbers as a run sends its norm is that of the noise
    which was drawn.
    """
    size = rounded = noise = 0.0
    for o in observed.rounds:
        for name, value in o.message.items():
            seen = np.asarray(value, np.float64)
            size += float(np.vdot(seen, seen))
            rounded += seen.size * len(o.members) * o.step.get(name, 0.0) ** 2 / 12
            noise += seen.size * o.noise.get(name, 0.0) ** 2
    level = max(EXPLAINED, _ROUNDINGS * resolution(observed))
    return max(level, _STEPS * math.sqrt(rounded / size), _NOISES * math.sqrt(noise / size)) if size > 0 else level


def explains(found: Reconstruction, level: float) -> bool | None:
    """Whether the estimate explains the messages to `level`; `None` where the attack checks nothing.

    A system of high condition is solved to its round-off times the condition, which excuses no more than 1e-4.
    """
    if "explained" in found.diagnostics:
        return bool(found.diagnostics["explained"])
    if math.isnan(found.residual):
        return None
    return bool(found.residual <= max(level, amplified(found)))


def offered(
    leaks: Sequence[float],
    nulls: Sequence[float],
    explained: Sequence[bool | None],
    explained_nulls: Sequence[bool | None],
) -> tuple[list[float], list[float]]:
    """Leakages of an attack over seeds, and of its null, as its user would have them who sees each estimate's misfit.

    An estimate that does not explain the messages may be worse than the guess, which he has too. He may offer such
    estimates all the same, or the guess in their place: one rule for all runs, and which is better on average he can
    learn from runs of his own. The better one counts, for the null too. A search that failed in every run is shown as
    it ended: there is nothing to choose.
    """
    kept = [0.0 if known is False else leak for leak, known in zip(leaks, explained, strict=True)]
    if not any(explained) or sum(kept) <= sum(leaks):
        return list(leaks), list(nulls)
    return kept, [0.0 if known is False else leak for leak, known in zip(nulls, explained_nulls, strict=True)]
