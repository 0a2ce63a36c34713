"""S from sums of FAPS' messages that a defence clipped, or added noise of known size to.

Near consensus a message is beta Z + (I - Z Z^T) S Z, and its scalar tr(Z^T S Z): S Z but for Z^T S Z, of which only the
trace shows. That block is taken from the estimate itself, turn by turn (expectation-maximisation), and so are the
clip's factors; in between S is shrunk by what noise and distance from consensus may hide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securefed.attacks.gram.near_consensus import AMPLIFICATION
from securefed.attacks.gram.private import Disturbed, Recovered
from securefed.attacks.gram.shrinkage import Noisy, shrunk
from securefed.tensors import Array

_TURNS, _NOISY_TURNS, _STEPS = 12, 20, 4
"""Turns, and steps for S in each; sums without noise say nothing more after a few, where clients are not alike."""
_FURTHER, _SETTLED = 0.7, 0.01
"""The block goes on by the first share of its last step: over-relaxed, the turns converge sooner. They end when it
changes by less than the second."""
_SPREAD = 1.5
"""beta may seem to differ so much between rounds, away from consensus; wrong factors showed twice as much."""
_CLOSE = 0.01
"""Messages are at consensus to this share at best: clients of a sum are not alike."""


@dataclass(frozen=True)
class Masked:
    """Rounds of FAPS.

    Attributes:
        seen: bases, masked products and scalars, with what was done to them.      beta_scale: of the algorithm.
    """

    seen: Disturbed
    beta_scale: float

    def recovered(self, rows: int) -> Recovered:
        """An estimate of S, of rank at most `rows`; `explained` where all sums show about the beta that S has."""
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
        return Recovered(found.gram, parts, float("nan"), noise, self._consistent(parts.sum(axis=1), found.gram))

    def _consistent(self, factors: Array, gram: Array) -> bool:
        """Whether tr(Z_k^T Y_k) / rank is the beta of S throughout, as it is at consensus."""
        shown = np.einsum("knp,knp->k", self.seen.bases, self.seen.products) / self.seen.bases.shape[2] / factors
        level = self.beta_scale * float(np.linalg.eigvalsh(gram)[-1])
        return bool(
            shown.min() > 0
            and shown.max() < _SPREAD * shown.min()
            and level < _SPREAD * shown.mean() < _SPREAD**2 * level
        )

    def _evenly(self, factors: Array) -> Array:
        """Z_k^T S Z_k of the traces that are seen, with all diagonal entries the same."""
        rank = self.seen.bases.shape[2]
        return np.asarray((self.seen.traces / factors / rank)[:, None, None] * np.eye(rank))

    def _completed(self, factors: Array, known: Array) -> Noisy:
        """S Z_k, with `known` for the blocks Z_k^T S Z_k."""
        seen = self.seen
        Z, Y, traces = seen.bases, seen.products / factors[:, None, None], seen.traces / factors
        inner = Z.mT @ Y
        rank = Z.shape[2]
        noise = seen.noise / factors
        level = np.trace(inner, axis1=1, axis2=2) / rank
        apart = np.sum((inner - level[:, None, None] * np.eye(rank)) ** 2, axis=(1, 2)) - (rank**2 - 1) * noise**2
        distance = np.sqrt(np.maximum(apart, 0.0) / rank) / self.beta_scale  # times lambda_1
        spread = AMPLIFICATION * distance / rank / np.sqrt(Z.shape[1])
        least = _CLOSE * float(np.sqrt(np.mean(Y**2)))
        errors = np.sqrt(noise**2 + spread**2 + least**2)
        trace_errors = np.hypot(seen.trace_noise / factors, _CLOSE * np.abs(traces) + np.finfo(float).tiny)
        return Noisy(Z, Y + Z @ (known - inner), errors, traces, trace_errors)

    def _sizes(self, gram: Array) -> Array:
        """Norms of a sum of all clients, had nobody been clipped, at consensus."""
        Z = self.seen.bases
        images = gram @ Z
        inner = Z.mT @ images
        beta = self.beta_scale * float(np.linalg.eigvalsh(gram)[-1])
        products = np.sum((images - Z @ inner) ** 2, axis=(1, 2)) + beta**2 * Z.shape[2]
        return np.asarray(np.sqrt(products + np.trace(inner, axis1=1, axis2=2) ** 2))
