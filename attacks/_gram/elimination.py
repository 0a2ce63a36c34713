"""Solve for a Gram matrix S from blocks G_k = (I - U_k U_k^T) S U_k that leave each Theta_k = U_k^T S U_k unknown.

Attacks on FAPS (`faps/round_by_round`), FedPG and FedPE (`_duals`) learn such blocks from the messages of a federated
PCA, round by round, and call this to combine them. U_k, (features, p), has known orthonormal columns, and

    S U_k = G_k + U_k Theta_k,    Theta_k symmetric, (p, p).

S is eliminated: two kinds of linear equations for the Theta_k alone follow from it.

    symmetry of S:                   U_j^T G_k + U_j^T U_k Theta_k = (U_k^T G_j + U_k^T U_j Theta_j)^T   for j < k
    null vectors of [U_1 .. U_K]:    sum_k (G_k + U_k Theta_k) N_k = 0   where   sum_k U_k N_k = 0

S + c I satisfies them for every number c (the shift), because the blocks G_k do not change with c. So c must be found
otherwise: from equations of the Theta_k themselves, from the trace of S, or from the least trace of a positive
semidefinite completion. With all S U_k known, S follows by `linear.solve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag, lstsq
from scipy.optimize import brentq

from securefed._tensors import Array
from securefed.attacks._gram.linear import GramSolution, solve, span
from securefed.errors import TranscriptError

_NULL_DIRECTION = 1e-10
"""Singular values of [U_1 .. U_K] below this share of the largest count as zero: their vectors are the N_k."""
_FIT_CUTOFF = 1e-11
"""Singular values of the equations for the Theta_k below this share of the largest count as zero."""


@dataclass(frozen=True)
class InnerEquations:
    """Linear equations of one Theta_k: sum_q theta_q images_q = right, theta_q its coordinates in `symmetric_basis`.

    Attributes:
        images: image of each matrix of `symmetric_basis`, (p (p + 1) / 2, ...); every entry beyond the first axis is
            one equation.
        right: right-hand sides, (...).
    """

    images: Array
    right: Array


@dataclass(frozen=True)
class EliminatedProducts:
    """The products S U_k, or (S + c I) U_k with unknown c where no equations of the Theta_k themselves were given.

    Attributes:
        probes: [U_1 .. U_K], (features, K p).
        products: [S U_1 .. S U_K], (features, K p), up to the addition of c times the probes.
        rank: rank of the linear system for the Theta_k, with c fixed.
        unknowns: number of unknowns of that system.
        condition: condition number of that system.
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
    """Solve for the Theta_k by least squares over the equations of the module.

    Args:
        bases: U_k, (features, p) with orthonormal columns.
        blocks: G_k = (I - U_k U_k^T) S U_k, (features, p).
        inner: further equations of each Theta_k, in order of k. Without them c is not determined, and the traces of the
            Theta_k are set to sum to zero.
    """
    U, G = np.stack(bases), np.stack(blocks)
    basis = symmetric_basis(U.shape[2])
    probes = np.hstack(bases)
    transpose_rows, transpose_right = _transposes(U, G, basis)
    null_rows, null_right = _vanishing(U, G, basis, probes)
    inner_rows, inner_right = _inner_block(inner) if inner else _zero_trace(len(U), basis)
    A, b = (
        np.vstack([transpose_rows, null_rows, inner_rows]),
        np.concatenate([transpose_right, null_right, inner_right]),
    )
    x, _, rank, sv = lstsq(A, b, cond=_FIT_CUTOFF)
    # Theta_k = sum_q theta_kq E_q
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
    eliminated: EliminatedProducts, *, rows: int = 0, trace: float | None = None
) -> tuple[GramSolution, float]:
    """Solve for S and for the shift c, which the elimination leaves open.

    c follows from `trace` where that is known and the probes span all features. Elsewhere it is the c whose positive
    semidefinite completion has the least trace, which favours a low rank.

    Args:
        eliminated: products of S with the probes, up to the shift.
        rows: upper bound on the rank of S; 0 for none.
        trace: trace of S, where it is known.

    Returns:
        The solution, and the shift that was added.
    """
    shift = least_trace_shift(eliminated)
    solution = solve(eliminated.probes, eliminated.at(shift), rows=rows)
    if trace is not None and solution.rank == len(eliminated.probes):
        # The probes span all features, so S follows from the products alone and a bound on its rank adds nothing.
        shift += (trace - float(np.trace(solution.gram))) / len(eliminated.probes)
        solution = solve(eliminated.probes, eliminated.at(shift))
    return solution, shift


