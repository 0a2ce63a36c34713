"""Solve for S from blocks (I - U_k U_k^T) S U_k that leave each U_k^T S U_k unknown.

S U_k = G_k + U_k Theta_k with G_k known and Theta_k symmetric (p x p). S itself is eliminated, and the few entries of
the Theta_k follow from linear equations. The equations do not see S -> S + c I.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag, lstsq
from scipy.optimize import brentq

from securefed._tensors import Array
from securefed.attacks._gram.linear import TAU, GramSolution, solve, span
from securefed.errors import TranscriptError

_NULL = 1e-10
"""Combinations of the U_k below this share of the largest count as zero, so S of them must vanish."""
_FIT = 1e-11
"""Singular values of the equations below this share of the largest count as zero."""


@dataclass(frozen=True)
class InnerEquations:
    """Linear equations of one Theta_k: sum_q theta_q images_q = seen, theta its coordinates in `symmetric_basis`.

    Attributes:
        images: (p (p + 1) / 2, ...), one equation for each further entry.
        seen: right-hand sides, (...).
    """

    images: Array
    seen: Array


@dataclass(frozen=True)
class EliminatedProducts:
    """S on the observed subspaces, up to S + c I where nothing was observed of the Theta_k themselves.

    Attributes:
        probes: [U_1 .. U_K], (features, K p).
        products: S of the probes, up to c times them.
        rank: of the linear system of the Theta_k, with c fixed.
        unknowns: of that system.
        condition: of that system.
        residual: relative residual of that system.
    """

    probes: Array
    products: Array
    rank: int
    unknowns: int
    condition: float
    residual: float

    def at(self, shift: float) -> Array:
        """Return the products for S + shift I."""
        return np.asarray(self.products + shift * self.probes)


def eliminate(
    bases: Sequence[Array], blocks: Sequence[Array], inner: Sequence[InnerEquations] = ()
) -> EliminatedProducts:
    """Solve for the Theta_k.

    U_j^T S U_k is the transpose of U_k^T S U_j for all j < k, and S of a vanishing combination of the U_k vanishes.

    Args:
        bases: U_k, (features, p) with orthonormal columns.
        blocks: G_k = (I - U_k U_k^T) S U_k.
        inner: equations of the Theta_k themselves, in order; without them S + c I is not determined.

    Returns:
        S on the span of the bases.
    """
    U, G = np.stack(bases), np.stack(blocks)
    basis = symmetric_basis(U.shape[2])
    probes = np.hstack(bases)
    matrix, right = _transposes(U, G, basis)
    more, more_right = _vanishing(U, G, basis, probes)
    own, own_right = _seen_inside(inner) if inner else _gauge(len(U), basis)
    A, b = np.vstack([matrix, more, own]), np.concatenate([right, more_right, own_right])
    x, _, rank, sv = lstsq(A, b, cond=_FIT)
    theta = np.einsum("kq,qab->kab", x.reshape(len(U), -1), basis)
    return EliminatedProducts(
        probes=probes,
        products=np.hstack(list(G + U @ theta)),
        rank=int(rank),
        unknowns=A.shape[1],
        condition=float(sv[0] / sv[rank - 1]),
        residual=float(np.linalg.norm(A @ x - b)) / (float(np.linalg.norm(b)) or 1.0),
    )


def solve_shifted(
    seen: EliminatedProducts, *, rows: int = 0, trace: float | None = None, tau: float = TAU
) -> tuple[GramSolution, float]:
    """Solve for S, and for the shift c that the equations do not see.

    The shift follows from `trace` where that is known and the probes span all features. Elsewhere it is the one whose
    positive semidefinite completion has the least trace, which favours a low rank.

    Args:
        seen: S on the probes, up to the shift.
        rows: upper bound on the rank of S; 0 for none.
        trace: of S, where it is known.
        tau: smallest singular value of the probes that is used, relative to the largest.

    Returns:
        The solution, and the shift that was added.
    """
    shift = least_trace_shift(seen, tau)
    solution = solve(seen.probes, seen.at(shift), tau=tau, rows=rows)
    if trace is not None and solution.rank == len(seen.probes):
        shift += (trace - float(np.trace(solution.gram))) / len(seen.probes)
        solution = solve(seen.probes, seen.at(shift), tau=tau)
    return solution, shift


def least_trace_shift(seen: EliminatedProducts, tau: float = TAU) -> float:
    """Return the c at which the least positive semidefinite completion of S + c I has the least trace.

    With W = Q^T S Q = V diag(l) V^T and b_i = ||(I - Q Q^T) S Q v_i||^2 the completion has trace
    sum (l_i + c) + sum b_i / (l_i + c), convex in c > -l_min.

    Args:
        seen: S on the probes, up to the shift.
        tau: smallest singular value of the probes that is used, relative to the largest.

    Raises:
        TranscriptError: no direction is more than noise, as where messages do not belong to these broadcasts.
    """
    part = span(seen.probes, seen.products, tau)
    if not part.basis.size:
        raise TranscriptError("No direction of the probes shows more than noise: the messages are of no one matrix.")
    values, vectors = np.linalg.eigh(part.inner)
    energy = np.sum((part.outer @ vectors) ** 2, axis=0)
    scale = float(np.abs(values).max()) + float(np.sqrt(energy.max(initial=0.0))) or 1.0
    low = -float(values[0]) + 1e-13 * scale

    def slope(shift: float) -> float:
        return float(len(values) - np.sum(energy / (values + shift) ** 2))

    if slope(low) >= 0:
        return low
    return float(brentq(slope, low, low + 2 * len(values) * scale))


def symmetric_basis(size: int) -> Array:
    """Return an orthonormal basis of the symmetric matrices, (size (size + 1) / 2, size, size)."""
    i, j = np.triu_indices(size)
    out = np.zeros((len(i), size, size))
    weight = np.where(i == j, 1.0, np.sqrt(0.5))
    out[np.arange(len(i)), i, j] = out[np.arange(len(i)), j, i] = weight
    return out


def _transposes(U: Array, G: Array, basis: Array) -> tuple[Array, Array]:
    """Return the equations U_j^T G_k + C Theta_k = G_j^T U_k + Theta_j C for j < k, with C = U_j^T U_k."""
    count, _, p = U.shape
    j, k = np.triu_indices(count, 1)
    C, D = np.einsum("jna,knb->jkab", U, U), np.einsum("jna,knb->jkab", U, G)
    out = np.zeros((len(j), p, p, count, len(basis)))
    pairs = np.arange(len(j))
    out[pairs, :, :, k] = np.einsum("mab,qbc->macq", C[j, k], basis)
    out[pairs, :, :, j] -= np.einsum("qab,mbc->macq", basis, C[j, k])
    right = D[k, j].transpose(0, 2, 1) - D[j, k]
    return out.reshape(len(j) * p * p, count * len(basis)), right.reshape(-1)


def _gauge(count: int, basis: Array) -> tuple[Array, Array]:
    """Return the equation that fixes the shift: the traces of the Theta_k sum to zero."""
    return np.tile(np.einsum("qaa->q", basis), count)[None, :] / np.sqrt(count), np.zeros(1)


def _seen_inside(inner: Sequence[InnerEquations]) -> tuple[Array, Array]:
    rows = [own.images.reshape(len(own.images), -1).T for own in inner]
    return block_diag(*rows), np.concatenate([own.seen.reshape(-1) for own in inner])


def _vanishing(U: Array, G: Array, basis: Array, probes: Array) -> tuple[Array, Array]:
    """Return the equations sum_k (G_k + U_k Theta_k) N_k = 0 for the null vectors N of [U_1 .. U_K]."""
    count, features, p = U.shape
    _, s, Vt = np.linalg.svd(probes)
    N = Vt[int(np.sum(s > _NULL * s[0])) :].reshape(-1, count, p)
    out = np.einsum("kna,qab,mkb->mnkq", U, basis, N, optimize=True)
    right = -np.einsum("kna,mka->mn", G, N)
    return out.reshape(len(N) * features, count * len(basis)), right.reshape(-1)
