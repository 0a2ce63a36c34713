"""Estimate a Gram matrix S from sums of FAPS messages that a defence clipped, or to which it added noise of known size.

The clients' matrices are taken as shares of one S, in proportion to the public numbers of rows, so that near consensus
the observed sum is that of S times f_k, the sum over the clients of share times clip factor. S Z_k is observed but for
f_k and for the block B_k = Z_k^T S Z_k, of which only the trace is sent. An expectation-maximisation computes the
blocks and the clip factors from the current S, and estimates S by penalised likelihood (`shrinkage`) from the completed
products, whose errors are the noise and the distance from consensus. `consensus_attack` calls it where a view states
clips or noise; the package's head has the symbols.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securefed._tensors import Array
from securefed.attacks._gram.clipped_products import PerturbedProducts, PerturbedSolution
from securefed.attacks._gram.faps.near_consensus import DISTANCE_FACTOR
from securefed.attacks._gram.shrinkage import NoisyProducts, shrunk

_ITERATIONS, _NOISY_ITERATIONS, _ADMM_STEPS = 12, 20, 4
"""Largest number of iterations without noise and with it, and ADMM iterations for S in each. Without noise, fewer are
enough: the estimate is then limited by the differences between the clients.
"""
_OVER_RELAXATION, _CONVERGED = 0.7, 0.01
"""Share of each block's last change that is added once more (over-relaxation), so that the iterations converge sooner,
and relative change of the blocks below which they end.
"""
_BETA_RATIO = 1.5
"""Largest ratio of the betas that the rounds show; wrong clip factors gave ratios twice as large."""
_LEAST_DISTANCE = 0.01
"""Least relative error of a completed product: a sum's clients differ, so that it is never quite at consensus."""


