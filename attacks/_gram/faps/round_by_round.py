"""Solve for a FAPS client's subspaces X_k, and then for its Gram matrix S, round by round, at any number of features.

Once X and G of the round before are known, two kinds of clients leave few unknowns in a round: one that iterates to the
end, whose message depends on S by the new X alone (case 1, `exact_round`), and one that makes one inner step, for which
only X^T S X is unknown (case 2, `one_step_round`). Then G is known in every round, and S follows from all of them
(`elimination`). Other clients are fitted by `client_fit`. A round's equations have several roots, so the search starts
from an estimate of S (`near_consensus`), and `consensus_attack` accepts S only if a simulated client with it sends the
messages. The package's head has the symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS, GROWTH, PERIOD, STALL
from securefed.algorithms._pca.operators import off
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._gram.elimination import InnerEquations, eliminate, symmetric_basis
from securefed.attacks._gram.faps.exact_round import exact_round
from securefed.attacks._gram.faps.one_step_round import one_step_round
from securefed.attacks._gram.faps.solution import FAPSSolution
from securefed.attacks._gram.faps.solved_subspace import SolvedSubspace
from securefed.attacks._gram.linear import solve
from securefed.errors import DivergenceError

LONGEST = 40
"""Most rounds that are solved; in later ones subspaces move little, so that they add little."""
_EXACT_TOLERANCE = 1e-6
"""Clients count as iterating to the end if FAPS' tolerance of the inner iterations is at most this."""


def is_solvable_by_rounds(algorithm: FAPS) -> bool:
    """Return whether rounds can be solved one by one: the client makes one inner step, or iterates to the end.

    A client with a large fixed number of inner steps does not iterate to the end in this sense. The many steps amplify
    round-off already in round 0, which moves the subspace away from Z, and the solve relies on X = Z there.
    """
    return algorithm.inner_steps == 1 or solves_subproblems(algorithm)


def solves_subproblems(algorithm: FAPS) -> bool:
    """Return whether clients iterate until H maps their subspace into itself (case 1 of the module).

    That takes hundreds of inner steps, too many for a fit of a simulated client.
    """
    follows_rule = algorithm.inner_steps is None and algorithm.inner_rule == "subspace"
    return follows_rule and algorithm.inner_tolerance <= _EXACT_TOLERANCE


def solve_round_by_round(
    rounds: Sequence[RoundView], algorithm: FAPS, rows: int, estimate: Array
) -> FAPSSolution | None:
    """Solve for one client's S from its first message on.

    Args:
        rounds: the client's rounds from its first on; at most `LONGEST` are used.
        algorithm: the FAPS that the client runs, one for which `is_solvable_by_rounds` holds.
        rows: public bound on the rank of S; 0 for none.
        estimate: an estimate of S, to start the solves from, (features, features).

    Returns:
        The solution from the rounds before the first that could not be solved, with the residual of the elimination;
        `None` where the first solve already fails.
    """
    solve_round = one_step_round if algorithm.inner_steps == 1 else exact_round
    solved = _solve_subspaces(rounds[:LONGEST], algorithm, solve_round, estimate)
    if len(solved) < 2:
        return None
    # the products S X_k are known but for X_k^T S X_k, which the symmetry of S determines
    eliminated = eliminate([s.X for s in solved], [s.G for s in solved], [_inner(s) for s in solved])
    gram = solve(eliminated.probes, eliminated.products, rows=rows).gram
    notes = {"rounds solved": len(solved)}
    return FAPSSolution(
        gram, "round by round", eliminated.residual, eliminated.rank, eliminated.unknowns, eliminated.condition, notes
    )


RoundSolve = Callable[
    [Sequence[SolvedSubspace], RoundView, float, Array], "tuple[SolvedSubspace, SolvedSubspace] | None"
]
"""Solve one round. Arguments: the subspaces so far, the round, beta, an estimate of S. Result: the last subspace, with
what the round showed of it, and the next one; `None` on failure.
"""


def _solve_subspaces(
    rounds: Sequence[RoundView], algorithm: FAPS, solve_round: RoundSolve, estimate: Array
) -> list[SolvedSubspace]:
    """Return the subspaces: one from round 0, where X = Z, and one from each further round, up to the first failure."""
    first = rounds[0]
    Z = first.broadcast[BASIS]
    beta = float(np.vdot(Z, first.message[PRODUCT])) / Z.shape[1]  # Z^T Y = beta I
    solved = [SolvedSubspace(Z, off(Z, first.message[PRODUCT]), trace=float(first.message[CAPTURED]))]
    distance = 0.0  # of X from Z when rule (25) was last applied
    for k, observation in enumerate(rounds[1:], start=1):
        try:
            pair = solve_round(solved, observation, beta, estimate)
        except (LinAlgError, DivergenceError):
            pair = None
        if pair is None:
            break
        # rule (25) of the paper of FAPS: later betas grow unless X has come closer to Z
        if algorithm.adaptive and k % PERIOD == 0:
            # ||X X^T - Z Z^T||_F = sqrt(2) ||(I - X X^T) Z||_F
            new_distance = math.sqrt(2) * float(np.linalg.norm(off(solved[-1].X, observation.broadcast[BASIS])))
            beta, distance = beta * (GROWTH if distance <= STALL * new_distance else 1.0), new_distance
        solved[-1:] = pair  # the last subspace, now with what this round shows of it, and the next one
    return solved


def _inner(subspace: SolvedSubspace) -> InnerEquations:
    """Return equations for what is known of X^T S X: all of it, its trace, or nothing.

    They have the form sum_q theta_q images[q] = right, with theta_q the coordinates of X^T S X in `symmetric_basis`.
    """
    basis = symmetric_basis(subspace.X.shape[1])  # (coordinates, rank, rank)
    if subspace.inside is not None:  # one equation for each entry of X^T S X
        return InnerEquations(basis, subspace.inside)
    if subspace.trace is not None:
        return InnerEquations(np.trace(basis, axis1=1, axis2=2)[:, None], np.full(1, subspace.trace))
    return InnerEquations(np.zeros((len(basis), 0)), np.zeros(0))  # no equation
