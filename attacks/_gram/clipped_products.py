"""Solve for S from products that a defence clipped, or to which it added noise of known size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from securefed._public import Public
from securefed._tensors import Array
from securefed.algorithms._pca.server import BASIS, CAPTURED, GRAM_PRODUCT, PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._diagnosis import EXPLAINED
from securefed.attacks._gram.clipped_sums import ClippedSums, clip_limit
from securefed.attacks._gram.linear import solve
from securefed.attacks._gram.shrinkage import NoisyProducts, shrunk

_ROUNDS = 400
"""Most rounds that are used; of longer runs an even selection."""
_TURNS, _STEPS = 6, 4
"""Number of alternations between S and the clip's factors, and steps for S in each. They change by less than a
percent after six turns on digits.
"""
_UNCLIPPED, _DIFFERING = 1 - 1e-6, 0.95
"""A client's norm below the first share of the clip's norm was not clipped; of a sum, its norm by public rows below the
second, since clients are not alike.
"""
_NOISES = 1.5
"""A residual counts as explained where it exceeds the known noise by no more than this factor."""


@dataclass(frozen=True)
class PerturbedSolution:
    """S from perturbed products.

    Attributes:
        gram: S.
        parts: of S that the sums show, by round and client, (K, clients); the clients' shares where nothing was
            clipped.
        residual: relative, of the clipped S Z_k.
        noise: standard deviation of an entry of the products.
        explained: whether the residual is no more than known noise; of clipped sums one S is only an approximation.
    """

    gram: Array
    parts: Array
    residual: float
    noise: float
    explained: bool


@dataclass(frozen=True)
class PerturbedProducts:
    """Rounds of products S Z_k, and the clipping and noise that the defence applied to them.

    Attributes:
        bases: Z_k, (K, features, rank).
        products: Y_k, (K, features, rank).
        traces: tr(Z_k^T S Z_k), clipped as the products were, (K,); empty where they were clipped apart.
        noise: standard deviation of the defence's noise in an entry of the products, (K,).
        trace_noise: the same of the traces, (K,).
        clips: the clients of each sum, and how they were clipped.
    """

    bases: Array
    products: Array
    traces: Array
    noise: Array
    trace_noise: Array
    clips: ClippedSums

    @classmethod
    def of(cls, rounds: Sequence[RoundView], public: Public, name: str = "") -> PerturbedProducts:
        """Read the tensor `name` of these rounds, by default the one that shows S Z; of very many rounds, of some."""
        name = name or gram_product_name(rounds[0])
        rounds = [
            rounds[k] for k in np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), _ROUNDS)).round().astype(int))
        ]
        together = [clip_limit(o, (name, CAPTURED)) for o in rounds]
        apart = np.isinf(together) & np.array([bool(o.clips) for o in rounds])
        limits = np.array([clip_limit(o, (name,)) for o in rounds] if apart.any() else together)
        used = [] if apart.any() else rounds
        return cls(
            np.stack([o.broadcast[BASIS] for o in rounds]),
            np.stack([o.message[name] for o in rounds]),
            np.array([float(o.message[CAPTURED]) for o in used]),
            np.array([o.noise.get(name, 0.0) for o in rounds]),
            np.array([o.noise.get(CAPTURED, 0.0) for o in used]),
            ClippedSums.of(limits, [o.members for o in rounds], public),
        )

    @cached_property
    def seen_clipped(self) -> bool:
        """Return whether a clip may have changed the messages, judged by their norms and the clients' public rows."""
        squares, errors = self.squares()
        largest = self.clips.shares.max(axis=1) / self.clips.shares.sum(axis=1)
        certain = _DIFFERING if self._several else _UNCLIPPED
        return bool(np.any(largest * np.sqrt(np.maximum(squares + 2 * errors, 0.0)) >= certain * self.clips.limits))

    def squares(self) -> tuple[Array, Array]:
        """Return squared norms of what was clipped together, less the noise's, and their standard deviations, (K,)."""
        count, noise = self.products[0].size, self.noise
        seen = np.sum(self.products**2, axis=(1, 2)) - count * noise**2
        if len(self.traces):
            seen = seen + self.traces**2 - self.trace_noise**2
        return seen, noise * np.sqrt(2 * count * noise**2 + 4 * np.maximum(seen, 0.0))

    def without_clip(self, factors: Array) -> NoisyProducts:
        """Return the rounds without the clip, with the noise that is known or that their asymmetry shows."""
        smallest = np.finfo(float).eps * max(float(np.abs(self.products).max()), np.finfo(float).tiny)
        shown = max(self.asymmetry(factors), smallest) if self.seen_clipped else smallest
        traces = len(self.traces)
        return NoisyProducts(
            self.bases,
            self.products / factors[:, None, None],
            np.maximum(self.noise, shown) / factors,
            self.traces / factors[:traces],
            np.maximum(self.trace_noise, 0.0 if self.trace_noise.any() else shown) / factors[:traces],
        )

    def asymmetry(self, factors: Array) -> float:
        """Estimate the noise of an entry of the products from what is not symmetric in Z_j^T Y_k / f_k.

        Neighbouring rounds are left out, since a basis is made of the sum before it, noise included.
        """
        flat = np.hstack(list(self.bases)).T @ np.hstack(list(self.products / factors[:, None, None]))
        sizes = np.repeat(factors**-2, self.bases.shape[2])
        round_of = np.repeat(np.arange(len(factors)), self.bases.shape[2])
        apart = np.abs(round_of - round_of[:, None]) != 1
        used = np.triu(apart, 1)
        return float(np.sqrt(np.sum(((flat - flat.T) ** 2 / (sizes + sizes[:, None]))[used]) / max(used.sum(), 1)))

    def recovered(self, rows: int) -> PerturbedSolution:
        """Solve for S, of rank at most `rows`.

        One client without noise is solved exactly, except for its size where all rounds were clipped.
        """
        if not self.seen_clipped:
            return self._judged(shrunk(self.without_clip(self._present), rows).gram, self.clips.shares)
        return self._turned(rows) if self._several or self.noise.any() else self._single(rows)

    @property
    def _several(self) -> bool:
        return bool(self.clips.shares.shape[1] > 1)

    @property
    def _present(self) -> Array:
        return np.asarray(self.clips.shares.sum(axis=1))

    def _single(self, rows: int) -> PerturbedSolution:
        """Solve for one client without noise, whose clip factors follow from symmetry."""
        norms = np.sqrt(self.squares()[0])
        factors = clip_ratios(self.bases, self.products)
        free = norms < _UNCLIPPED * self.clips.limits
        factors = factors / (factors[free].mean() if free.any() else factors.max())
        factors = np.where(free, 1.0, np.minimum(factors, 1.0))
        probes, products = np.hstack(list(self.bases)), np.hstack(list(self.products / factors[:, None, None]))
        gram = solve(probes, products, rows=rows).gram
        if not free.any():
            scale = max(self.clips.factors(norms / factors, norms**2, 1e-6 * norms**2, float(np.trace(gram)))[0], 1.0)
            gram, factors = scale * gram, factors / scale
        return self._judged(gram, factors[:, None])

    def _turned(self, rows: int) -> PerturbedSolution:
        """Solve for S and the clip's factors in turn."""
        squares, errors = self.squares()
        errors = errors + 1e-9 * np.abs(squares).max()
        parts, found = self.clips.shares, None
        for _ in range(_TURNS):
            found = shrunk(self.without_clip(parts.sum(axis=1)), rows, start=found, steps=_STEPS)
            sizes = self._sizes(found.gram)
            if not sizes.any():
                break
            scale, parts = self.clips.factors(sizes, squares, errors, float(np.trace(found.gram)))
            found = replace(found, gram=scale * found.gram)
        assert found is not None
        return self._judged(found.gram, parts)

    def _sizes(self, gram: Array) -> Array:
        """Return the norms that the sums would have without the clip."""
        images = gram @ self.bases
        traces = np.einsum("knp,knp->k", self.bases, images) if len(self.traces) else 0.0
        sizes = np.hypot(np.linalg.norm(images, axis=(1, 2)), traces)
        return np.asarray(np.maximum(sizes, 1e-3 * sizes.max()))

    def _judged(self, gram: Array, parts: Array) -> PerturbedSolution:
        """Compare a solution with the products."""
        factors = parts.sum(axis=1)
        size = float(np.linalg.norm(self.products)) or 1.0
        residual = float(np.linalg.norm(self.products - factors[:, None, None] * (gram @ self.bases))) / size
        known = float(np.sqrt(np.mean(self.noise**2)))
        shown = self.asymmetry(factors) if self.seen_clipped else 0.0
        level = known * float(np.sqrt(self.products.size)) / size
        return PerturbedSolution(
            gram, parts, residual, max(known, shown), bool(residual <= max(_NOISES * level, EXPLAINED))
        )


