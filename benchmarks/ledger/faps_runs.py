"""What the FAPS experiments share: the paper's test matrices, runs to a stop, and the two errors its tables print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Array
from securefed.algorithms._pca import FAPS, SSI, LocalPower
from securefed.algorithms._pca.server import SubspaceMethod
from securefed.datasets._base import Dataset
from securefed.datasets._spectral_matrices import SpectralMatrix, geometric, spectral

PAPER = "FAPS: A Communication-Efficient and Privacy-Preserving Approach for Federated PCA"
KKT = 1e-4
"""The residual ||(I - Z Z^T) A A^T Z||_F at which the printed errors come out; the paper names rule (27), which does
not give them."""
KEPT = 300
"""Leading left singular vectors kept of a large matrix with xi = 1.01: the rest hold eigenvalues below .003 of the
largest and .004 of the p-th: they leave any iterate within a few rounds. A run then lives in their coordinates (with
600 kept, counts stay within the spread over seeds)."""


@dataclass(frozen=True)
class Problem:
    """Clients, and the pooled spectrum: `basis` (n, n) of A's left singular vectors, `values` (n,) singular values."""

    clients: Sequence[Dataset]
    basis: Array
    values: Array

    @classmethod
    def of(cls, matrix: SpectralMatrix) -> Problem:
        return cls(matrix.clients, matrix.basis, matrix.values)

    @classmethod
    def pooled(cls, clients: Sequence[Dataset]) -> Problem:
        """The problem of given rows."""
        squares, basis = np.linalg.eigh(sum(data.x.T @ data.x for data in clients))
        return cls(clients, basis[:, ::-1], np.sqrt(np.maximum(squares[::-1], 0)))

    @property
    def together(self) -> Problem:
        """One client with the same pooled Gram matrix: SSI takes the same steps on it, at a fraction of the cost
        (`tests/algorithms/test_pca_methods.py` asserts the identity)."""
        return Problem((Dataset(self.values[:, None] * self.basis.T),), self.basis, self.values)

    @property
    def energy(self) -> float:
        """||A||_F^2."""
        return float(np.sum(self.values**2))

    def residual(self, basis: Array) -> float:
        """||(I - Z Z^T) A A^T Z||_F."""
        product = self.basis @ (self.values[:, None] ** 2 * (self.basis.T @ basis))
        return float(np.linalg.norm(product - basis @ (basis.T @ product)))

    def error(self, basis: Array) -> float:
        """||Sigma_Z - Sigma||_F / ||Sigma||_F over the leading singular values (section 5.2)."""
        found = np.linalg.svd(self.values[:, None] * (self.basis.T @ basis), compute_uv=False)
        truth = self.values[: basis.shape[1]]
        return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


@dataclass(frozen=True)
class Solved:
    """A run: rounds (the one that measured the stop included), scaled KKT violation, error of the singular values."""

    rounds: int
    kkt: float
    error: float


def geometric_problem(features: int, sizes: Sequence[int], ratio: float, seed: int, kept: int | None = None) -> Problem:
    """Matrix (23)-(24); `kept` leading directions of it, drawn as part of the whole would be."""
    return Problem.of(spectral(geometric(features, ratio)[:kept], sizes, np.random.default_rng(seed)))


def solve(method: SubspaceMethod, problem: Problem, seed: int) -> Solved:
    """A run to the method's own stop."""
    federation = Federation(method, problem.clients, seed=seed, options=RunOptions(keep_transcript=False))
    result = federation.run(method.max_rounds)
    basis = result.output["basis"]
    return Solved(len(result.history), problem.residual(basis) / problem.energy, problem.error(basis))


def residuals(method: SubspaceMethod, problem: Problem, seed: int, rounds: int) -> list[float]:
    """||(I - Z Z^T) A A^T Z||_F after 0, 1, ... rounds."""
    federation = Federation(method, problem.clients, seed=seed, options=RunOptions(keep_transcript=False))
    return [problem.residual(federation.run(done).output["basis"]) for done in range(rounds + 1)]


def ssi(rank: int, problem: Problem, seed: int, tolerance: float = KKT) -> Solved:
    """SSI to the KKT stop."""
    return solve(SSI(rank, tolerance, stop="kkt"), problem.together, seed)


def localpower(rank: int, problem: Problem, seed: int, rounds_each: int, tolerance: float = KKT) -> Solved:
    """LocalPower with q = 8, 4, 2, 1, halved every `rounds_each` rounds, to the KKT stop."""
    return solve(LocalPower(rank, tolerance, stop="kkt", rounds_each=rounds_each), problem, seed)


def faps(rank: int, problem: Problem, seed: int, inner_steps: int, tolerance: float = KKT) -> Solved:
    """FAPS with a fixed number of inner steps, to the KKT stop."""
    return solve(FAPS(rank, tolerance, stop="kkt", inner_steps=inner_steps, max_rounds=600), problem, seed)
