"""What FAPS' rounds say of a client of few rows before anything is simulated: the start of the fit.

`near_consensus` takes S for any symmetric matrix, and cuts it to rank and sign afterwards. Here the same equations are
solved in the parameters of the fit, which hold the first message and the rank for certain, and lambda_1(S), known too,
is one more. On clients of 8 rows that leaves a third of the error, where the span is known and all rounds are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefed.algorithms.pca.operators import off
from securefed.algorithms.pca.server import BASIS, CAPTURED, PRODUCT
from securefed.attacks.base import Observation
from securefed.attacks.gram.coordinates import Coordinates, Directions
from securefed.attacks.gram.near_consensus import spread_out, spreads
from securefed.attacks.levenberg import levenberg
from securefed.tensors import Array

_ROUNDS, _STEPS, _LEAST = 12, 60, 1e-3
_EXACT, _CLOSEST = 1e-3, 1e-4
"""Standard deviations, in units of lambda_1: of what is known for certain, and of a block at the least."""


def within(coordinates: Coordinates, guess: Array, rounds: Sequence[Observation], frame: Array, scale: float) -> Array:
    """S near consensus in the frame, among what the parameters allow; in units of `scale`.

    Args:
        guess: of S, in the frame and these units.      rounds: from the client's first message on.
        frame: orthonormal, (features, directions).      scale: lambda_1(S).
    """
    equations = _Equations.of(coordinates, spread_out(rounds, _ROUNDS), frame, scale)
    found = levenberg(equations.linearised, coordinates.coordinates(guess), steps=_STEPS, goal=0.0, least=_LEAST)
    return coordinates.matrix(found.point)


@dataclass(frozen=True)
class _Equations:
    """Misfits in units of their standard deviations, then the entries of S in units of the prior's.

    Attributes:
        probes: Z_k in the frame, (rounds, directions, rank).      blocks: (I - Z_k Z_k^T) Y_k, likewise.
        deviations: of the blocks' entries, (rounds,).      captured: tr(Z_k^T S Z_k), (rounds,).
    """

    coordinates: Coordinates
    probes: Array
    blocks: Array
    deviations: Array
    captured: Array

    @classmethod
    def of(cls, coordinates: Coordinates, rounds: Sequence[Observation], frame: Array, scale: float) -> _Equations:
        Z = np.stack([o.broadcast[BASIS] for o in rounds])
        Y = np.stack([o.message[PRODUCT] for o in rounds])
        return cls(
            coordinates,
            frame.T @ Z,
            frame.T @ np.stack([off(z, y) for z, y in zip(Z, Y, strict=True)]) / scale,
            np.maximum(spreads(Z, Y), _CLOSEST),
            np.array([float(o.message[CAPTURED]) for o in rounds]) / scale,
        )

    def linearised(self, x: Array) -> tuple[Array, Array]:
        S, directions = self.coordinates.matrix(x), self.coordinates.at(x)
        values, vectors = np.linalg.eigh(S)
        size = len(S)
        residuals, slopes = [np.array([values[-1] - 1]) / _EXACT], [self._slope(directions, vectors[:, -1:])]
        for Z, block, deviation, seen in zip(self.probes, self.blocks, self.deviations, self.captured, strict=True):
            beside = np.eye(size) - Z @ Z.T
            residuals += [
                (beside @ S @ Z - block).reshape(-1) / deviation,
                np.array([np.vdot(Z, S @ Z) - seen]) / _EXACT,
            ]
            moved = np.tensordot(beside, directions.times(Z), 1).transpose(0, 2, 1)
            slopes += [moved.reshape(-1, len(x)) / deviation, self._slope(directions, Z)]
        i, j = np.triu_indices(size)
        weight = size * np.where(i == j, 1.0, np.sqrt(2.0))  # entries of S / lambda_1 of variance 1 / size^2
        residuals.append(weight * S[i, j])
        slopes.append(weight[:, None] * directions.times(np.eye(size))[i, :, j])
        return np.concatenate(residuals), np.vstack(slopes)

    @staticmethod
    def _slope(directions: Directions, Z: Array) -> Array:
        """Of tr(Z^T S Z)."""
        return np.asarray(directions.slopes(Z @ Z.T)[None] / _EXACT)
