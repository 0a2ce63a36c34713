"""Solve for a Gram matrix S from products that a defence clipped, or to which it added noise of known size.

In round k the attacker observes Y_k = f_k S Z_k + noise and, where clients send it, t_k = f_k tr(Z_k^T S Z_k) + noise,
with f_k <= 1 the factor of the clip; for a sum of clients S is the pooled matrix, of which each is taken to hold a
share in proportion to its public number of rows. Where nothing was clipped, S is a penalised likelihood estimate
(`shrinkage`). Of one client without noise, the f_k follow from the symmetry of S up to one common factor, and S by
least squares; the common factor follows from a round that was not clipped, or is estimated from the clipping norms and
a guess of tr S. Otherwise the estimate of S and the clients' clip factors (`clipped_sums`) alternate, and the scale of
S, of which the norm of a clipped message says little, is the one that `ClippedSums.factors` returns.
"""

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
"""Most rounds that are used; of longer runs an even selection. It bounds time and memory."""
_ALTERNATIONS, _STEPS = 6, 4
"""Alternations between S and the clip factors, and ADMM iterations for S in each. On digits S and the factors change
by less than a percent after six alternations.
"""
_UNCLIPPED, _UNCLIPPED_IN_SUM = 1 - 1e-6, 0.95
"""A message is taken as not clipped where its norm is below this share of the clipping norm: the first for one client,
the second for the largest client of a sum, whose norm is only estimated from the public numbers of rows.
"""
_NOISE_FACTOR = 1.5
"""A residual counts as explained where it exceeds the known noise by no more than this factor."""


@dataclass(frozen=True)
class PerturbedSolution:
    """An estimate of S from clipped or noised products.

    Attributes:
        gram: the estimate of S.
        parts: share_i times the clip factor of client i in round k, (K, clients): the part of S that the client's
            message contributes to the sum; share_i is the client's share of all rows.
        residual: ||Y_k - f_k S Z_k|| over all rounds, relative to the products, with f_k the row sums of `parts`.
        noise: standard deviation of the noise in an entry of the products: the stated one, or what asymmetry shows if
            that is larger.
        explained: whether the residual is at most 1.5 times what the known noise leaves. It is larger for most clipped
            sums, because the clients' S_i are not exactly shares of S.
        scale_open: whether the messages determine S up to one factor only, which is estimated.
    """

    gram: Array
    parts: Array
    residual: float
    noise: float
    explained: bool
    scale_open: bool = False


