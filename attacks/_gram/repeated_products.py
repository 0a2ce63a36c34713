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
to the messages by simulating the client with Levenberg-Marquardt (`polish`). `local_power` calls both.

orth(N) is the Q of N = Q R. Derivatives dV of a matrix by all unknowns are one array (features, unknowns, columns), its
tangents; left(M, dV) is M dV, and complete(N, dN) returns orth(N) with its tangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.operators import orth
from securefed.attacks._fitting.levenberg_marquardt import GeodesicAcceleration, levenberg_marquardt
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.fitted_gram import FittedGram
from securefed.attacks._gram.linear import solve
from securefed.attacks._gram.tangents import complete, left
from securefed.errors import DivergenceError

GOAL, _JACOBIANS = 1e-13, 60
"""Relative residual at which the fit stops, and its most Jacobians for each number of columns."""
_NULL_DIRECTION = 1e-10
"""Singular values of [Z_1 .. Z_K] below this share of the largest count as zero."""
_FULL_RANK = 1e-12
"""Singular values of the Jacobian below this share of the largest count as zero."""


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


def polish(rounds: Sequence[LocalPowerRound], start: Array) -> FittedGram:
    """Fit a symmetric S to all rounds, which may differ in q, by simulating their messages.

    In Gram-Schmidt a column depends only on the columns before it, so the first c columns of all messages form a
    problem of their own. It is easier for smaller c, so the fit starts with one column and adds one at a time.
    The fit works in the basis of the start's eigenvectors, because the search scales each coordinate separately and
    small eigenvalues are far less certain than large ones.

    Args:
        rounds: one client's messages, in coordinates of a basis of the range of S.
        start: S to begin with, in the same coordinates.
    """
    values, frame = np.linalg.eigh(start)
    scale = float(values[-1])
    coordinates = SymmetricMatrices.of(len(start))
    point = coordinates.coordinates(np.diag(values / scale))
    rotated = [replace(r, probe=frame.T @ r.probe, product=frame.T @ r.product) for r in rounds]
    fits = []
    for columns in range(1, rotated[0].product.shape[1] + 1):
        problem = RepeatedProducts([replace(r, product=r.product[:, :columns]) for r in rotated], coordinates, scale)
        stepper = GeodesicAcceleration(problem.residual)
        fits.append(
            levenberg_marquardt(
                problem.linearised, point, steps=_JACOBIANS, goal=GOAL, residual=problem.residual, stepper=stepper
            )
        )
        point = fits[-1].point
    s = np.linalg.svd(np.linalg.qr(fits[-1].jacobian, mode="r"), compute_uv=False)
    rank = int(np.sum(s > _FULL_RANK * s[0]))
    gram = scale * frame @ coordinates.matrix(point) @ frame.T
    return FittedGram(gram, fits[-1].norm, rank, coordinates.count, float(s[0] / s[rank - 1]))


@dataclass(frozen=True)
class RepeatedProducts:
    """The difference of simulated and observed messages, as a function of the coordinates of S / scale.

    Attributes:
        rounds: one client's messages.
        coordinates: parametrisation of S / scale.
        scale: size of S; messages are divided by it.
    """

    rounds: Sequence[LocalPowerRound]
    coordinates: SymmetricMatrices
    scale: float

    def residual(self, x: Array) -> Array:
        """Return the residuals of all messages; NaN where the simulation fails."""
        S = self.coordinates.matrix(x)
        try:
            return self._stack(S, [S @ self._last(S, r) for r in self.rounds])
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)

    def linearised(self, x: Array) -> tuple[Array, Array]:
        """Return `residual` and its derivative (equations, parameters)."""
        S = self.coordinates.matrix(x)
        products, rows = [], []
        for r in self.rounds:
            V, dV = r.start, np.zeros((len(r.start), len(x), r.start.shape[1]))
            for _ in range(r.steps - 1):
                V, dV = complete(S @ V, left(S, dV) + self.coordinates.times(V))
            products.append(S @ V)
            # d(S V) = S dV + dS V, (features, unknowns, columns); an equation is an entry of S V, row by row (`_stack`)
            rows.append((left(S, dV) + self.coordinates.times(V)).transpose(0, 2, 1).reshape(-1, len(x)))
        scalars = [self.coordinates.slopes(r.probe @ r.probe.T) for r in self.rounds]  # of tr(Z^T S Z) = <Z Z^T, S>
        return self._stack(S, products), np.vstack([*rows, scalars])

    def _last(self, S: Array, r: LocalPowerRound) -> Array:
        """Return V of the last local product."""
        V = r.start
        for _ in range(r.steps - 1):
            V = orth(S @ V)
        return V

    def _stack(self, S: Array, sent: Sequence[Array]) -> Array:
        """Return the residuals of products `sent` and of the traces tr(Z^T S Z), in units of `scale`."""
        residuals = [(Y - r.product / self.scale).reshape(-1) for Y, r in zip(sent, self.rounds, strict=True)]
        scalars = [float(np.vdot(r.probe, S @ r.probe)) - r.captured / self.scale for r in self.rounds]
        return np.concatenate([*residuals, scalars])


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
