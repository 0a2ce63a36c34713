"""S from LocalPower's rounds of q > 1 local products: Y_k = S V_k with V_k = orth(S^(q-1) Z_k), which nobody sees.

Gram-Schmidt only multiplies from the right: S^q Z_k = Y_k R_k with R_k upper triangular, (p, p). S^q is symmetric, so
Z_j^T Y_k R_k is the transpose of Z_k^T Y_j R_j: linear equations that fix all R_k up to one common factor. Then S^q
follows as S does from subspace iteration, S as its root, the factor from the stop-rule scalar tr(Z^T S Z). The root
magnifies round-off of the small eigenvalues, so S is fitted to the simulated products at last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.pca.operators import orth
from securefed.attacks.gram.coordinates import Symmetric
from securefed.attacks.gram.linear import solve
from securefed.attacks.gram.tangents import complete, left
from securefed.attacks.levenberg import Geodesic, levenberg
from securefed.errors import DivergenceError
from securefed.tensors import Array

GOAL, PROOF = 1e-13, 1e-9
_NULL = 1e-10
_FULL_RANK = 1e-12
_HIDDEN = 1e-3


@dataclass(frozen=True)
class Round:
    """One message.

    Attributes:
        probe: Z, (features, p).      product: the first c columns of Y, which depend on those of Z alone.
        steps: q.      captured: tr(Z^T S Z).
    """

    probe: Array
    product: Array
    steps: int
    captured: float

    @property
    def start(self) -> Array:
        """The columns of Z that the product comes from, (features, c)."""
        return self.probe[:, : self.product.shape[1]]


@dataclass(frozen=True)
class Factors:
    """The R_k, as far as symmetry says.

    Attributes:
        products: [S^q Z_1 .. S^q Z_K] up to one positive factor.
        gap: the second smallest singular value over the smallest; near 1 the factors are not determined.
    """

    products: Array
    gap: float


def factors(rounds: Sequence[Round]) -> Factors:
    """The R_k of rounds with one q, at least two of them, from the smallest singular vector of their equations."""
    Z, Y = np.stack([r.start for r in rounds]), np.stack([r.product for r in rounds])
    count, _, p = Z.shape
    a, b = np.triu_indices(p)
    triangles = np.zeros((len(a), p, p))
    triangles[np.arange(len(a)), a, b] = 1
    matrix = np.vstack([_transposes(Z, Y, triangles), _vanishing(Z, Y, triangles)])
    scale = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)
    triangle = np.linalg.qr(matrix / scale, mode="r")
    _, s, Vt = np.linalg.svd(np.vstack([triangle, np.zeros((len(scale) - len(triangle), len(scale)))]))
    R = np.einsum("kq,qab->kab", (Vt[-1] / scale).reshape(count, -1), triangles)
    products = np.hstack(list(Y @ R))
    gap = float(s[-2] / max(s[-1], np.finfo(float).eps * s[0]))
    return Factors(products * np.sign(np.vdot(np.hstack(list(Z)), products)), gap)


def root(rounds: Sequence[Round], rows: int) -> Array:
    """S from S^q, of rank at most `rows`."""
    found = factors(rounds)
    power = solve(np.hstack([r.start for r in rounds]), found.products, rows=rows).gram
    values, vectors = np.linalg.eigh(power)
    S = (vectors * np.maximum(values, 0) ** (1 / rounds[0].steps)) @ vectors.T
    seen = sum(r.captured for r in rounds)
    return np.asarray(S * (seen / max(sum(float(np.vdot(r.probe, S @ r.probe)) for r in rounds), 1e-300)))


@dataclass(frozen=True)
class Fitted:
    """S fitted to the simulated products.

    Attributes:
        gram: S.      misfit: norm of the relative misfits.      rank, unknowns, condition: of the Jacobian.
    """

    gram: Array
    misfit: float
    rank: int
    unknowns: int
    condition: float

    @property
    def proven(self) -> bool:
        """Whether the misfit is round-off, leaves no direction open, and bounds what the weakest one can hide."""
        return self.misfit < PROOF and self.rank == self.unknowns and self.misfit * self.condition < _HIDDEN


def polish(rounds: Sequence[Round], start: Array, steps: int) -> Fitted:
    """Fit symmetric S to all rounds, whatever their q, from `start`; probes, products and S in a frame of S's range.

    Gram-Schmidt looks back only, so the first columns are a problem of their own, the better behaved the fewer they
    are: the fit takes them one by one. Coordinates are those of the start's eigenvectors: the fit scales each by
    itself, and small eigenvalues are seen far less well than large ones.

    Args:
        steps: largest number of linearisations for each column more.
    """
    values, frame = np.linalg.eigh(start)
    scale = float(values[-1])
    coordinates = Symmetric.of(len(start))
    point = coordinates.coordinates(np.diag(values / scale))
    turned = [replace(r, probe=frame.T @ r.probe, product=frame.T @ r.product) for r in rounds]
    fits = []
    for columns in range(1, turned[0].product.shape[1] + 1):
        problem = Products([replace(r, product=r.product[:, :columns]) for r in turned], coordinates, scale)
        stepper = Geodesic(problem.residual)
        fits.append(
            levenberg(problem.linearised, point, steps=steps, goal=GOAL, residual=problem.residual, stepper=stepper)
        )
        point = fits[-1].point
    s = np.linalg.svd(np.linalg.qr(fits[-1].jacobian, mode="r"), compute_uv=False)
    rank = int(np.sum(s > _FULL_RANK * s[0]))
    gram = scale * frame @ coordinates.matrix(point) @ frame.T
    return Fitted(gram, fits[-1].norm, rank, coordinates.count, float(s[0] / s[rank - 1]))


@dataclass(frozen=True)
class Products:
    """Misfits of simulated messages as functions of the coordinates of S / scale."""

    rounds: Sequence[Round]
    coordinates: Symmetric
    scale: float

    def residual(self, x: Array) -> Array:
        S = self.coordinates.matrix(x)
        try:
            return self._stack(S, [S @ self._last(S, r) for r in self.rounds])
        except (LinAlgError, DivergenceError):
            return np.full(1, np.nan)

    def linearised(self, x: Array) -> tuple[Array, Array]:
        S = self.coordinates.matrix(x)
        sent, rows = [], []
        for r in self.rounds:
            V, dV = r.start, np.zeros((len(r.start), len(x), r.start.shape[1]))
            for _ in range(r.steps - 1):
                V, dV = complete(S @ V, left(S, dV) + self.coordinates.times(V))
            sent.append(S @ V)
            rows.append((left(S, dV) + self.coordinates.times(V)).transpose(0, 2, 1).reshape(-1, len(x)))
        scalars = [self.coordinates.slopes(r.probe @ r.probe.T) for r in self.rounds]
        return self._stack(S, sent), np.vstack([*rows, scalars])

    def _last(self, S: Array, r: Round) -> Array:
        V = r.start
        for _ in range(r.steps - 1):
            V = orth(S @ V)
        return V

    def _stack(self, S: Array, sent: Sequence[Array]) -> Array:
        misfits = [(Y - r.product / self.scale).reshape(-1) for Y, r in zip(sent, self.rounds, strict=True)]
        scalars = [float(np.vdot(r.probe, S @ r.probe)) - r.captured / self.scale for r in self.rounds]
        return np.concatenate([*misfits, scalars])


def _transposes(Z: Array, Y: Array, triangles: Array) -> Array:
    """Z_j^T Y_k R_k - (Z_k^T Y_j R_j)^T for j <= k."""
    count, _, p = Z.shape
    j, k = np.triu_indices(count)
    inner = np.einsum("jna,knb->jkab", Z, Y)
    out = np.zeros((len(j), p, p, count, len(triangles)))
    pairs = np.arange(len(j))
    out[pairs, :, :, k] = np.einsum("mab,qbc->macq", inner[j, k], triangles)
    out[pairs, :, :, j] -= np.einsum("mab,qbc->mcaq", inner[k, j], triangles)
    return out.reshape(len(j) * p * p, count * len(triangles))


def _vanishing(Z: Array, Y: Array, triangles: Array) -> Array:
    """sum_k Y_k R_k N_k for the null vectors N of [Z_1 .. Z_K]."""
    count, features, p = Z.shape
    _, s, Vt = np.linalg.svd(np.hstack(list(Z)))
    N = Vt[int(np.sum(s > _NULL * s[0])) :].reshape(-1, count, p)
    out = np.einsum("kna,qab,mkb->mnkq", Y, triangles, N, optimize=True)
    return np.asarray(out.reshape(len(N) * features, count * len(triangles)))
