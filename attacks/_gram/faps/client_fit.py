"""Reconstruct a FAPS client's Gram matrix S by fitting a simulated client to its first messages.

`consensus_attack` calls `fit_client` where a view shows a single client. FAPS is federated PCA. In round k the server
broadcasts a basis Z_k, orthonormal (features, rank), and the client keeps a subspace X_k of the same shape, X_0 = Z_0.
From X = X_{k-1} it iterates V <- orth(H V), c_k times, and the last V is X_k. It sends Y_k:

    H = S + X W^T + W X^T + beta Z_k Z_k^T,    W = -(I - X X^T) S X,    beta = beta_scale lambda_1(S)
    Y_k = beta X_k X_k^T Z_k - X_k W_k^T Z_k - W_k X_k^T Z_k,           W_k the W at X_k

It also sends tr(Z_k^T S Z_k). The unknowns are S and, where the client stops its inner iterations by a rule, their
numbers c_k (inner counts), taken as real numbers. The residuals are the simulated less the observed Y_k, traces and
lambda_1(S), which the first message shows (`client_equations`). The fit goes in steps:

1. A start near the truth: `near_consensus`, or `low_rank_estimate` where the client has few rows, so that S has low
   rank and can be written in a small basis of the messages' span (`reduced` leads there, `restored` back).
2. The start is improved in one of two ways: by fitting more and more rounds, or by multiple shooting, in which the
   subspaces X_k of all rounds are unknown at first, too.
3. Gauss-Newton steps bring the residuals of all rounds to round-off. That is a proof where the Jacobian has full rank
   and is well enough conditioned for that residual. A small residual alone is no proof: residuals of 1e-5 occur with
   relative errors of S of 0.9.
4. If the residual may be rounding or noise of the messages, `noise_weighted_fit` takes it into account.

`equations.parametrisation` writes S as a function of `count` parameters. Where S has full rank these are its entries
(`SymmetricMatrices`). Where its rank is low they are those of the factor F of S = F F^T; F is free up to a rotation, so
that only `determined` directions of the parameters change S. A point of the search holds these parameters, then the
inner counts; `equations.with_counts` appends the counts that the stop rule gives for S. `equations.probes` holds the
Z_k, one for each round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS
from securefed.algorithms._pca.server import PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._fitting.levenberg_marquardt import (
    GeodesicAcceleration,
    StallLimit,
    gauss_newton,
    levenberg_marquardt,
    newton_step,
)
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.faps.client_equations import ClientEquations
from securefed.attacks._gram.faps.fit_plan import FEWEST, needed_rounds
from securefed.attacks._gram.faps.low_rank_estimate import low_rank_estimate
from securefed.attacks._gram.faps.message_span import first_message_noise, is_exact
from securefed.attacks._gram.faps.multiple_shooting import MultipleShooting
from securefed.attacks._gram.faps.near_consensus import evenly_spaced, largest_eigenvalue, near_consensus
from securefed.attacks._gram.faps.noise_weighted_fit import most_likely
from securefed.attacks._gram.faps.received_messages import is_single_precision
from securefed.attacks._gram.faps.simulated_client import rule_counts
from securefed.attacks._gram.faps.solution import FAPSSolution
from securefed.attacks._gram.linear import nearest_psd

GOAL, PROOF, SINGLE_PROOF = 1e-11, 1e-9, 1e-6
"""Norms of the relative residuals of all rounds: at which the search stops and Gauss-Newton steps follow; below which a
fit counts as proven; the same where the messages are float32 numbers, whose rounding alone leaves 1e-7."""
_STAGES = (FEWEST, 3, 4, 5, 6, 8, 11)
"""Numbers of first rounds that are fitted in turn. The simulation magnifies errors of S from round to round, so that
few rounds are fitted from a poor start, and their fit is a good start for more rounds.
"""
_LARGEST_START = 10.0
"""Largest inner count that a fit begins with. Under a poor start of S the stop rule would iterate up to FAPS' cap,
where the messages no longer depend on the count. On digits, values from 3 to 20 solve about the same clients.
"""
_SHOOTING_JACOBIANS, _STAGE_JACOBIANS, _LAST_STAGE_JACOBIANS, _GAUSS_NEWTON_STEPS = 30, 30, 100, 6
"""Most Jacobians of multiple shooting, of a stage and of the last stage, and number of Gauss-Newton steps. Runs that
end well take a third of them."""
_FAILED = 1e-2
"""A search that ends above this residual has failed: solved ones end below 1e-8, stuck ones at .06 to 1."""
_PATIENCE = StallLimit(1e-2, far=6, close=40)
"""A search ends when six Jacobians have not halved its residual while that is above 1e-2. Below, forty are allowed,
since another start would cost as much.
"""
_FULL_RANK = 1e-11
"""Singular values below this share of the largest, columns scaled to unit length, count as zero."""
_LARGEST_HIDDEN = 1e-2
"""A fit counts as proven only if the relative error of S that its residual, taken as noise, would cause is below this.
"""
_MOST_UNEVEN, _FARTHEST, _MOST_NOISE = 4.0, 0.5, 10.0
"""Residuals are taken for errors of the messages under three conditions: no round's residual deviates from the others'
by more than _MOST_UNEVEN standard deviations, the relative distance of S from the near-consensus estimate is at most
_FARTHEST, and the residuals are at most _MOST_NOISE times the first message's errors. Wrong minima of the fit violate
one of them.
"""


def fit_client(rounds: Sequence[RoundView], algorithm: FAPS, rows: int, starts: int, limit: int) -> FAPSSolution | None:
    """Fit a simulated client to the first messages of one client.

    The start is estimated from all rounds. If the rank of S is low, the fit reads only as many rounds as determine S.
    Otherwise it reads all rounds whose beta is known to the attacker (FAPS may adapt it later in a run), which improves
    the start of multiple shooting. Starts are fitted in turn by the two ways of the module: even ones (0, 2, ...) by
    more and more rounds, odd ones by multiple shooting.

    Args:
        rounds: the client's messages from its first contribution on.
        algorithm: the FAPS that the client runs.
        rows: public bound on the rank of S; 0 for none.
        starts: largest number of starts; all but the first two are disturbed at random.
        limit: largest number of unknowns of S for which a fit is tried.

    Returns:
        The first fit that is proven, or whose residual looks like noise of the messages; `None` where no start ends at
        one, or S has too many unknowns.
    """
    count, parametrisation = needed_rounds(algorithm, rounds, rows)
    if count < FEWEST or parametrisation.determined > limit:
        return None
    scale = largest_eigenvalue(rounds[0], algorithm.beta_scale)
    estimate = near_consensus(evenly_spaced(rounds), algorithm.beta_scale, rows).gram
    full_rank = isinstance(parametrisation, SymmetricMatrices)
    equations = ClientEquations.of(rounds if full_rank else rounds[:count], algorithm, rows, scale)
    guess = equations.reduced(estimate) if full_rank else low_rank_estimate(equations, estimate, rounds)
    proven_below = SINGLE_PROOF if all(is_single_precision(o.message[PRODUCT]) for o in rounds) else PROOF
    may_be_noised = first_message_noise(rounds[0]) is None or not is_exact(rounds[0])  # `None`: it cannot be measured
    for attempt, start in enumerate(_starts(guess, rows, starts)):
        x = _fit_by_shooting(equations, start) if attempt % 2 else _fit_round_by_round(equations, start, count)
        if x is None:
            continue
        fit = _accepted(equations, x, attempt + 1, proven_below)
        if may_be_noised and (fit is None or fit.residual >= PROOF):  # no proof, or one of float32 messages only
            fit = _noise_weighted(equations, rounds, rows, x, estimate, attempt + 1, proven_below) or fit
        if fit is not None:
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
    if full_rank or parametrisation.determined > limit or not is_exact(rounds[0]):
        return None
    estimate = near_consensus(evenly_spaced(rounds), algorithm.beta_scale, rows)
    equations = ClientEquations.of(rounds[:count], algorithm, rows, estimate.scale)
    return equations.restored(low_rank_estimate(equations, estimate.gram, rounds))


def error_allowed(rounds: Sequence[RoundView], algorithm: FAPS, rows: int, gram: Array) -> float:
    """Return the relative error of S that the messages' own rounding or noise causes, to first order.

    It is the length of the Gauss-Newton step that starts at the true S. Tests and benchmarks, which know the true S,
    judge attacks by it, whatever their method.

    Args:
        rounds: one client's messages from its first on.
        algorithm: the FAPS that the client runs.
        rows: public bound on the rank of S; 0 for none.
        gram: the client's S.
    """
    equations = ClientEquations.of(rounds, algorithm, rows, largest_eigenvalue(rounds[0], algorithm.beta_scale))
    size, S = equations.parametrisation.count, equations.reduced(gram)
    x = equations.with_counts(equations.parametrisation.coordinates(S), S)
    step = newton_step(*equations.linearised(x, len(equations.probes)))[:size]
    moved_gram = equations.parametrisation.matrix(x[:size] + step)
    return float(np.linalg.norm(moved_gram - S) / np.linalg.norm(S))


def _starts(guess: Array, rows: int, number: int) -> Iterator[Array]:
    """Yield the guess twice, once for each way of fitting; then the guess mixed with ever more of a random matrix.

    The random matrix F F^T has a decaying spectrum: the normal columns of F shrink by e^-1 to e^-3, first to last.
    """
    rng, size = np.random.default_rng(0), len(guess)
    rank = min(size, rows or size)
    for attempt in range(number):
        if attempt < 2:
            yield guess
            continue
        factor = rng.normal(size=(size, rank)) * np.exp(-rng.uniform(1, 3) * np.arange(rank) / size)
        random_gram = factor @ factor.T
        random_gram *= np.linalg.norm(guess) / np.linalg.norm(random_gram)
        random_share = attempt / number
        yield nearest_psd((1 - random_share) * guess + random_share * random_gram, rows)


def _fit_round_by_round(equations: ClientEquations, start: Array, count: int) -> Array | None:
    """Fit the first rounds, then more and more of them up to `count`; `None` where a stage gets stuck.

    Args:
        equations: the simulated client's equations.
        start: S at the start, in the basis and the units of the equations.
        count: number of rounds to fit in the end.

    Returns:
        The parameters of S, then the inner counts where FAPS does not fix them.
    """
    size, stages = equations.parametrisation.count, (*(stage for stage in _STAGES if stage < count), count)
    x, counts = equations.parametrisation.coordinates(start), np.zeros(0)
    follows_rule = equations.algorithm.inner_steps is None
    if follows_rule:
        counts = np.minimum(rule_counts(start, equations.received(count), equations.algorithm), _LARGEST_START)
    for stage in stages:
        stage_counts = stage - 1 if follows_rule else 0  # unknown inner counts of rounds 1 .. stage - 1
        point = _fit(
            equations,
            np.concatenate([x, counts[:stage_counts]]),
            stage,
            _LAST_STAGE_JACOBIANS if stage == count else _STAGE_JACOBIANS,
        )
        if point is None:
            return None
        x, counts = point[:size], np.concatenate([point[size:], counts[stage_counts:]])
    return np.concatenate([x, counts])


def _fit_by_shooting(equations: ClientEquations, start: Array) -> Array | None:
    """Improve the start by multiple shooting over all rounds, then fit them; `None` where it gets stuck.

    Start and result are those of `_fit_round_by_round`.
    """
    rounds = len(equations.probes)
    shot = MultipleShooting(equations).search(equations.parametrisation.coordinates(start), _SHOOTING_JACOBIANS)
    if not shot.norm < _FAILED:
        return None
    counts = shot.counts if equations.algorithm.inner_steps is None else np.zeros(0)
    return _fit(equations, np.concatenate([shot.x, counts]), rounds, _LAST_STAGE_JACOBIANS)


def _fit(equations: ClientEquations, start: Array, count: int, steps: int) -> Array | None:
    """Fit the first `count` rounds; `None` where the search gets stuck."""

    def residual(values: Array) -> Array:
        return equations.residual(values, count)

    result = levenberg_marquardt(
        lambda values: equations.linearised(values, count),
        start,
        steps=steps,
        goal=GOAL,
        patience=_PATIENCE,
        residual=residual,
        stepper=GeodesicAcceleration(residual),
    )
    return result.point if result.norm < _FAILED else None


def _accepted(equations: ClientEquations, x: Array, starts: int, proof: float) -> FAPSSolution | None:
    """Fit all rounds to round-off by Gauss-Newton steps; `None` where the result is not proven to be S.

    Args:
        equations: the equations of all rounds that are fitted.
        x: parameters at which a search ended.
        starts: number of starts so far, for the report.
        proof: norm of the residuals below which a fit counts as proven.
    """
    size, rounds = equations.parametrisation.count, len(equations.probes)
    x = equations.with_counts(x, equations.parametrisation.matrix(x[:size]))
    fit = gauss_newton(lambda values: equations.linearised(values, rounds), x, _GAUSS_NEWTON_STEPS)
    if not fit.norm < proof:
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
    if rank < unknowns or not possible_error < _LARGEST_HIDDEN:
        return None
    gram, counts = equations.gram_and_counts(fit.point)
    notes = _notes(fit.norm, counts, possible_error, starts)
    return FAPSSolution(gram, "exact fit", fit.norm, rank, unknowns, float(s[0] / s[rank - 1]), notes)


def _noise_weighted(
    equations: ClientEquations,
    rounds: Sequence[RoundView],
    rows: int,
    x: Array,
    estimate: Array,
    starts: int,
    proof: float,
) -> FAPSSolution | None:
    """Return the most likely fit near x; `None` where its residuals do not look like errors of the messages.

    What they must look like is stated at `_MOST_UNEVEN`.

    Args:
        equations: the equations of all rounds that are fitted.
        rounds: the client's messages from its first on.
        rows: bound on the rank of S; 0 for none.
        x: parameters at which a search ended.
        estimate: estimate of S near consensus, at which the fit leaves what noise hides.
        starts: number of starts so far, for the report.
        proof: norm of the residuals below which a fit counts as proven.
    """
    fitted, first_noise = rounds[: len(equations.probes)], first_message_noise(rounds[0])
    gram, counts = equations.gram_and_counts(x)
    weighted = most_likely(fitted, equations.algorithm, rows, gram, counts, estimate)
    if weighted is None or weighted.unevenness > _MOST_UNEVEN:
        return None
    if first_noise is not None and weighted.noise > _MOST_NOISE * first_noise:
        return None
    if np.linalg.norm(weighted.gram - estimate) > _FARTHEST * np.linalg.norm(estimate):
        return None
    noise = {} if weighted.residual < proof else {"noise": weighted.noise}
    return FAPSSolution(
        weighted.gram,
        "fit to noise, not proven" if noise else "exact fit",
        weighted.residual,
        weighted.rank,
        weighted.unknowns,
        weighted.condition,
        _notes(weighted.residual, weighted.counts, weighted.error, starts) | noise,
    )


def _notes(residual: float, counts: Array, error: float, starts: int) -> dict[str, object]:
    """Return the diagnostics of a fit; `error` is the relative error of S that its residual would leave as noise."""
    return {"residual": residual, "starts": starts, "inner counts": counts.round(6).tolist(), "hidden error": error}
