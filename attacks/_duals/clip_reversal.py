"""Undo the clipping of FedPG's messages.

Attacks on FedPG, a federated PCA, call this before they read the messages (`dual_attack`, `pooled_client`). A client
sends

    M = U + Y / rho,    Y = rho (M_before - Z),

with U, (features, rank), its orthonormal iterate, rho the penalty parameter and Y its dual variable, known from its
message before and the consensus Z that followed. Clipping replaces M by C = a M with a <= 1. Since ||U||_F^2 = rank,
x = 1 / a solves

    ||C x - Y / rho||_F^2 = rank,    that is,    ||C||^2 x^2 - 2 <C, Y / rho> x + ||Y / rho||^2 - rank = 0.

Of the two roots the one that leaves U closer to its previous value is taken. A sum over several clients is treated as
that many equal clients, each of which sends the mean.
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

_CLIPPED_WITHIN = 1e-6
"""A client's message counts as clipped where its norm reaches the clipping norm up to this share (rounding); the mean
of several, whose directions differ, up to 1e-2.
"""


def undo_clipping(rounds: Sequence[RoundView]) -> tuple[Sequence[RoundView], bool]:
    """Return the rounds with their messages before clipping, and whether any message was clipped.

    The result is exact for one client. Rounds with noise are returned unchanged, since noise adds to the norm.

    Args:
        rounds: rounds of one client, or of the same clients in each, from the first on. Each has the broadcast that
            followed, or else the next round's broadcast is taken; rounds after one without either are left out.
    """
    if not any(_limit(o) < np.inf for o in rounds) or any(o.noise.get(POINT) for o in rounds):
        return rounds, False
    previous = orth(rounds[0].broadcast[BASIS])  # U^0 = Z^0
    scaled_dual = np.zeros_like(previous)  # Y / rho
    unclipped, any_clipped = [], False
    for index, observation in enumerate(rounds):
        count = len(observation.members)
        mean_message = observation.message[POINT] / count
        # clipping leaves a message of exactly the clipping norm
        clipped = float(np.linalg.norm(mean_message)) >= (1 - (_CLIPPED_WITHIN if count == 1 else 1e-2)) * _limit(
            observation
        )
        any_clipped |= clipped
        point = mean_message * _inverse_factor(mean_message, scaled_dual, previous) if clipped else mean_message
        unclipped.append(replace(observation, message={**observation.message, POINT: point * count}))
        followed = observation.followed or (rounds[index + 1].broadcast if index + 1 < len(rounds) else {})
        if not followed:
            break
        # U = M - Y / rho, then the new Y / rho = M - Z+
        previous, scaled_dual = point - scaled_dual, point - followed[BASIS]
    return (unclipped, True) if any_clipped else (rounds, False)


def _limit(observation: RoundView) -> float:
    """Return the clipping norm of a round's messages; infinite without clipping."""
    return min((norm for names, norm in observation.clips if POINT in names), default=np.inf)


def _inverse_factor(message: Array, scaled_dual: Array, previous: Array) -> float:
    """Return x = 1 / a, at least 1; where rounding leaves no real root, the minimum of the quadratic.

    Args:
        message: C, the clipped message, (features, rank).
        scaled_dual: Y / rho.
        previous: U before the local steps.
    """
    square, overlap = float(np.vdot(message, message)), float(np.vdot(message, scaled_dual))
    discriminant = max(overlap**2 - square * (float(np.vdot(scaled_dual, scaled_dual)) - previous.shape[1]), 0.0)
    roots = [(overlap + sign * np.sqrt(discriminant)) / square for sign in (-1.0, 1.0)]
    nearest = min(roots, key=lambda root: float(np.linalg.norm(root * message - scaled_dual - previous)))
    return max(float(nearest), 1.0)
