"""Compute a client's iterates and dual variables in FedPG or FedPE from its messages.

Both M and the next consensus Z+ are observed, and Y = 0 at first, so Y = rho (M - Z+) follows, with it U = M - Y / rho,
and FedPE's multiplier T, which grows by rho B*B a round (entry by entry), B = max(0, U^T U - I). Z+ is the consensus
that followed from the round's own sum. A view that does not record it shows only the broadcast of the client's next
round, which is another one if the client missed rounds in between. Then Y and U of the next round are wrong, and Y of
the one after is right again: FedPG loses two steps, and FedPE's T, which adds up all rounds, stays wrong. The attacks
on single clients (`dual_attack`) and on the mean client of a sum (`pooled_client`) call this first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.consensus import POINT
from securefed.algorithms._pca.operators import orth
from securefed.algorithms._pca.server import BASIS
from securefed.attacks._base import RoundView
from securefed.attacks._precision import rounding

_ORTHONORMAL = 1e-6
"""Largest ||U^T U - I|| at which an iterate counts as orthonormal. Messages of fewer than six digits exceed it."""


@dataclass(frozen=True)
class ObservedStep:
    """Iterates and duals of one participation of a client, that is, of one round in which it took part.

    Attributes:
        start: U_i before the local steps, (features, rank).
        end: U_i after them, (features, rank).
        linear: Y_i - rho Z, (features, rank), Y_i before the round and Z its broadcast: the constant part of the
            gradient rho U + Y_i - rho Z of <Y_i, U - Z> + rho/2 ||U - Z||^2, which ADMM adds to the client's loss.
        constraint_dual: T_i of FedPE before the round, (rank, rank).
        error: standard deviation of the rounding error of a message's entry.
    """

    start: Array
    end: Array
    linear: Array
    constraint_dual: Array
    error: float


def observed_steps(rounds: Sequence[RoundView], rho: float, *, orthonormal: bool = True) -> list[ObservedStep]:
    """Return the steps of one client, from its first participation on.

    FedPG's iterates are orthonormal. One that comes out otherwise was computed from a wrong Z+: its step is left out,
    and the step after it too, whose start is unknown. FedPE's iterates need not be orthonormal and are not checked.

    Args:
        rounds: the client's rounds, from the first on.
        rho: penalty parameter of the algorithm.
        orthonormal: whether U_i is known to be orthonormal: True for FedPG, False for FedPE.
    """
    steps = []
    error = float(np.sqrt(np.mean(rounding(np.stack([o.message[POINT] for o in rounds])) ** 2)))
    start: Array | None = orth(rounds[0].broadcast[BASIS])  # U_i^0 = Z^0, which the client orthonormalises
    dual = np.zeros_like(rounds[0].broadcast[BASIS])  # Y_i^0 = 0
    constraint_dual = np.zeros((dual.shape[1], dual.shape[1]))  # T_i^0 = 0
    for index, observation in enumerate(rounds):
        sent = observation.message[POINT]
        end = sent - dual / rho  # U_i = M_i - Y_i / rho
        if orthonormal and not _is_orthonormal(end):
            start = None
        elif start is not None:
            steps.append(ObservedStep(start, end, dual - rho * observation.broadcast[BASIS], constraint_dual, error))
            start = end
        else:
            start = end
        # Z+: what followed this round's sum if that is recorded, else what the client received in its next round
        followed = observation.followed or (rounds[index + 1].broadcast if index + 1 < len(rounds) else {})
        if not followed:
            break
        dual = rho * (sent - followed[BASIS])
        constraint_dual = constraint_dual + rho * excess(end) ** 2  # FedPE, eq. (10)
    return steps


def excess(U: Array) -> Array:
    """Return B = max(0, U^T U - I), entry by entry."""
    return np.maximum(0.0, U.T @ U - np.eye(U.shape[1]))


def _is_orthonormal(basis: Array) -> bool:
    """Return whether U^T U is I, up to rounding."""
    return bool(np.linalg.norm(basis.T @ basis - np.eye(basis.shape[1])) < _ORTHONORMAL)


def rounding_left(steps: Sequence[ObservedStep], blocks: Sequence[Array], step_size: float) -> float:
    """Return the relative residual that the messages' rounding leaves in the equations of all blocks.

    Messages are M = U + Y / rho with Y = rho (M_before - Z), so that U = M - M_before + Z, and the same a round later
    U+ = M+ - M + Z+. To first order a block is (U+ - U) / (2 eta) plus terms without S: half a second difference
    M+ - 2 M + M_before of messages over the step size, which magnifies their rounding by sqrt(1 + 4 + 1) / (2 eta).
    """
    error = max(step.error for step in steps) * np.sqrt(6) / (2 * step_size)
    entries = sum(block.size for block in blocks)
    return float(error * np.sqrt(entries) / (np.linalg.norm([np.linalg.norm(block) for block in blocks]) or 1.0))
