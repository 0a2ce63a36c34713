"""Estimate S from FAPS' messages where X_i is near Z: there Y = beta Z + (I - Z Z^T) S Z, linear in S.

This is a Bayesian estimate. Each round shows (I - Z Z^T) S Z = (I - Z Z^T) Y up to its distance from consensus, which
shows in Z^T Y (beta I at consensus); the stop-rule scalar is tr(Z^T S Z) exactly; the prior is a zero-mean S of the
size that beta shows. The first message of a client is at consensus exactly. Sums of clients are treated as one client.
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
"""Most rounds that an estimate is made from; more add little."""
_FLOOR, _SCALAR_FLOOR = 1e-6, 1e-4
"""Least standard deviations, relative to lambda_1, of a block's entries and of a scalar: they keep the system's
condition below 1e12.
"""
DISTANCE_FACTOR = 4.0
"""(I - Z Z^T) Y is wrong by about this times the relative distance that Z^T Y shows (measured 3 to 8 on digits)."""


@dataclass(frozen=True)
class NearConsensusEstimate:
    """An estimate of S, and how far its messages are from consensus.

    Attributes:
        gram: estimate of S.
        scale: lambda_1(S), from the first message.
        distances: ||Z^T Y - beta I||_F / (p beta), by round.
    """

    gram: Array
    scale: float
    distances: Array


def largest_eigenvalue(first: RoundView, beta_scale: float) -> float:
    """Return lambda_1(S) = beta_0 / beta_scale, from beta_0 = tr(Z_0^T Y_0) / p."""
    Z = first.broadcast[BASIS]
    beta = float(np.vdot(Z, first.message[PRODUCT])) / Z.shape[1]
    return float(max(abs(beta) / beta_scale, np.finfo(float).tiny))


def near_consensus(rounds: Sequence[RoundView], beta_scale: float, rows: int) -> NearConsensusEstimate:
    """Estimate S, of rank at most `rows`, from all rounds."""
    Z = np.stack([o.broadcast[BASIS] for o in rounds])
    Y = np.stack([o.message[PRODUCT] for o in rounds])
    captured = np.array([float(o.message[CAPTURED]) for o in rounds])
    scale = largest_eigenvalue(rounds[0], beta_scale)
    features = Z.shape[1]
    distances = _distances(Z, Y)
    spread = block_deviations(Z, Y)
    scalar_spread = max(_SCALAR_FLOOR, float(distances.min()))
    blocks = np.stack([off(z, y) for z, y in zip(Z, Y, strict=True)]) / scale
    pulled = np.einsum("kxp,kyp->xy", spread[:, None, None] ** -2 * blocks, Z, optimize=True)
    traces = np.einsum("kxp,kyp->xy", (captured / scale / scalar_spread**2)[:, None, None] * Z, Z, optimize=True)
    prior = float(features**2)  # entries of S / lambda_1 of variance 1 / features^2
    system = ProjectedEquations.of(Z, spread**-2, scalar_spread**-2, prior)
    solution, _ = system.solve((pulled + pulled.T) / 2 + traces)
    return NearConsensusEstimate(scale * nearest_psd(solution, rows), scale, distances)


def block_deviations(Z: Array, Y: Array) -> Array:
    """Return standard deviations of the entries of (I - Z Z^T) Y as blocks of S, in units of lambda_1(S); (rounds,)."""
    _, features, rank = Z.shape
    return np.asarray(DISTANCE_FACTOR * _distances(Z, Y) / np.sqrt(features * rank) + _FLOOR)


def evenly_spaced(rounds: Sequence[RoundView], count: int = ROUNDS) -> list[RoundView]:
    """Return at most `count` of the rounds, evenly spaced, the first always among them."""
    index = np.unique(np.linspace(0, len(rounds) - 1, min(count, len(rounds))).round().astype(int))
    return [rounds[i] for i in index]


def _distances(Z: Array, Y: Array) -> Array:
    inner = Z.transpose(0, 2, 1) @ Y
    rank = Z.shape[2]
    trace = np.trace(inner, axis1=1, axis2=2)
    deviation = np.linalg.norm(inner - trace[:, None, None] / rank * np.eye(rank), axis=(1, 2))
    return np.asarray(deviation / np.maximum(np.abs(trace), np.finfo(float).tiny))