@dataclass(frozen=True)
class ClippedMaskedProducts:
    """Rounds of FAPS with clipping or noise; K is their number.

    Attributes:
        rounds: bases Z_k and sums Y_k, (K, features, rank), summed scalars ("traces"), (K,), and what is known of their
            clipping and noise.
        beta_scale: the algorithm's beta over lambda_1(S).
    """

    rounds: PerturbedProducts
    beta_scale: float

    def estimate_gram(self, rows: int) -> PerturbedSolution:
        """Estimate S, of rank at most `rows` (0: any).

        `explained` of the result says whether all sums show about the same beta, and that of the estimated S.
        """
        rounds, may_be_clipped = self.rounds, self.rounds.may_be_clipped
        # estimates of the sums' squared norms without noise, (K,), and standard deviations of these estimates
        squares, errors = rounds.squares()
        errors = errors + 1e-9 * np.abs(squares).max()  # never zero, since they are divided by
        parts, solution = rounds.clips.shares, None  # share times clip factor, (K, clients); their row sums are the f_k
        blocks = self._initial_blocks(parts.sum(axis=1))
        for _ in range(_NOISY_ITERATIONS if rounds.noise.any() else _ITERATIONS):
            products = self._completed(parts.sum(axis=1), blocks)
            solution = shrunk(products, rows, start=solution, steps=_ADMM_STEPS, relax=False)
            sizes = self._sizes(solution.gram)
            if not sizes.any():
                break
            if may_be_clipped:  # `scale`: by how much clipping made the estimate of S too small
                scale, parts = rounds.clips.factors(sizes, squares, errors, float(np.trace(solution.gram)))
                solution, blocks = replace(solution, gram=scale * solution.gram), scale * blocks
            block = rounds.bases.mT @ (solution.gram @ rounds.bases)  # Z_k^T S Z_k of the new S
            change, blocks = block - blocks, block + _OVER_RELAXATION * (block - blocks)
            if np.linalg.norm(change) < _CONVERGED * np.linalg.norm(block):
                break
        assert solution is not None
        noise = float(np.sqrt(np.mean(rounds.noise**2)))
        return PerturbedSolution(
            solution.gram, parts, float("nan"), noise, self._consistent(parts.sum(axis=1), solution.gram)
        )

    def _consistent(self, factors: Array, gram: Array) -> bool:
        """Return whether tr(Z_k^T Y_k) / (f_k rank) is about the beta of S in all rounds, as it is at consensus.

        Args:
            factors: f_k, (K,).
            gram: S.
        """
        observed_betas = (
            np.einsum("knp,knp->k", self.rounds.bases, self.rounds.products) / self.rounds.bases.shape[2] / factors
        )
        beta = self.beta_scale * float(np.linalg.eigvalsh(gram)[-1])
        return bool(
            observed_betas.min() > 0
            and observed_betas.max() < _BETA_RATIO * observed_betas.min()
            and beta < _BETA_RATIO * observed_betas.mean() < _BETA_RATIO**2 * beta
        )

    def _initial_blocks(self, factors: Array) -> Array:
        """Return multiples of I with the observed traces, as first values of the blocks B_k, (K, rank, rank)."""
        rank = self.rounds.bases.shape[2]
        return np.asarray((self.rounds.traces / factors / rank)[:, None, None] * np.eye(rank))

    def _completed(self, factors: Array, blocks: Array) -> NoisyProducts:
        """Complete the messages to products S Z_k.

        Args:
            factors: f_k, (K,).
            blocks: values for B_k = Z_k^T S Z_k, (K, rank, rank).

        Returns:
            Y_k / f_k with Z_k^T Y_k / f_k, which is beta I at consensus, replaced by B_k; and its errors: from the
            noise, and from the distance from consensus, which shows in how far Z_k^T Y_k is from a multiple of I.
        """
        rounds = self.rounds
        Z, Y, traces = rounds.bases, rounds.products / factors[:, None, None], rounds.traces / factors
        inner = Z.mT @ Y
        rank = Z.shape[2]
        noise = rounds.noise / factors
        # ||Z^T Y - m I||^2 less its expectation under the noise, m the mean of the diagonal
        mean_diagonal = np.trace(inner, axis1=1, axis2=2) / rank
        off_multiple = (
            np.sum((inner - mean_diagonal[:, None, None] * np.eye(rank)) ** 2, axis=(1, 2)) - (rank**2 - 1) * noise**2
        )
        # An entry of (I - Z Z^T) Y errs by about DISTANCE_FACTOR d lambda_1 / sqrt(features rank), where
        # d = ||Z^T Y - beta I|| / (rank beta) is the relative distance from consensus, and lambda_1 = beta / beta_scale
        # (`near_consensus.block_deviations`), so that beta cancels in d lambda_1.
        scaled_distance = np.sqrt(np.maximum(off_multiple, 0.0)) / (rank * self.beta_scale)  # d lambda_1
        consensus_error = DISTANCE_FACTOR * scaled_distance / np.sqrt(Z.shape[1] * rank)
        least_error = _LEAST_DISTANCE * float(np.sqrt(np.mean(Y**2)))
        errors = np.sqrt(noise**2 + consensus_error**2 + least_error**2)
        trace_errors = np.hypot(rounds.trace_noise / factors, _LEAST_DISTANCE * np.abs(traces) + np.finfo(float).tiny)
        return NoisyProducts(Z, Y + Z @ (blocks - inner), errors, traces, trace_errors)

    def _sizes(self, gram: Array) -> Array:
        """Return the norms that a sum of all clients would have without the clip, at consensus, (K,).

        They are the roots of ||Y||^2 + tr(Z^T S Z)^2 with Y = beta Z + (I - Z Z^T) S Z, whose two terms are orthogonal.
        """
        Z = self.rounds.bases
        images = gram @ Z
        inner = Z.mT @ images
        beta = self.beta_scale * float(np.linalg.eigvalsh(gram)[-1])
        products = np.sum((images - Z @ inner) ** 2, axis=(1, 2)) + beta**2 * Z.shape[2]
        return np.asarray(np.sqrt(products + np.trace(inner, axis1=1, axis2=2) ** 2))