def least_trace_shift(eliminated: EliminatedProducts) -> float:
    """Return the c at which the least positive semidefinite completion of S + c I has the least trace.

    Outside the span of the probes S is unknown; the completion is the least matrix there that keeps all of S + c I
    positive semidefinite (a Schur complement). Q is an orthonormal basis of the probes' span, Q^T S Q = V diag(l) V^T
    and b_i = ||(I - Q Q^T) S Q v_i||^2. The completion has trace sum_i (l_i + c) + sum_i b_i / (l_i + c), which is
    convex in c > -min l; its root is bracketed.

    Args:
        eliminated: products of S with the probes, up to the shift.

    Raises:
        TranscriptError: no direction is more than noise, as where messages do not belong to these broadcasts.
    """
    probe_span = span(eliminated.probes, eliminated.products)
    if not probe_span.basis.size:
        raise TranscriptError("No direction of the probes shows more than noise: the messages are of no one matrix.")
    values, vectors = np.linalg.eigh(probe_span.inner)  # l_i and v_i of Q^T S Q
    energy = np.sum((probe_span.outer @ vectors) ** 2, axis=0)  # b_i; `outer` is (I - Q Q^T) S Q
    scale = float(np.abs(values).max()) + float(np.sqrt(energy.max(initial=0.0))) or 1.0
    low = -float(values[0]) + 1e-13 * scale

    def slope(shift: float) -> float:
        """Return the derivative of the trace by c."""
        return float(len(values) - np.sum(energy / (values + shift) ** 2))

    if slope(low) >= 0:
        return low
    # At the upper end the slope is positive: every l_i + c is at least 2 n scale there, and every b_i at most scale^2.
    return float(brentq(slope, low, low + 2 * len(values) * scale))


def symmetric_basis(size: int) -> Array:
    """Return an orthonormal basis E_q of the symmetric matrices, (size (size + 1) / 2, size, size)."""
    i, j = np.triu_indices(size)
    out = np.zeros((len(i), size, size))
    weight = np.where(i == j, 1.0, np.sqrt(0.5))
    out[np.arange(len(i)), i, j] = out[np.arange(len(i)), j, i] = weight
    return out


def _transposes(U: Array, G: Array, basis: Array) -> tuple[Array, Array]:
    """Return the equations U_j^T G_k + C Theta_k = G_j^T U_k + Theta_j C for j < k, with C = U_j^T U_k.

    Args:
        U: U_k, (K, features, p).
        G: G_k, (K, features, p).
        basis: E_q of `symmetric_basis`.

    Returns:
        The matrix, (pairs p^2, K p (p + 1) / 2), and the right-hand sides. The unknowns are the coordinates of all
        Theta_k, one after the other.
    """
    count, _, p = U.shape
    j, k = np.triu_indices(count, 1)
    C, D = np.einsum("jna,knb->jkab", U, U), np.einsum("jna,knb->jkab", U, G)  # U_j^T U_k and U_j^T G_k
    out = np.zeros((len(j), p, p, count, len(basis)))
    pairs = np.arange(len(j))
    # entry (a, c) of the equation of a pair m = (j, k): of C E_q for Theta_k, less that of E_q C for Theta_j
    out[pairs, :, :, k] = np.einsum("mab,qbc->macq", C[j, k], basis)
    out[pairs, :, :, j] -= np.einsum("qab,mbc->macq", basis, C[j, k])
    right = D[k, j].transpose(0, 2, 1) - D[j, k]
    return out.reshape(len(j) * p * p, count * len(basis)), right.reshape(-1)


def _zero_trace(count: int, basis: Array) -> tuple[Array, Array]:
    """Return the equation that fixes the shift: the traces of the Theta_k sum to zero."""
    return np.tile(np.einsum("qaa->q", basis), count)[None, :] / np.sqrt(count), np.zeros(1)


def _inner_block(inner: Sequence[InnerEquations]) -> tuple[Array, Array]:
    """Stack the further equations of all Theta_k, which are block diagonal."""
    rows = [equations.images.reshape(len(equations.images), -1).T for equations in inner]
    return block_diag(*rows), np.concatenate([equations.right.reshape(-1) for equations in inner])


def _vanishing(U: Array, G: Array, basis: Array, probes: Array) -> tuple[Array, Array]:
    """Return the equations sum_k (G_k + U_k Theta_k) N_k = 0 for the null vectors N of [U_1 .. U_K].

    Arguments and results are as in `_transposes`; `probes` is [U_1 .. U_K].
    """
    count, features, p = U.shape
    _, s, Vt = np.linalg.svd(probes)
    N = Vt[int(np.sum(s > _NULL_DIRECTION * s[0])) :].reshape(-1, count, p)
    # null vector m, feature n: of U_k E_q N_k
    out = np.einsum("kna,qab,mkb->mnkq", U, basis, N, optimize=True)
    right = -np.einsum("kna,mka->mn", G, N)
    return out.reshape(len(N) * features, count * len(basis)), right.reshape(-1)
