"""Estimate the Gram matrix S of a client of few rows from FAPS' messages, without a simulation: the start of the fit.

Near consensus S satisfies, with an error that grows with the distance of the client's subspace from Z_k,

    (I - Z_k Z_k^T) S Z_k = (I - Z_k Z_k^T) Y_k,    tr(Z_k^T S Z_k) = the scalar,    lambda_1(S) = beta_0 / beta_scale.

`near_consensus` solves the first two, which are linear, for any symmetric matrix, and projects on the matrices of low
rank. Here all three are solved among the matrices F F^T of low rank, in the span of the messages, by
Levenberg-Marquardt with a normal prior on the entries of S; on clients of 8 rows the error is a third of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.operators import off
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._engine.fit import ForwardSimulation
from securefed.attacks._fitting.levenberg_marquardt import levenberg_marquardt
from securefed.attacks._gram.coordinates import GramParametrisation
from securefed.attacks._gram.faps.client_equations import ClientEquations
from securefed.attacks._gram.faps.near_consensus import block_deviations, evenly_spaced

_ROUNDS, _STEPS, _LEAST = 12, 60, 1e-3
"""Most rounds that are read, most Jacobians, and the relative decrease of the residual below which the search ends. Its
result is only a start, which need not be accurate.
"""
_EXACT, _CLOSEST = 1e-3, 1e-4
"""Standard deviations, in units of lambda_1(S), by which residuals are divided: that of the scalars and of lambda_1,
which are known exactly, and the least of an entry of (I - Z_k Z_k^T) Y_k. They are not zero, so that the search is well
conditioned.
"""


def low_rank_estimate(equations: ClientEquations, estimate: Array, rounds: Sequence[RoundView]) -> Array:
    """Estimate S among the matrices of low rank, in the basis and the units of `equations`.

    Args:
        equations: equations of the rounds that `client_fit` will fit. They give an orthonormal basis of the messages'
            span, the parametrisation S = F F^T, whose rank is bounded by the number of rows, and the unit lambda_1(S).
        estimate: estimate of S by `near_consensus`, (features, features), from which the search starts.
        rounds: all of the client's rounds.

    Returns:
        S, (directions, directions), with directions the number of columns of `equations.basis`.
    """
    parametrisation = equations.parametrisation
    problem = _NearConsensusEquations.of(equations, evenly_spaced(rounds, _ROUNDS))
    start = parametrisation.coordinates(equations.reduced(estimate))
    linearised = ForwardSimulation(problem, parametrisation.count).sent_and_tangents
    fit = levenberg_marquardt(linearised, start, steps=_STEPS, goal=0.0, least=_LEAST)
    S: Array = parametrisation.matrix(fit.point)
    return S


@dataclass(frozen=True)
class _NearConsensusEquations:
    """Residuals of the module's equations, then the entries of S for the prior, all over their standard deviations.

    All is in the basis and the units of a `ClientEquations`: lambda_1(S) = 1, and (directions, directions) matrices.

    Attributes:
        parametrisation: parametrisation of S.
        probes: Z_k, (rounds, directions, rank).
        blocks: (I - Z_k Z_k^T) Y_k, (rounds, directions, rank).
        deviations: standard deviations of the blocks' entries, (rounds,).
        captured: tr(Z_k^T S Z_k), (rounds,).
    """

    parametrisation: GramParametrisation
    probes: Array
    blocks: Array
    deviations: Array
    captured: Array

    @classmethod
    def of(cls, equations: ClientEquations, rounds: Sequence[RoundView]) -> _NearConsensusEquations:
        """Read these rounds, in the basis and the units of `equations`; off(Z, Y) is (I - Z Z^T) Y."""
        Z = np.stack([o.broadcast[BASIS] for o in rounds])
        Y = np.stack([o.message[PRODUCT] for o in rounds])
        return cls(
            equations.parametrisation,
            equations.basis.T @ Z,
            equations.basis.T @ np.stack([off(z, y) for z, y in zip(Z, Y, strict=True)]) / equations.scale,
            np.maximum(block_deviations(Z, Y), _CLOSEST),
            np.array([float(o.message[CAPTURED]) for o in rounds]) / equations.scale,
        )

    def __call__(self, x: Any) -> Any:
        """Return the residuals, (equations,)."""
        S = self.parametrisation.matrix(x)
        size = len(S)
        residuals = [(np.linalg.eigvalsh(S)[-1:] - 1) / _EXACT]
        for Z, block, deviation, captured in zip(self.probes, self.blocks, self.deviations, self.captured, strict=True):
            SZ = S @ Z
            residuals += [
                (off(Z, SZ) - block).reshape(-1) / deviation,
                (np.vdot(Z, SZ) - captured).reshape(1) / _EXACT,
            ]
        i, j = np.triu_indices(size)
        # the prior: entries of S / lambda_1 have variance 1 / size^2; those off the diagonal occur twice in S
        residuals.append(size * np.where(i == j, 1.0, np.sqrt(2.0)) * S[i, j])
        return np.concatenate(residuals)
