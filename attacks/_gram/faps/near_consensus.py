"""Estimate a Gram matrix S from FAPS' messages near consensus, where they are linear in S.

Every attack on FAPS starts from this estimate, the posterior mean of S under a normal prior of mean 0: a ridge
regression. With P_k = Z_k Z_k^T, round k gives two observations that are linear in S,

    (I - P_k) S Z_k = (I - P_k) Y_k     with an error in proportion to the distance from consensus
    tr(P_k S) = captured_k              up to noise and rounding, at any distance

The distance is ||Z_k^T Y_k - beta I||. The size of noise and rounding is taken to be the smallest one of any round,
since at consensus the true distance is 0.
A sum over clients is treated as the message of one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.operators import off
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._gram.faps.projected_equations import ProjectedEquations
from securefed.attacks._gram.linear import nearest_psd

ROUNDS = 60
"""Most rounds that an estimate is made from; more add little and cost memory."""
_FLOOR, _SCALAR_FLOOR = 1e-6, 1e-4
"""Least standard deviations, relative to lambda_1(S), of an entry of (I - Z Z^T) S Z and of tr(Z^T S Z): they keep the
condition number of the system below 1e12.
"""
DISTANCE_FACTOR = 4.0
"""(I - Z Z^T) Y is wrong by about this times the relative distance that Z^T Y shows (measured 3 to 8 on digits)."""


@dataclass(frozen=True)
class NearConsensusEstimate:
    """An estimate of S, and how far its messages are from consensus.

    Attributes:
        gram: estimate of S, (features, features), positive semidefinite.
        scale: lambda_1(S), from the first message.
        distances: distance from consensus of each round, ||Z^T Y - beta I||_F / (rank beta), (rounds,).
    """

    gram: Array
    scale: float
    distances: Array


def largest_eigenvalue(first: RoundView, beta_scale: float) -> float:
    """Return lambda_1(S) = beta_0 / beta_scale, from beta_0 = tr(Z_0^T Y_0) / rank."""
    Z = first.broadcast[BASIS]
    beta = float(np.vdot(Z, first.message[PRODUCT])) / Z.shape[1]
    return float(max(abs(beta) / beta_scale, np.finfo(float).tiny))


def near_consensus(rounds: Sequence[RoundView], beta_scale: float, rows: int) -> NearConsensusEstimate:
    """Estimate S from all rounds.

    Args:
        rounds: observed rounds, the first one at consensus.
        beta_scale: the algorithm's beta over lambda_1(S).
        rows: bound on the rank of S; 0 for none.
    """
    Z = _orthonormal(np.stack([np.asarray(o.broadcast[BASIS], np.float64) for o in rounds]))
    Y = np.stack([np.asarray(o.message[PRODUCT], np.float64) for o in rounds])
    captured = np.array([float(o.message[CAPTURED]) for o in rounds])
    scale = largest_eigenvalue(rounds[0], beta_scale)
    features = Z.shape[1]
    distances = _distances(Z, Y)
    spread = block_deviations(Z, Y)
    scalar_spread = max(_SCALAR_FLOOR, float(distances.min()))
    blocks = np.stack([off(z, y) for z, y in zip(Z, Y, strict=True)]) / scale
    # The normal equations L(S) = R, in units of lambda_1, with sym[A] = (A + A^T) / 2; ProjectedEquations holds L:
    # L(S) = sum_k sym[(I - P_k) S P_k] / spread_k^2 + sum_k tr(P_k S) P_k / scalar_spread^2 + prior S
    # R = sum_k sym[(I - P_k) Y_k Z_k^T] / spread_k^2 + sum_k captured_k P_k / scalar_spread^2
    products_term = np.einsum("kxp,kyp->xy", spread[:, None, None] ** -2 * blocks, Z, optimize=True)
    traces = np.einsum("kxp,kyp->xy", (captured / scale / scalar_spread**2)[:, None, None] * Z, Z, optimize=True)
    prior = float(features**2)  # entries of S / lambda_1 have prior variance 1 / features^2
    system = ProjectedEquations.of(Z, spread**-2, scalar_spread**-2, prior)
    solution, _ = system.solve((products_term + products_term.T) / 2 + traces)
    return NearConsensusEstimate(scale * nearest_psd(solution, rows), scale, distances)


def block_deviations(Z: Array, Y: Array) -> Array:
    """Return the standard deviation of an entry of (I - Z Z^T) Y - (I - Z Z^T) S Z, over lambda_1(S), by round.

    Z and Y are (rounds, features, rank).
    """
    _, features, rank = Z.shape
    return np.asarray(DISTANCE_FACTOR * _distances(Z, Y) / np.sqrt(features * rank) + _FLOOR)


def evenly_spaced(rounds: Sequence[RoundView], count: int = ROUNDS) -> list[RoundView]:
    """Return at most `count` of the rounds, evenly spaced, the first always among them."""
    index = np.unique(np.linspace(0, len(rounds) - 1, min(count, len(rounds))).round().astype(int))
    return [rounds[i] for i in index]


def _orthonormal(Z: Array) -> Array:
    """Return the nearest bases with orthonormal columns, (rounds, features, rank).

    Broadcasts in float32 are orthonormal to 1e-7 only. At the condition number of the system (1e12) that would make it
    indefinite, and the estimate many times larger than S.
    """
    U, _, Vt = np.linalg.svd(Z, full_matrices=False)
    return np.asarray(U @ Vt)


def _distances(Z: Array, Y: Array) -> Array:
    """Return ||Z^T Y - beta I||_F / (rank beta) with beta = tr(Z^T Y) / rank, by round."""
    inner = Z.transpose(0, 2, 1) @ Y
    rank = Z.shape[2]
    trace = np.trace(inner, axis1=1, axis2=2)
    deviation = np.linalg.norm(inner - trace[:, None, None] / rank * np.eye(rank), axis=(1, 2))
    return np.asarray(deviation / np.maximum(np.abs(trace), np.finfo(float).tiny))