def gram_product_name(observation: RoundView) -> str:
    """Return the name of the tensor that holds S Z."""
    return GRAM_PRODUCT if GRAM_PRODUCT in observation.message else PRODUCT


def is_perturbed(rounds: Sequence[RoundView]) -> bool:
    """Return whether a defence states that it clipped the products or added noise to them."""
    return any(o.noise.get(gram_product_name(o), 0.0) > 0 or o.clips for o in rounds)


def clip_ratios(bases: Array, products: Array) -> Array:
    """Return the f_k, up to one factor, of products f_k S Z_k: Z_j^T Y_k / f_k is the transpose of Z_k^T Y_j / f_j.

    The 1 / f_k that violate this least, in the sum of squares, are an eigenvector.
    """
    sizes = np.linalg.norm(products, axis=(1, 2))
    inner = np.einsum("jna,knb->jkab", bases, products / np.maximum(sizes, np.finfo(float).tiny)[:, None, None])
    squares = np.sum(inner**2, axis=(2, 3))
    np.fill_diagonal(squares, 0.0)
    crossed = np.einsum("jkab,kjba->jk", inner, inner)
    np.fill_diagonal(crossed, 0.0)
    inverse = np.abs(np.linalg.eigh(np.diag(squares.sum(axis=0)) - crossed)[1][:, 0])
    return np.asarray(sizes / np.maximum(inverse, 1e-12 * inverse.max()))
