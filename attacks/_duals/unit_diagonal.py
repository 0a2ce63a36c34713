"""Solve for a Gram matrix with unit diagonal from FedPG's messages, for clients that z-score their columns.

One local step is linear in S, so that S is solved for entry by entry here, each direction with the precision that the
messages leave. The posterior tells how likely a constant diagonal is. If it is likely, the diagonal is taken as known,
which adds one equation for each feature and fixes the multiple of I that FedPG's messages do not show. That saves
participations (5 instead of 13 at rank 3 and 20 features), and messages in float32 leave an error of .05 instead of 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed._tensors import Array
from securefed.algorithms._pca.operators import off
from securefed.attacks._duals.dual_attack import GramEstimate
from securefed.attacks._duals.observed_steps import ObservedStep
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks._gram.linear import nearest_psd

_ODDS = 7.0
"""Smallest logarithm of the odds at which the diagonal is taken as constant: a thousand to one."""
_SPREAD = 0.2
"""Assumed standard deviation of the diagonal of data that are not z-scored; most have more, which shows sooner."""
_REDUNDANCY = 6
"""Number of equations that are used, of steps spread over the run, in multiples of the number of entries."""
_ROUNDING_WEIGHT = 4.0
"""Weight of the rounding error read off the numbers, in residuals of single equations."""
_SIZES = np.logspace(-2, 1, 31)
"""Prior standard deviations of an entry, among which the likeliest is taken."""


def with_unit_diagonal(steps: Sequence[ObservedStep], blocks: Sequence[Array], step_size: float) -> GramEstimate | None:
    """Return S from blocks (I - U U^T) S U, or `None` if a constant diagonal is not a thousand times likelier.

    Args:
        steps: steps of one client, with one local step each.
        blocks: (I - U U^T) S U of each step.
        step_size: step size of the algorithm, by which the rounding error of a message is divided.
    """
    coordinates = SymmetricMatrices.of(len(steps[0].start))
    enough = _REDUNDANCY * coordinates.count // blocks[0].size + 2
    used = np.unique(np.linspace(0, len(steps) - 1, min(enough, len(steps))).round().astype(int))
    steps, blocks = [steps[k] for k in used], [blocks[k] for k in used]
    matrix = np.vstack([_images(step.start, coordinates) for step in steps])
    right = np.concatenate([block.reshape(-1) for block in blocks])
    # a block is half the difference of two differences of messages over the step size
    rounding = max(step.error for step in steps) * np.sqrt(6) / (2 * step_size)
    free = EntryPosterior.of(matrix, right, rounding, sum(step.start.shape[1] ** 2 for step in steps))
    diagonal = coordinates.i == coordinates.j
    if _odds(free, diagonal) < _ODDS:
        return None
    rest = EntryPosterior.of(matrix[:, ~diagonal], right - matrix[:, diagonal].sum(axis=1), rounding, free.empty)
    x = np.ones(coordinates.count)
    x[~diagonal] = rest.mean
    gram = nearest_psd(coordinates.matrix(x))
    residual = float(np.linalg.norm(matrix @ coordinates.coordinates(gram) - right))
    kept = rest.determined
    return GramEstimate(
        gram=gram,
        method="solved",
        standardised=True,
        residual=residual / (float(np.linalg.norm(right)) or 1.0),
        rank=int(kept.sum()),
        unknowns=int((~diagonal).sum()),
        condition=float(rest.singular[0] / rest.singular[kept][-1]) if kept.any() else float("nan"),
        error=float(np.sqrt(rest.uncertainty) / np.linalg.norm(gram)),
    )


@dataclass(frozen=True)
class EntryPosterior:
    """Posterior of x, given matrix x = right + noise and a normal prior of mean zero.

    Attributes:
        singular: singular values of the matrix, (r,).
        directions: its right singular vectors, (r, unknowns).
        seen: right side along its left singular vectors, (r,).
        noise: standard deviation of the right side.
        size: prior standard deviation of x, the likeliest one.
        empty: number of equations that hold nothing.
    """

    singular: Array
    directions: Array
    seen: Array
    noise: float
    size: float
    empty: int

    @classmethod
    def of(cls, matrix: Array, right: Array, rounding: float, empty: int) -> EntryPosterior:
        """Estimate the noise and the prior from the equations.

        Args:
            matrix: (equations, unknowns).
            right: (equations,) right side.
            rounding: standard deviation of the right side's rounding error.
            empty: number of equations that hold nothing.
        """
        U, s, Vt = np.linalg.svd(matrix, full_matrices=False)
        kept = s > np.finfo(float).eps * max(matrix.shape) * s[0]
        seen = U.T @ right
        spare = max(len(right) - empty - int(kept.sum()), 0)
        rounding = max(rounding, np.finfo(float).eps * float(np.linalg.norm(right)))
        left = float(np.sum((right - U[:, kept] @ seen[kept]) ** 2))
        noise = float(np.sqrt((_ROUNDING_WEIGHT * rounding**2 + left) / (_ROUNDING_WEIGHT + spare)))
        variances = (_SIZES[:, None] * s) ** 2 + noise**2
        size = float(_SIZES[np.argmin(np.sum(np.log(variances) + seen**2 / variances, axis=1))])
        return cls(s, Vt, seen, noise, size, empty)

    @property
    def mean(self) -> Array:
        """Posterior mean of x."""
        return np.asarray(self.directions.T @ (self.singular * self.seen / (self.singular**2 + self._ratio)))

    @property
    def determined(self) -> Array:
        """Return for each direction whether the equations rather than the prior determine it, (r,)."""
        return self.singular**2 > self._ratio

    @property
    def uncertainty(self) -> float:
        """Expected ||x - mean||^2."""
        return float(np.sum(self._variances) + self.size**2 * (self.directions.shape[1] - len(self.singular)))

    def covariance(self, chosen: Array) -> Array:
        """Return the posterior covariance of the chosen entries of x."""
        V = self.directions[:, chosen]
        return np.asarray(self.size**2 * np.eye(V.shape[1]) - (V.T * (self.size**2 - self._variances)) @ V)

    @property
    def _ratio(self) -> float:
        return (self.noise / self.size) ** 2

    @property
    def _variances(self) -> Array:
        return np.asarray(self.noise**2 / (self.singular**2 + self._ratio))


def _odds(free: EntryPosterior, diagonal: Array) -> float:
    """Return the logarithm of how much likelier the messages are with a constant diagonal than with a varying one."""
    count = int(diagonal.sum())
    centre = np.eye(count) - 1 / count  # S + c I is the same to FedPG
    variances, vectors = np.linalg.eigh(centre @ free.covariance(diagonal) @ centre)
    variances = np.maximum(variances[1:], count * np.finfo(float).eps * free.size**2)  # the first is that of c
    means = vectors[:, 1:].T @ centre @ free.mean[diagonal]
    precision = np.maximum(1 / variances - free.size**-2, 0.0)  # without the prior of `free`
    pulled = means / variances  # precision times what the messages alone say
    gain = precision * _SPREAD**2
    return float(np.sum(np.log1p(gain) - pulled**2 * _SPREAD**2 / (1 + gain)) / 2)


def _images(U: Array, coordinates: SymmetricMatrices) -> Array:
    """Return (I - U U^T) E U for every coordinate's matrix E, (features rank, coordinates)."""
    every = coordinates.times(U)
    flat = every.reshape(len(U), -1)
    return np.asarray(off(U, flat).reshape(every.shape).transpose(0, 2, 1).reshape(U.size, -1))
