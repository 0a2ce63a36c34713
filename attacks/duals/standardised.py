"""FedPG of clients that z-score their columns: a unit diagonal is known beside the messages, once it shows in them.

One local step is linear in S, so S is solved for entry by entry here, every direction with the precision that the
messages leave of it. That says how likely a constant diagonal is, and where it is, all of it is taken as known: as many
equations as features, which also fix the shift that FedPG is blind to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed.algorithms.pca.operators import off
from securefed.attacks.duals.steps import Step
from securefed.attacks.gram.coordinates import SymmetricMatrices
from securefed.attacks.gram.linear import nearest_psd
from securefed.tensors import Array

_ODDS = 7.0
"""Logarithm of the odds from which on a constant diagonal is believed: a thousand to one."""
_SPREAD = 0.2
"""Standard deviation of the diagonal of data that are not z-scored; most have more, which shows sooner."""
_REDUNDANCY = 6
"""So many times as many equations as entries are used, of steps spread over the run."""
_TOLD = 4.0
"""What the numbers say of their own rounding counts as much as this many misfits of the equations."""
_SIZES = np.logspace(-2, 1, 31)


@dataclass(frozen=True)
class Solved:
    """S with a unit diagonal.

    Attributes:
        gram: S.      residual: relative.
        rank, unknowns: entries beside the diagonal that the messages rather than the prior determine, of all.
        condition: of their equations, over those.
        error: relative, to be expected of S.
    """

    gram: Array
    residual: float
    rank: int
    unknowns: int
    condition: float
    error: float


def with_unit_diagonal(steps: Sequence[Step], blocks: Sequence[Array], step_size: float) -> Solved | None:
    """S from blocks (I - U U^T) S U, or `None` where they do not make a constant diagonal a thousand times likelier.

    Args:
        blocks: of the steps.      step_size: by which messages' rounding is divided.
    """
    coordinates = SymmetricMatrices.of(len(steps[0].start))
    enough = _REDUNDANCY * coordinates.count // blocks[0].size + 2
    used = np.unique(np.linspace(0, len(steps) - 1, min(enough, len(steps))).round().astype(int))
    steps, blocks = [steps[k] for k in used], [blocks[k] for k in used]
    matrix = np.vstack([_images(step.start, coordinates) for step in steps])
    right = np.concatenate([block.reshape(-1) for block in blocks])
    # a block is half the difference of two differences of messages over the step size
    told = max(step.error for step in steps) * np.sqrt(6) / (2 * step_size)
    free = Ridge.of(matrix, right, told, sum(step.start.shape[1] ** 2 for step in steps))
    diagonal = coordinates.i == coordinates.j
    if _odds(free, diagonal) < _ODDS:
        return None
    rest = Ridge.of(matrix[:, ~diagonal], right - matrix[:, diagonal].sum(axis=1), told, free.empty)
    x = np.ones(coordinates.count)
    x[~diagonal] = rest.mean
    gram = nearest_psd(coordinates.matrix(x))
    misfit = float(np.linalg.norm(matrix @ coordinates.coordinates(gram) - right))
    kept = rest.determined
    return Solved(
        gram=gram,
        residual=misfit / (float(np.linalg.norm(right)) or 1.0),
        rank=int(kept.sum()),
        unknowns=int((~diagonal).sum()),
        condition=float(rest.singular[0] / rest.singular[kept][-1]) if kept.any() else float("nan"),
        error=float(np.sqrt(rest.uncertainty) / np.linalg.norm(gram)),
    )


@dataclass(frozen=True)
class Ridge:
    """The posterior of x with matrix x = right + noise and a normal prior of mean zero.

    Attributes:
        singular, directions: of the matrix, (r,) and (r, unknowns).      seen: the right side along them.
        noise: standard deviation of the right side.      size: of x, the likeliest.
        empty: equations that hold nothing.
    """

    singular: Array
    directions: Array
    seen: Array
    noise: float
    size: float
    empty: int

    @classmethod
    def of(cls, matrix: Array, right: Array, told: float, empty: int) -> Ridge:
        """With noise as `told`, or what the equations contradict each other by."""
        U, s, Vt = np.linalg.svd(matrix, full_matrices=False)
        kept = s > np.finfo(float).eps * max(matrix.shape) * s[0]
        seen = U.T @ right
        spare = max(len(right) - empty - int(kept.sum()), 0)
        told = max(told, np.finfo(float).eps * float(np.linalg.norm(right)))
        left = float(np.sum((right - U[:, kept] @ seen[kept]) ** 2))
        noise = float(np.sqrt((_TOLD * told**2 + left) / (_TOLD + spare)))
        variances = (_SIZES[:, None] * s) ** 2 + noise**2
        size = float(_SIZES[np.argmin(np.sum(np.log(variances) + seen**2 / variances, axis=1))])
        return cls(s, Vt, seen, noise, size, empty)

    @property
    def mean(self) -> Array:
        return np.asarray(self.directions.T @ (self.singular * self.seen / (self.singular**2 + self._ratio)))

    @property
    def determined(self) -> Array:
        """The directions that the equations determine rather than the prior."""
        return self.singular**2 > self._ratio

    @property
    def uncertainty(self) -> float:
        """Expected ||x - mean||^2."""
        return float(np.sum(self._variances) + self.size**2 * (self.directions.shape[1] - len(self.singular)))

    def covariance(self, chosen: Array) -> Array:
        """Of the chosen entries of x."""
        V = self.directions[:, chosen]
        return np.asarray(self.size**2 * np.eye(V.shape[1]) - (V.T * (self.size**2 - self._variances)) @ V)

    @property
    def _ratio(self) -> float:
        return (self.noise / self.size) ** 2

    @property
    def _variances(self) -> Array:
        return np.asarray(self.noise**2 / (self.singular**2 + self._ratio))


def _odds(free: Ridge, diagonal: Array) -> float:
    """Logarithm of how much likelier the messages are with a constant diagonal than with one that spreads."""
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
    """(I - U U^T) E U for every coordinate's matrix E, (features rank, coordinates)."""
    every = coordinates.times(U)
    flat = every.reshape(len(U), -1)
    return np.asarray(off(U, flat).reshape(every.shape).transpose(0, 2, 1).reshape(U.size, -1))
