"""One subspace of a FAPS client as `round_by_round` solves for it, and the root search for the equations of a round.

FAPS is federated PCA. A client has the Gram matrix S, (features, features), of its rows, and keeps a subspace X,
orthonormal (features, rank), which it moves in each round and never sends. Its message is a function of X, of G = (I -
X X^T) S X, and of what the server broadcast. An attacker that knows X and G of one round can solve the next message for
the next X and G, which are kept as a `SolvedSubspace`; all of them together determine S.

How a round is solved depends on the number of inner steps by which a client moves X: `one_step_round` for one step,
`exact_round` for a client that iterates until X no longer moves. Both write the round as equations in few unknowns and
call `find_root`.
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
        inside: X^T S X, (rank, rank), which `one_step_round` finds when it solves the round after; `None` before that,
            and in `exact_round`, which does not find it.
        trace: tr(X^T S X), known of the first subspace only: there X is the broadcast basis Z, and clients send
            tr(Z^T S Z) for the stop rule; else `None`.
    """

    X: Array
    G: Array
    inside: Array | None = None
    trace: float | None = None


def find_root(
    linearised: ResidualAndJacobian, start: Array, residual: ResidualFunction, stepper: StepRule | None = None
) -> Array | None:
    """Search for a root of the residuals by Levenberg-Marquardt; return `None` where the search ends elsewhere.

    The equations of a round may have several roots, and the one that is found need not be the client's: in the end
    `consensus_attack` accepts S only if a simulated client with it sends the observed messages.

    Args:
        linearised: function from x to the residuals and their Jacobian.
        start: x at which the search begins, the unknowns of the round as one vector.
        residual: function from x to the residuals, relative to the message.
        stepper: rule for the steps; `None` for the default one.
    """
    fit = levenberg_marquardt(
        linearised, start, steps=_STEPS, goal=_GOAL, residual=residual, patience=_PATIENCE, stepper=stepper
    )
    return fit.point if fit.norm < _SOLVED else None
