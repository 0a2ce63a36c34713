"""Estimate S from sums of FAPS' messages that a defence clipped, or to which it added noise of known size.

Near consensus a message is beta Z + (I - Z Z^T) S Z, and its scalar tr(Z^T S Z): S Z without Z^T S Z, of which only the
trace is sent. That block and the clip's factors are taken from the estimate itself, in turn (expectation-maximisation);
in between S is shrunk by what noise and distance from consensus may hide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securefed._tensors import Array
from securefed.attacks._gram.clipped_products import PerturbedProducts, PerturbedSolution
from securefed.attacks._gram.faps.near_consensus import DISTANCE_FACTOR
from securefed.attacks._gram.shrinkage import NoisyProducts, shrunk

_TURNS, _NOISY_TURNS, _STEPS = 12, 20, 4
"""Iterations without noise and with it, and steps for S in each. Without noise, sums of clients that differ yield
nothing more after a few iterations.
"""
_FURTHER, _SETTLED = 0.7, 0.01
"""The block moves on by the first share of its last step: over-relaxed, the turns converge sooner. They end when it
changes by less than the second.
"""
_SPREAD = 1.5
"""Factor by which beta may seem to differ between rounds; wrong clip factors made it twice as much."""
_CLOSE = 0.01
"""Least relative distance of a sum from consensus, since its clients are not alike."""


@dataclass(frozen=True)
class ClippedMaskedProducts:
    """Rounds of FAPS with clipping or noise.

    Attributes:
        seen: bases, masked products and scalars, with their clipping and noise.
        beta_scale: the algorithm's `beta_scale`.
    """

    seen: PerturbedProducts
    beta_scale: float

    def recovered(self, rows: int) -> PerturbedSolution:
        """Estimate S, of rank at most `rows`; `explained` tells whether all sums show about the beta of that S."""
        seen, clipped = self.seen, self.seen.seen_clipped
        squares, errors = seen.squares()
        errors = errors + 1e-9 * np.abs(squares).max()
        parts, found = seen.clips.shares, None
        inner = self._evenly(parts.sum(axis=1))
        for _ in range(_NOISY_TURNS if seen.noise.any() else _TURNS):
            completed = self._completed(parts.sum(axis=1), inner)
            found = shrunk(completed, rows, start=found, steps=_STEPS, relax=False)
            sizes = self._sizes(found.gram)
            if not sizes.any():
                break
            if clipped:
                scale, parts = seen.clips.factors(sizes, squares, errors, float(np.trace(found.gram)))
                found, inner = replace(found, gram=scale * found.gram), scale * inner
            now = seen.bases.mT @ (found.gram @ seen.bases)
            change, inner = now - inner, now + _FURTHER * (now - inner)
            if np.linalg.norm(change) < _SETTLED * np.linalg.norm(now):
                break
        assert found is not None
        noise = float(np.sqrt(np.mean(seen.noise**2)))
        return PerturbedSolution(
            found.gram, parts, float("nan"), noise, self._consistent(parts.sum(axis=1), found.gram)
        )

    def _consistent(self, factors: Array, gram: Array) -> bool:
        """Return whether tr(Z_k^T Y_k) / rank is the beta of S throughout, as it is at consensus."""
        shown = np.einsum("knp,knp->k", self.seen.bases, self.seen.products) / self.seen.bases.shape[2] / factors
        level = self.beta_scale * float(np.linalg.eigvalsh(gram)[-1])
        return bool(
            shown.min() > 0
            and shown.max() < _SPREAD * shown.min()
            and level < _SPREAD * shown.mean() < _SPREAD**2 * level
        )

    def _evenly(self, factors: Array) -> Array:
        """Return Z_k^T S Z_k of the observed traces, with all diagonal entries the same."""
        rank = self.seen.bases.shape[2]
        return np.asarray((self.seen.traces / factors / rank)[:, None, None] * np.eye(rank))

    def _completed(self, factors: Array, known: Array) -> NoisyProducts:
        """Return S Z_k, with `known` for the blocks Z_k^T S Z_k."""
        seen = self.seen
        Z, Y, traces = seen.bases, seen.products / factors[:, None, None], seen.traces / factors
        inner = Z.mT @ Y
        rank = Z.shape[2]
        noise = seen.noise / factors
        level = np.trace(inner, axis1=1, axis2=2) / rank
        apart = np.sum((inner - level[:, None, None] * np.eye(rank)) ** 2, axis=(1, 2)) - (rank**2 - 1) * noise**2
        distance = np.sqrt(np.maximum(apart, 0.0) / rank) / self.beta_scale  # times lambda_1
        spread = DISTANCE_FACTOR * distance / rank / np.sqrt(Z.shape[1])
        least = _CLOSE * float(np.sqrt(np.mean(Y**2)))
        errors = np.sqrt(noise**2 + spread**2 + least**2)
        trace_errors = np.hypot(seen.trace_noise / factors, _CLOSE * np.abs(traces) + np.finfo(float).tiny)
        return NoisyProducts(Z, Y + Z @ (known - inner), errors, traces, trace_errors)

    def _sizes(self, gram: Array) -> Array:
        """Return the norms that a sum of all clients would have without the clip, at consensus."""
        Z = self.seen.bases
        images = gram @ Z
        inner = Z.mT @ images
        beta = self.beta_scale * float(np.linalg.eigvalsh(gram)[-1])
        products = np.sum((images - Z @ inner) ** 2, axis=(1, 2)) + beta**2 * Z.shape[2]
        return np.asarray(np.sqrt(products + np.trace(inner, axis1=1, axis2=2) ** 2))
