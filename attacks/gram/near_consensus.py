"""S from FAPS' messages where X_i is near Z: there Y = beta Z + (I - Z Z^T) S Z, linear in S.

A Bayesian estimate: each round says (I - Z Z^T) S Z = (I - Z Z^T) Y up to its distance from consensus, which shows
in Z^T Y (beta I at consensus); the stop-rule scalar says tr(Z^T S Z) exactly; the prior is a zero-mean S of the
size that beta gives away. The first message of a client is at consensus exactly. Sums of clients are one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from securefed.algorithms.pca.operators import off
from securefed.algorithms.pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks.base import Observation
from securefed.attacks.gram.faps_client import Symmetric
from securefed.attacks.gram.linear import nearest_psd
from securefed.tensors import Array

_FLOOR = 1e-6
_BAND = 256
_SCALAR_FLOOR = 1e-4
_AMPLIFICATION = 4.0
"""(I - Z Z^T) Y is off by about this times the relative distance that Z^T Y shows (measured 3 to 8 on digits)."""


@dataclass(frozen=True)
class Estimate:
    """What is known near consensus.

    Attributes:
        gram: estimate of S.      scale: lambda_1(S), read off the first message.
        distances: ||Z^T Y - beta I||_F / (p beta), by round.
    """

    gram: Array
    scale: float
    distances: Array


def largest_eigenvalue(first: Observation, beta_scale: float) -> float:
    """lambda_1(S) = beta_0 / beta_scale, from beta_0 = tr(Z_0^T Y_0) / p."""
    Z = first.broadcast[BASIS]
    beta = float(np.vdot(Z, first.message[PRODUCT])) / Z.shape[1]
    return float(max(abs(beta) / beta_scale, np.finfo(float).tiny))


def near_consensus(rounds: Sequence[Observation], beta_scale: float, rows: int) -> Estimate:
    """The estimate from all `rounds`, for S of rank at most `rows`."""
    Z = np.stack([o.broadcast[BASIS] for o in rounds])
    Y = np.stack([o.message[PRODUCT] for o in rounds])
    captured = np.array([float(o.message[CAPTURED]) for o in rounds])
    scale = largest_eigenvalue(rounds[0], beta_scale)
    features, rank = Z.shape[1:]
    distances = _distances(Z, Y)
    spread = _AMPLIFICATION * distances / np.sqrt(features * rank) + _FLOOR
    scalar_spread = max(_SCALAR_FLOOR, float(distances.min()))
    coordinates = Symmetric.of(features)
    projections = Z @ Z.transpose(0, 2, 1)
    normal = _normal_matrix(projections, spread**-2, coordinates)
    blocks = np.stack([off(z, y) for z, y in zip(Z, Y, strict=True)]) / scale
    pulled = np.einsum("k,kxp,kyp->xy", spread**-2, blocks, Z, optimize=True)
    right = coordinates.coordinates((pulled + pulled.T) / 2)
    traces = np.stack([coordinates.coordinates(P) for P in projections]) / scalar_spread
    normal += traces.T @ traces
    right += traces.T @ (captured / scale / scalar_spread)
    normal[np.diag_indices_from(normal)] += features**2  # prior: entries of S / lambda_1 of variance 1 / features^2
    solution = cho_solve(cho_factor(normal, lower=True, overwrite_a=True), right)
    return Estimate(scale * nearest_psd(coordinates.matrix(solution), rows), scale, distances)


def _distances(Z: Array, Y: Array) -> Array:
    inner = Z.transpose(0, 2, 1) @ Y
    rank = Z.shape[2]
    trace = np.trace(inner, axis1=1, axis2=2)
    deviation = np.linalg.norm(inner - trace[:, None, None] / rank * np.eye(rank), axis=(1, 2))
    return np.asarray(deviation / np.maximum(np.abs(trace), np.finfo(float).tiny))


def _normal_matrix(projections: Array, weights: Array, coordinates: Symmetric) -> Array:
    """sum_k w_k <E_q, (I - P_k) E_r P_k> for the basis matrices E_q, E_r: four terms of a Kronecker product.

    Only entries on and below the diagonal are set right; those above are not.
    """
    count, features, _ = projections.shape
    weighted = (weights[:, None, None] * projections).reshape(count, -1)
    complements = (np.eye(features) - projections).reshape(count, -1)
    both = (complements.T @ weighted).reshape(features, features, features, features)  # [a, b, c, d]: P'_ab P_cd
    i, j = coordinates.i, coordinates.j
    unit = np.where(i == j, 0.5, np.sqrt(0.5))
    total = np.zeros((len(i), len(i)))
    for start in range(0, len(i), _BAND):  # the lower triangle is all that a Cholesky factor reads
        rows = slice(start, start + _BAND)
        columns = slice(0, start + _BAND)
        a, b, c, d = i[rows, None], j[rows, None], i[columns], j[columns]
        band = both[a, c, b, d]
        band += both[a, d, b, c]
        band += both[b, c, a, d]
        band += both[b, d, a, c]
        total[rows, columns] = band * unit[rows, None] * unit[columns]
    return total
