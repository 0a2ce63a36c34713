"""One subspace of a FAPS client as `round_by_round` solves for it, and the root search that both kinds of rounds share.

The client has the Gram matrix S, (features, features). Each round's subspace X, orthonormal (features, rank), becomes
known together with the block G = (I - X X^T) S X. The modules `one_step_round` and `exact_round` each solve one round.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed._tensors import Array
from securefed.attacks._fitting.levenberg_marquardt import (
    ResidualAndJacobian,
    ResidualFunction,
    StallLimit,
    StepRule,
    levenberg_marquardt,
)

_SOLVED = 1e-7
"""Norm of the residuals, relative to the message, below which a round counts as solved."""
_GOAL, _STEPS = 1e-14, 60
"""Norm of the residuals at which a search stops (round-off), and its most Jacobians."""
_PATIENCE = StallLimit(1e-5, far=12, close=None)
"""Twelve Jacobians that do not halve the residual end a search that is far from a root (above 1e-5)."""


@dataclass(frozen=True)
class SolvedSubspace:
    """One subspace of the client, and what is known of S on it.

    Attributes:
        X: orthonormal basis, (features, rank).
        G: (I - X X^T) S X, (features, rank).
        inside: X^T S X, (rank, rank), which one-step rounds determine; else `None`.
        trace: tr(X^T S X) of the first subspace, where it was sent for the stop rule; else `None`.
    """

    X: Array
    G: Array
    inside: Array | None = None
    trace: float | None = None


def find_root(
    linearised: ResidualAndJacobian, start: Array, residual: ResidualFunction, stepper: StepRule | None = None
) -> Array | None:
    """Search for a root of the residuals by Levenberg-Marquardt; return `None` where the search ends elsewhere.

    Args:
        linearised: function from x to the residuals and their Jacobian.
        start: x at which the search begins.
        residual: function from x to the residuals, relative to the message.
        stepper: rule for the steps; `None` for the default one.
    """
    fit = levenberg_marquardt(
        linearised, start, steps=_STEPS, goal=_GOAL, residual=residual, patience=_PATIENCE, stepper=stepper
    )
    return fit.point if fit.norm < _SOLVED else None