@dataclass(frozen=True)
class PerturbedProducts:
    """Observed products Y_k and traces of K rounds, and the clipping and noise that the defence applied to them.

    Attributes:
        bases: Z_k, (K, features, rank).
        products: Y_k, f_k S Z_k with noise, (K, features, rank).
        traces: t_k, f_k tr(Z_k^T S Z_k) with noise, (K,); empty where products and traces were clipped separately, so
            that their factors differ.
        noise: standard deviation of the defence's noise in an entry of the products, (K,).
        trace_noise: standard deviation of the noise in the traces, (K,).
        clips: the clients of each sum, their shares of S, and the clipping norms.
    """

    bases: Array
    products: Array
    traces: Array
    noise: Array
    trace_noise: Array
    clips: ClippedSums

    @classmethod
    def of(cls, rounds: Sequence[RoundView], public: Public, name: str = "") -> PerturbedProducts:
        """Read the products, traces and clips of at most `_ROUNDS` evenly spaced rounds.

        In a `RoundView` the tensor named `BASIS` is Z_k and `CAPTURED` is t_k.

        Args:
            rounds: observed rounds.
            public: the clients' public numbers of rows, and the public bound on features.
            name: tensor that holds the products; by default the one that holds S Z.
        """
        name = name or gram_product_name(rounds[0])
        rounds = [
            rounds[k] for k in np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), _ROUNDS)).round().astype(int))
        ]
        # clipping norms of products and trace together; infinite where no clip covers both
        limits_together = [clip_limit(o, (name, CAPTURED)) for o in rounds]
        clipped_apart = np.isinf(limits_together) & np.array([bool(o.clips) for o in rounds])
        limits = np.array([clip_limit(o, (name,)) for o in rounds] if clipped_apart.any() else limits_together)
        with_traces = [] if clipped_apart.any() else rounds  # traces with other factors are not used
        return cls(
            bases=np.stack([o.broadcast[BASIS] for o in rounds]),
            products=np.stack([o.message[name] for o in rounds]),
            traces=np.array([float(o.message[CAPTURED]) for o in with_traces]),
            noise=np.array([o.noise.get(name, 0.0) for o in rounds]),
            trace_noise=np.array([o.noise.get(CAPTURED, 0.0) for o in with_traces]),
            clips=ClippedSums.of(limits, [o.members for o in rounds], public),
        )

    @cached_property
    def may_be_clipped(self) -> bool:
        """Return whether a clip may have changed the messages, judged by their norms and the clients' public rows."""
        squares, errors = self.squares()
        # the largest client's norm is its share of the sum's; two standard deviations of noise are allowed for
        largest_share = self.clips.shares.max(axis=1) / self.clips.shares.sum(axis=1)
        threshold = _UNCLIPPED_IN_SUM if self._several else _UNCLIPPED
        return bool(
            np.any(largest_share * np.sqrt(np.maximum(squares + 2 * errors, 0.0)) >= threshold * self.clips.limits)
        )

    def squares(self) -> tuple[Array, Array]:
        """Return the squared norms of the products (with the traces, where these are used), less the noise's part.

        Returns:
            The squared norms without noise, estimated, and their standard deviations, (K,) each.
        """
        count, noise = self.products[0].size, self.noise
        # ||x + noise||^2 has the mean ||x||^2 + count noise^2, and the variance 2 count noise^4 + 4 ||x||^2 noise^2
        energy = np.sum(self.products**2, axis=(1, 2)) - count * noise**2
        if len(self.traces):
            energy = energy + self.traces**2 - self.trace_noise**2
        return energy, noise * np.sqrt(2 * count * noise**2 + 4 * np.maximum(energy, 0.0))

    def without_clip(self, factors: Array) -> NoisyProducts:
        """Divide products, traces and their noise by the clip factors f_k, `factors` (K,): as without a clip.

        The noise is the known one or, where clips may have changed the messages, at least the one that asymmetry shows.
        """
        smallest = np.finfo(float).eps * max(float(np.abs(self.products).max()), np.finfo(float).tiny)
        noise_level = max(self.asymmetry(factors), smallest) if self.may_be_clipped else smallest
        # known noise in the traces stands as it is; otherwise their error is taken to be that of the products
        trace_noise = self.trace_noise if self.trace_noise.any() else np.full(len(self.traces), noise_level)
        of_traces = factors[: len(self.traces)]  # all of them, or none where the traces are not used
        return NoisyProducts(
            bases=self.bases,
            products=self.products / factors[:, None, None],
            errors=np.maximum(self.noise, noise_level) / factors,
            traces=self.traces / of_traces,
            trace_errors=trace_noise / of_traces,
        )

    def asymmetry(self, factors: Array) -> float:
        """Estimate the noise of an entry of the products from the asymmetry of Z_j^T Y_k / f_k, which is Z_j^T S Z_k.

        With noise of standard deviation s in the Y_k, Z_j^T Y_k / f_k - (Z_k^T Y_j / f_j)^T has entries of variance
        s^2 (1 / f_k^2 + 1 / f_j^2), so that s^2 is the mean of their squares over the bracket. Wrong f_k, and clients
        whose S_i are not the shares of S that they are taken for, count as noise too.

        Pairs of consecutive rounds are left out, since Z_(k+1) is computed from Y_k and so depends on its noise.
        """
        # one matrix of all Z_j^T Y_k / f_k, and for each of its columns 1 / f_k^2 and the number k of the round
        flat = np.hstack(list(self.bases)).T @ np.hstack(list(self.products / factors[:, None, None]))
        sizes = np.repeat(factors**-2, self.bases.shape[2])
        round_of = np.repeat(np.arange(len(factors)), self.bases.shape[2])
        # each pair of columns once, those of neighbouring rounds left out
        not_neighbours = np.abs(round_of - round_of[:, None]) != 1
        pairs = np.triu(not_neighbours, 1)
        return float(np.sqrt(np.sum(((flat - flat.T) ** 2 / (sizes + sizes[:, None]))[pairs]) / max(pairs.sum(), 1)))

    def estimate_gram(self, rows: int) -> PerturbedSolution:
        """Solve for S, of rank at most `rows`, by one of the three cases of the module.

        One client without noise is solved exactly; where all of its rounds were clipped, up to the scale of S, which
        is estimated.
        """
        if not self.may_be_clipped:
            return self._with_residual(shrunk(self.without_clip(self._present_shares), rows).gram, self.clips.shares)
        return self._alternating(rows) if self._several or self.noise.any() else self._single(rows)

    @property
    def _several(self) -> bool:
        """Return whether the rounds are sums over several clients."""
        return bool(self.clips.shares.shape[1] > 1)

    @property
    def _present_shares(self) -> Array:
        """Return the share of S that the clients of each round hold together, (K,)."""
        return np.asarray(self.clips.shares.sum(axis=1))

    def _single(self, rows: int) -> PerturbedSolution:
        """Solve for one client without noise; its clip factors follow from the symmetry of S (`clip_ratios`).

        Where no round shows the common factor, the largest f_k is taken as 1 at first. The estimate of S is then too
        small by an unknown scale, which `ClippedSums.factors` estimates: S is multiplied by it, and the f_k divided.
        """
        norms = np.sqrt(self.squares()[0])
        factors = clip_ratios(self.bases, self.products)
        unclipped = norms < _UNCLIPPED * self.clips.limits
        # rounds below the clipping norm have the factor 1
        factors = factors / (factors[unclipped].mean() if unclipped.any() else factors.max())
        factors = np.where(unclipped, 1.0, np.minimum(factors, 1.0))
        probes, products = np.hstack(list(self.bases)), np.hstack(list(self.products / factors[:, None, None]))
        gram = solve(probes, products, rows=rows).gram
        if not unclipped.any():
            sizes = norms / factors  # the norms without the clip, if the largest f_k is 1
            errors = 1e-6 * norms**2  # no noise: far below the error of .4 percent that `factors` allows a norm itself
            # at least 1, since no factor f_k is above 1
            scale = max(self.clips.factors(sizes, norms**2, errors, float(np.trace(gram)))[0], 1.0)
            gram, factors = scale * gram, factors / scale
        return replace(self._with_residual(gram, factors[:, None]), scale_open=not unclipped.any())

    def _alternating(self, rows: int) -> PerturbedSolution:
        """Alternate between S given the clip factors and the clip factors given S.

        `parts` (K, clients) holds share_i times client i's clip factor in round k; its row sums are the f_k. At first
        no message counts as clipped. Each estimate of S begins where the last one ended.
        """
        squares, errors = self.squares()
        errors = errors + 1e-9 * np.abs(squares).max()  # never zero, since they are divided by
        parts, solution = self.clips.shares, None
        for _ in range(_ALTERNATIONS):
            solution = shrunk(self.without_clip(parts.sum(axis=1)), rows, start=solution, steps=_STEPS)
            sizes = self._sizes(solution.gram)
            if not sizes.any():
                break
            scale, parts = self.clips.factors(sizes, squares, errors, float(np.trace(solution.gram)))
            solution = replace(solution, gram=scale * solution.gram)
        assert solution is not None
        return self._with_residual(solution.gram, parts)

    def _sizes(self, gram: Array) -> Array:
        """Return the norms that the sums over all clients would have without the clip, (K,).

        They are at least a thousandth of the largest, so that no weight becomes infinite.
        """
        images = gram @ self.bases
        traces = np.einsum("knp,knp->k", self.bases, images) if len(self.traces) else 0.0
        sizes = np.hypot(np.linalg.norm(images, axis=(1, 2)), traces)
        return np.asarray(np.maximum(sizes, 1e-3 * sizes.max()))

    def _with_residual(self, gram: Array, parts: Array) -> PerturbedSolution:
        """Return the solution with its residual and noise."""
        factors = parts.sum(axis=1)
        size = float(np.linalg.norm(self.products)) or 1.0
        residual = float(np.linalg.norm(self.products - factors[:, None, None] * (gram @ self.bases))) / size
        known_noise = float(np.sqrt(np.mean(self.noise**2)))
        from_asymmetry = self.asymmetry(factors) if self.may_be_clipped else 0.0
        noise_part = known_noise * float(np.sqrt(self.products.size)) / size
        return PerturbedSolution(
            gram=gram,
            parts=parts,
            residual=residual,
            noise=max(known_noise, from_asymmetry),
            explained=bool(residual <= max(_NOISE_FACTOR * noise_part, EXPLAINED)),
        )


