"""Solve for a client's Gram matrix S from rounds of LocalPower with q > 1 local products.

LocalPower is federated PCA: in round k the server broadcasts an orthonormal basis, and the client multiplies it q times
by the Gram matrix S of its rows, orthonormalising in between. The client receives Z_k, (features, p), and sends Y_k = S
V_k, where V_k = orth(S^(q-1) Z_k) is unknown to the attacker. Orthonormalisation by Gram-Schmidt multiplies by an upper
triangular matrix from the right, so that

    S^q Z_k = Y_k R_k    with an unknown upper triangular R_k, (p, p),
    Z_j^T Y_k R_k = (Z_k^T Y_j R_j)^T    for all j and k, since S^q is symmetric.

These linear equations determine all R_k up to one common factor. With the products S^q Z_k known up to this factor,
`linear.solve` gives S^q, S is its q-th root, and the factor follows from the scalar tr(Z^T S Z), which clients send for
the stop rule (`root`). The root magnifies round-off of the small eigenvalues, so S is finally fitted
to the messages by running the client's own step (`polish`). `local_power` calls both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.localpower import LOCAL_STEPS, LocalPower
from securefed.algorithms._pca.operators import Gram
from securefed.algorithms._pca.server import BASIS, CAPTURED, PRODUCT
from securefed.algorithms._pca.ssi import GramClient
from securefed.attacks._engine.fit import Fit, ForwardSimulation, SearchLimits, fit
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.linear import solve

SEARCH = SearchLimits(jacobians=60, goal=1e-13)
"""Limits of the fit; the residual is relative to the largest eigenvalue of S."""
_NO_DRAWS = np.random.default_rng(0)
"""Stands for the client's random generator, from which LocalPower's clients draw nothing."""
_NULL_DIRECTION = 1e-10
"""Singular values of [Z_1 .. Z_K] below this share of the largest count as zero."""


@dataclass(frozen=True)
class LocalPowerRound:
    """One message of LocalPower.

    Attributes:
        probe: Z, (features, p).
        product: the first c columns of Y, (features, c); by Gram-Schmidt they depend only on the first c columns of Z.
        steps: q, the number of local products.
        captured: tr(Z^T S Z), sent for the stop rule.
    """

    probe: Array
    product: Array
    steps: int
    captured: float

    @property
    def start(self) -> Array:
        """Return the first c columns of Z, from which the product was computed, (features, c)."""
        return self.probe[:, : self.product.shape[1]]


@dataclass(frozen=True)
class TriangularFactors:
    """The products S^q Z_k, as far as the symmetry of S^q determines them.

    Attributes:
        products: [S^q Z_1 .. S^q Z_K], (features, K c), up to one positive factor.
        gap: ratio of the second smallest singular value of the equations to the smallest; the R_k are determined
            where it is large, and not where it is near 1.
    """

    products: Array
    gap: float


def factors(rounds: Sequence[LocalPowerRound]) -> TriangularFactors:
    """Solve for the R_k: their entries form the right singular vector of the smallest singular value of the equations.

    Args:
        rounds: at least two rounds of one client, all with the same q.
    """
    Z, Y = np.stack([r.start for r in rounds]), np.stack([r.product for r in rounds])
    count, _, p = Z.shape  # p here and below: the number c of columns that the products show
    a, b = np.triu_indices(p)
    triangles = np.zeros((len(a), p, p))  # basis of the upper triangular matrices
    triangles[np.arange(len(a)), a, b] = 1
    matrix = np.vstack([_transposes(Z, Y, triangles), _vanishing(Z, Y, triangles)])
    scale = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)
    # columns of unit length; the equations are homogeneous, so their triangular factor has the same null vector. It is
    # filled up with zero rows where there are fewer equations than unknowns, so that Vt holds all directions
    triangle = np.linalg.qr(matrix / scale, mode="r")
    _, s, Vt = np.linalg.svd(np.vstack([triangle, np.zeros((len(scale) - len(triangle), len(scale)))]))
    R = np.einsum("kq,qab->kab", (Vt[-1] / scale).reshape(count, -1), triangles)
    products = np.hstack(list(Y @ R))
    gap = float(s[-2] / max(s[-1], np.finfo(float).eps * s[0]))
    # the sign: tr([Z_k]^T [S^q Z_k]) is positive
    return TriangularFactors(products * np.sign(np.vdot(np.hstack(list(Z)), products)), gap)


def root(rounds: Sequence[LocalPowerRound], rows: int) -> Array:
    """Solve for S as the q-th root of S^q.

    Args:
        rounds: at least two rounds of one client, all with the same q.
        rows: upper bound on the rank of S.

    Returns:
        S, (features, features), scaled so that the sum of all tr(Z^T S Z) is the observed one.
    """
    triangular = factors(rounds)
    power = solve(np.hstack([r.start for r in rounds]), triangular.products, rows=rows).gram
    values, vectors = np.linalg.eigh(power)
    S = (vectors * np.maximum(values, 0) ** (1 / rounds[0].steps)) @ vectors.T
    captured = sum(r.captured for r in rounds)
    return np.asarray(S * (captured / max(sum(float(np.vdot(r.probe, S @ r.probe)) for r in rounds), 1e-300)))


def polish(rounds: Sequence[LocalPowerRound], start: Array, algorithm: LocalPower) -> tuple[Array, Fit]:
    """Fit a symmetric S to all rounds, which may differ in q, by running the client's own step; return S and the fit.

    The fit works in the basis of the start's eigenvectors, because the search scales each coordinate separately and
    small eigenvalues are far less certain than large ones.

    Args:
        rounds: one client's messages, in coordinates of a basis of the range of S.
        start: S to begin with, in the same coordinates.
        algorithm: the algorithm with its settings.
    """
    values, frame = np.linalg.eigh(start)
    scale = float(values[-1])
    rotated = [replace(r, probe=frame.T @ r.probe, product=frame.T @ r.product) for r in rounds]
    coordinates = SymmetricMatrices.of(len(start))
    observed = np.concatenate([np.append(r.product.reshape(-1), r.captured) for r in rotated]) / scale
    client, x = simulation(rotated, algorithm), coordinates.coordinates(np.diag(values / scale))
    found = fit([client], observed, [x], SEARCH, unit=1.0)
    return scale * frame @ coordinates.matrix(found.points[0]) @ frame.T, found


def simulation(rounds: Sequence[LocalPowerRound], algorithm: LocalPower) -> ForwardSimulation:
    """Return the client of these rounds: its messages as a function of the coordinates of its S."""
    coordinates = SymmetricMatrices.of(len(rounds[0].probe))

    def sent(x: Any) -> Any:
        S = coordinates.matrix(x)
        client, out = GramClient(Gram(S, S)), []
        for r in rounds:
            broadcast = {BASIS: r.probe, LOCAL_STEPS: np.asarray(r.steps)}
            message = algorithm.contribute(client, broadcast, _NO_DRAWS)[1]
            out += [message[PRODUCT][:, : r.product.shape[1]].reshape(-1), message[CAPTURED].reshape(1)]
        return np.concatenate(out)

    return ForwardSimulation(sent, coordinates.count)


def _transposes(Z: Array, Y: Array, triangles: Array) -> Array:
    """Return the equations Z_j^T Y_k R_k - (Z_k^T Y_j R_j)^T = 0 for j <= k, (equations, K p (p + 1) / 2).

    The unknowns are the entries of the triangular R_k, one round after the other.
    """
    count, _, p = Z.shape
    j, k = np.triu_indices(count)
    inner = np.einsum("jna,knb->jkab", Z, Y)
    out = np.zeros((len(j), p, p, count, len(triangles)))
    pairs = np.arange(len(j))
    # entry (a, c) of the equation of a pair m = (j, k), with E_q a basis matrix: of Z_j^T Y_k E_q for R_k, less that of
    # (Z_k^T Y_j E_q)^T for R_j
    out[pairs, :, :, k] = np.einsum("mab,qbc->macq", inner[j, k], triangles)
    out[pairs, :, :, j] -= np.einsum("mab,qbc->mcaq", inner[k, j], triangles)
    return out.reshape(len(j) * p * p, count * len(triangles))


def _vanishing(Z: Array, Y: Array, triangles: Array) -> Array:
    """Return the equations sum_k S^q Z_k N_k = sum_k Y_k R_k N_k = 0 for the null vectors N of [Z_1 .. Z_K]."""
    count, features, p = Z.shape
    _, s, Vt = np.linalg.svd(np.hstack(list(Z)))
    N = Vt[int(np.sum(s > _NULL_DIRECTION * s[0])) :].reshape(-1, count, p)
    # null vector m, feature n: of Y_k E_q N_k
    out = np.einsum("kna,qab,mkb->mnkq", Y, triangles, N, optimize=True)
    return np.asarray(out.reshape(len(N) * features, count * len(triangles)))
