"""Reconstruct a FAPS client's Gram matrix S by fitting a simulated client to its first messages.

Unknown are S and, where the client stops its inner iterations by a rule, the inner counts, taken as real numbers. The
fit starts near the truth (`near_consensus`, or `low_rank_estimate` where S has low rank and is written in a small basis
of the messages' span), goes on by multiple shooting, which leaves the subspaces of all rounds unknown at first
(`multiple_shooting`), and ends with Gauss-Newton steps on all rounds (`client_equations`). It is accepted where the
residuals are round-off or noise and the Jacobian has full rank and is well enough conditioned for them: residuals of
1e-5 occur with relative errors of S of 0.9. Where S has low rank its parameters are those of F, S = F F^T, free up to a
rotation. The package's head has the symbols.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS
from securefed.attacks._base import RoundView
from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    StallLimit,
    gauss_newton,
    levenberg_marquardt,
)
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.faps.client_equations import ClientEquations
from securefed.attacks._gram.faps.fit_plan import FEWEST, needed_rounds
from securefed.attacks._gram.faps.low_rank_estimate import low_rank_estimate
from securefed.attacks._gram.faps.message_span import first_message_noise
from securefed.attacks._gram.faps.multiple_shooting import MultipleShooting
from securefed.attacks._gram.faps.near_consensus import evenly_spaced, largest_eigenvalue, near_consensus
from securefed.attacks._gram.faps.solution import FAPSSolution
from securefed.attacks._gram.linear import nearest_psd

GOAL, PROOF, SINGLE_PROOF = 1e-11, 1e-9, 1e-6
"""Norms of the relative residuals of all rounds: at which the search stops and Gauss-Newton steps follow; below which a
fit counts as proven; the same where the first message shows noise, since the rounding of float32 numbers alone leaves
up to 1e-6.
"""
_MOST_NOISE = 10.0
"""Largest residual of a message that is taken for noise, in units of the noise of the first message."""
_SHOOTING_JACOBIANS, _JACOBIANS, _GAUSS_NEWTON_STEPS = 30, 100, 6
"""Most Jacobians of multiple shooting and of the fit, and number of Gauss-Newton steps. Runs that end well take a third
of them.
"""
_FAILED = 1e-2
"""A search that ends above this residual has failed: solved ones end below 1e-8, stuck ones at .06 to 1."""
_PATIENCE = StallLimit(1e-2, far=6, close=40)
"""A search ends when six Jacobians have not halved its residual while that is above 1e-2. Below, forty are allowed,
since another start would cost as much.
"""
_FULL_RANK = 1e-11
"""Singular values below this share of the largest, columns scaled to unit length, count as zero."""
_LARGEST_HIDDEN, _LARGEST_HIDDEN_BY_NOISE = 1e-2, 5e-2
"""A fit is accepted only if the relative error of S that its residual, taken as noise, would cause is below the first,
or below the second where the fit is not called exact.
"""


def fit_client(rounds: Sequence[RoundView], algorithm: FAPS, rows: int, starts: int, limit: int) -> FAPSSolution | None:
    """Fit a simulated client to the first messages of one client.

    The start is estimated from all rounds. If the rank of S is low, the fit reads only as many rounds as determine S.
    Otherwise it reads all rounds whose beta is known to the attacker (FAPS may adapt it later in a run), which improves
    the start of multiple shooting.

    Args:
        rounds: the client's messages from its first contribution on.
        algorithm: the FAPS that the client runs.
        rows: public bound on the rank of S; 0 for none.
        starts: largest number of starts; all but the first are disturbed at random.
        limit: largest number of unknowns of S for which a fit is tried.

    Returns:
        The first fit that is accepted; `None` where no start ends at one, or S has too many unknowns.
    """
    count, parametrisation = needed_rounds(algorithm, rounds, rows)
    if count < FEWEST or parametrisation.determined > limit:
        return None
    scale = largest_eigenvalue(rounds[0], algorithm.beta_scale)
    estimate = near_consensus(evenly_spaced(rounds), algorithm.beta_scale, rows).gram
    full_rank = isinstance(parametrisation, SymmetricMatrices)
    equations = ClientEquations.of(rounds if full_rank else rounds[:count], algorithm, rows, scale)
    guess = equations.reduced(estimate) if full_rank else low_rank_estimate(equations, estimate, rounds)
    largest_residual = max(PROOF, _MOST_NOISE * first_message_noise(rounds[0]) * math.sqrt(len(equations.products)))
    for attempt, start in enumerate(_starts(guess, rows, starts), start=1):
        x = _fit(equations, start)
        if x is not None and (fit := _accepted(equations, x, attempt, largest_residual)) is not None:
            return fit
    return None


def estimate_of_low_rank(rounds: Sequence[RoundView], algorithm: FAPS, rows: int, limit: int) -> Array | None:
    """Estimate S without a simulation, for exact messages of a client of few rows (`low_rank_estimate`).

    Args:
        rounds: the client's messages from its first on.
        algorithm: the FAPS that the client runs.
        rows: public bound on the rank of S; 0 for none.
        limit: largest number of unknowns of S for which it is tried.

    Returns:
        The estimate, (features, features); `None` for messages with noise, and where the rank of S may be high.
    """
    count, parametrisation = needed_rounds(algorithm, rounds, rows)
    full_rank = isinstance(parametrisation, SymmetricMatrices)
    if full_rank or parametrisation.determined > limit or first_message_noise(rounds[0]):
        return None
    estimate = near_consensus(evenly_spaced(rounds), algorithm.beta_scale, rows)
    equations = ClientEquations.of(rounds[:count], algorithm, rows, estimate.scale)
    return equations.restored(low_rank_estimate(equations, estimate.gram, rounds))


def _starts(guess: Array, rows: int, number: int) -> Iterator[Array]:
    """Yield the guess, then the guess mixed with ever more of a random matrix.

    The random matrix F F^T has a decaying spectrum: the normal columns of F shrink by e^-1 to e^-3, first to last.
    """
    rng, size = np.random.default_rng(0), len(guess)
    rank = min(size, rows or size)
    yield guess
    for attempt in range(1, number):
        factor = rng.normal(size=(size, rank)) * np.exp(-rng.uniform(1, 3) * np.arange(rank) / size)
        random_gram = factor @ factor.T
        random_gram *= np.linalg.norm(guess) / np.linalg.norm(random_gram)
        random_share = attempt / number
        yield nearest_psd((1 - random_share) * guess + random_share * random_gram, rows)


def _fit(equations: ClientEquations, start: Array) -> Array | None:
    """Improve the start by multiple shooting, then fit S; `None` where the search gets stuck.

    Args:
        equations: the simulated client's equations.
        start: S at the start, in the basis and the units of the equations.

    Returns:
        The parameters of S, then the inner counts where FAPS does not fix them.
    """
    shot = MultipleShooting(equations).search(equations.parametrisation.coordinates(start), _SHOOTING_JACOBIANS)
    if not shot.norm < _FAILED:
        return None
    counts = shot.counts if equations.algorithm.inner_steps is None else np.zeros(0)
    result = levenberg_marquardt(
        equations.linearised,
        np.concatenate([shot.x, counts]),
        steps=_JACOBIANS,
        goal=GOAL,
        patience=_PATIENCE,
        residual=equations.residual,
        stepper=GeodesicAcceleration(equations.residual),
    )
    return result.point if result.norm < _FAILED else None


def _accepted(equations: ClientEquations, x: Array, starts: int, largest_residual: float) -> FAPSSolution | None:
    """Fit all rounds by Gauss-Newton steps; `None` where the result need not be S.

    Args:
        equations: the equations of all rounds that are fitted.
        x: parameters at which a search ended.
        starts: number of starts so far, for the report.
        largest_residual: norm of the residuals above which a fit is not accepted.
    """
    size = equations.parametrisation.count
    fit = gauss_newton(equations.linearised, x, _GAUSS_NEWTON_STEPS)
    if not fit.norm < largest_residual:
        return None
    # J = Q (U diag(s) V^T) diag(lengths): columns are scaled, since parameters differ in size by decades
    lengths = np.maximum(np.linalg.norm(fit.jacobian, axis=0), 1e-300)
    _, s, Vt = np.linalg.svd(np.linalg.qr(fit.jacobian / lengths, mode="r"))
    unknowns = equations.parametrisation.determined + len(x) - size
    rank = min(int(np.sum(s > _FULL_RANK * s[0])), unknowns)
    # rows v_i^T / s_i / lengths, restricted to S: noise of standard deviation sigma in the residuals moves the
    # parameters of S by sigma times the Frobenius norm of these rows, root mean square
    scaled_directions = Vt[:rank, :size] / s[:rank, None] / lengths[:size]
    degrees_of_freedom = max(len(fit.jacobian) - unknowns, 1)
    possible_error = (
        fit.norm
        / math.sqrt(degrees_of_freedom)
        * float(np.linalg.norm(scaled_directions) / np.linalg.norm(fit.point[:size]))
    )
    exact = fit.norm < SINGLE_PROOF
    if rank < unknowns or not possible_error < (_LARGEST_HIDDEN if exact else _LARGEST_HIDDEN_BY_NOISE):
        return None
    notes = {
        "residual": fit.norm,
        "starts": starts,
        "inner counts": fit.point[size:].round(6).tolist(),
        "hidden error": possible_error,
    }
    gram, method = (
        equations.parametrisation.matrix(fit.point[:size]),
        "exact fit" if exact else "fit to noise, not proven",
    )
    return FAPSSolution(equations.restored(gram), method, fit.norm, rank, unknowns, float(s[0] / s[rank - 1]), notes)