def gram_product_name(observation: RoundView) -> str:
    """Return the name of the tensor that holds S Z."""
    return GRAM_PRODUCT if GRAM_PRODUCT in observation.message else PRODUCT


def is_perturbed(rounds: Sequence[RoundView]) -> bool:
    """Return whether a defence states that it clipped the products or added noise to them."""
    return any(o.noise.get(gram_product_name(o), 0.0) > 0 or o.clips for o in rounds)


def clip_ratios(bases: Array, products: Array) -> Array:
    """Return the f_k, up to one common factor, from products Y_k = f_k S Z_k.

    S is symmetric, so Z_j^T Y_k / f_k = (Z_k^T Y_j / f_j)^T. With I_jk = Z_j^T Y_k / ||Y_k|| and x_k = ||Y_k|| / f_k
    the sum of squared violations is the quadratic form

        sum_jk ||x_k I_jk - x_j I_kj^T||^2 = 2 x^T (diag_k(sum_j ||I_jk||^2) - [tr(I_jk I_kj)]_jk) x

    without its terms j = k, and its least unit vector x is the eigenvector of the smallest eigenvalue.

    Args:
        bases: Z_k, (K, features, rank).
        products: Y_k, (K, features, rank).
    """
    sizes = np.linalg.norm(products, axis=(1, 2))
    inner = np.einsum("jna,knb->jkab", bases, products / np.maximum(sizes, np.finfo(float).tiny)[:, None, None])
    squares = np.sum(inner**2, axis=(2, 3))
    np.fill_diagonal(squares, 0.0)
    crossed = np.einsum("jkab,kjba->jk", inner, inner)
    np.fill_diagonal(crossed, 0.0)
    # x; all of its entries are positive, but the sign of an eigenvector is arbitrary
    inverse = np.abs(np.linalg.eigh(np.diag(squares.sum(axis=0)) - crossed)[1][:, 0])
    return np.asarray(sizes / np.maximum(inverse, 1e-12 * inverse.max()))
