"""Undo the clipping of FedPG's messages M = U + Y / rho: U is orthonormal and Y is known, so the norm of M follows.

||M / a - Y / rho||^2 = rank, with M the clipped message, is a quadratic equation in 1 / a. The root that leaves U
closer to its previous value is taken. A sum of clients is treated as that many clients equal to their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.consensus import POINT
from securefed.algorithms._pca.operators import orth
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._base import RoundView

_CLOSE = 1e-6


def undo_clipping(rounds: Sequence[RoundView]) -> tuple[Sequence[RoundView], bool]:
    """Return the rounds with their messages before clipping, and whether any message was clipped.

    The result is exact for one client. Rounds with noise are returned as they are, since noise would add to the norm.

    Args:
        rounds: rounds of one client, or of the same clients in each, from the first on, each with the broadcast that
            followed.
    """
    if not any(_limit(o) < np.inf for o in rounds) or any(o.noise.get(POINT) for o in rounds):
        return rounds, False
    before = orth(rounds[0].broadcast[BASIS])  # U^0 = Z^0
    pull = np.zeros_like(before)  # Y / rho
    out, found = [], False
    for index, observation in enumerate(rounds):
        count = len(observation.members)
        sent = observation.message[POINT] / count
        clipped = float(np.linalg.norm(sent)) >= (1 - (_CLOSE if count == 1 else 1e-2)) * _limit(observation)
        found |= clipped
        point = sent * _factor(sent, pull, before) if clipped else sent
        out.append(replace(observation, message={**observation.message, POINT: point * count}))
        followed = observation.followed or (rounds[index + 1].broadcast if index + 1 < len(rounds) else {})
        if not followed:
            break
        before, pull = point - pull, point - followed[BASIS]
    return (out, True) if found else (rounds, False)


def _limit(observation: RoundView) -> float:
    return min((norm for names, norm in observation.clips if POINT in names), default=np.inf)


def _factor(sent: Array, pull: Array, before: Array) -> float:
    """Return 1 / a, at least 1."""
    square, along = float(np.vdot(sent, sent)), float(np.vdot(sent, pull))
    inside = max(along**2 - square * (float(np.vdot(pull, pull)) - before.shape[1]), 0.0)
    roots = [(along + sign * np.sqrt(inside)) / square for sign in (-1.0, 1.0)]
    nearest = min(roots, key=lambda root: float(np.linalg.norm(root * sent - pull - before)))
    return max(float(nearest), 1.0)
