"""Compare all messages of a FAPS client with simulated ones, entry by entry, with the rounding error of every entry.

FAPS is federated PCA; a client's message in round k is a matrix Y_k, (features, rank), and a scalar tr(Z_k^T S Z_k),
with Z_k the broadcast basis. Both are known functions (`client_equations`) of the client's Gram matrix S and of its
inner counts, the numbers of iterations that it makes in rounds 1, 2, ... Where FAPS fixes the inner counts they are
public; where a rule ends the iterations they are unknowns, as real numbers: c = j + tau with 0 < tau < 1 stands for a
subspace between those after j and j + 1 iterations, at the share tau of the way (`simulated_client`). FAPS' penalty
beta is a public multiple of lambda_1(S), the largest eigenvalue.

`noise_weighted_fit` minimises the differences, each over its standard deviation. `client_fit`, which runs before it,
takes lambda_1(S) from the first message as exact; here it is an unknown, since the messages carry errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._pca.faps import FAPS
from securefed.algorithms._pca.server import PRODUCT
from securefed.attacks._base import RoundView
from securefed.attacks._gram.coordinates import GramParametrisation
from securefed.attacks._gram.faps.client_equations import ClientEquations
from securefed.errors import DivergenceError

SMALLEST = 1e-3
"""Share of its message's root mean square. The errors of an entry that grow with it (rounding, and the proportional
error of `noise_weighted_fit`) are computed as if the entry were at least so large, so that they do not go to 0."""


def is_single_precision(Y: Array) -> bool:
    """Return whether the numbers are those of float32."""
    return bool(np.array_equal(Y, np.asarray(Y, np.float32)))


def typical_sizes(products: Array) -> Array:
    """Return the root mean square of the entries of each message, (messages, 1, 1)."""
    return np.asarray(np.sqrt(np.mean(np.asarray(products, float) ** 2, axis=(1, 2), keepdims=True)))


@dataclass(frozen=True)
class ReceivedMessages:
    """The observed messages, and those that a simulated client would send.

    The unit of S and of the messages is `scale`, the lambda_1 of the S at which the fit begins. A point of the search
    holds the parameters of S / lambda_1(S), then the inner counts where they are unknown, and last lambda_1(S), called
    the level. FAPS' messages are homogeneous: those for S are the level times those for S / lambda_1(S), which
    `equations` simulates. With the messages it returns the scalars of all rounds and, after them, the largest
    eigenvalue of the simulated matrix, which has to be 1.

    Attributes:
        equations: equations of the simulated client, in all features.
        products: Y_k, (rounds, features, rank).
        rounding: standard deviations of the entries' rounding, (rounds, features, rank).
    """

    equations: ClientEquations
    products: Array
    rounding: Array

    @classmethod
    def of(cls, rounds: Sequence[RoundView], algorithm: FAPS, rows: int, scale: float) -> ReceivedMessages:
        """Read the rounds; numbers of float32 are recognised, and rounded uniformly within their last digit.

        Args:
            rounds: one client's rounds from its first on.
            algorithm: the FAPS that the client runs.
            rows: bound on the rank of S; 0 for none.
            scale: the unit of S.
        """
        # in all features, not in a basis of the messages' span, so that each entry keeps its own rounding error
        equations = ClientEquations.of(rounds, algorithm, rows, scale, reduced=False)
        products = np.stack([o.message[PRODUCT] for o in rounds])
        kind = np.float32 if is_single_precision(products) else np.float64
        spacing = np.spacing(np.maximum(np.abs(products), SMALLEST * typical_sizes(products)).astype(kind))
        # an error uniform over one spacing has the standard deviation spacing / sqrt(12)
        return cls(equations, products.astype(float) / scale, spacing / np.sqrt(12) / scale)

    @property
    def coordinates(self) -> GramParametrisation:
        """Return the parametrisation of S / lambda_1(S)."""
        return self.equations.parametrisation

    def residual(self, point: Array) -> Array:
        """Return the residuals of the entries, of tr(Z_k^T S Z_k) in each round, and of lambda_1(S / level) = 1.

        Their number is rounds * features * rank + rounds + 1. All are NaN where the simulation fails.
        """
        try:
            return self._residual(*self.equations.sent(point[:-1], len(self.products)), point[-1])
        except (LinAlgError, DivergenceError):
            return np.full(self.products.size + len(self.products) + 1, np.nan)

    def linearised(self, point: Array) -> tuple[Array, Array]:
        """Return `residual` and its derivative (equations, parameters).

        With level l: d(l Y(x)) = l dY + Y dl, likewise for the scalars; the last equation does not depend on l. Rows of
        the Jacobian are the entries of the messages, the scalars of the rounds, and that last equation. Its columns are
        the `size` parameters of S / lambda_1(S), the inner counts, on which scalars do not depend, and l.
        """
        size, level, count = self.coordinates.count, point[-1], self.products.size
        sent, tangents, scalars, slopes = self.equations.sent_and_slopes(point[:-1], len(self.products))
        jacobian = np.zeros((count + len(scalars), len(point)))
        # a tangent, (features, parameters, rank), becomes one row for each entry of its message
        jacobian[:count, :-1] = level * np.stack(tangents).transpose(0, 1, 3, 2).reshape(count, -1)
        jacobian[:count, -1] = np.stack(sent).reshape(-1)
        jacobian[count:, :size] = slopes
        jacobian[count:-1, :size] *= level
        jacobian[count:-1, -1] = scalars[:-1]
        return self._residual(sent, scalars, level), jacobian

    def _residual(self, sent: Sequence[Array], scalars: Array, level: float) -> Array:
        """Return `residual` from the messages and scalars that a client with S / lambda_1(S) sends."""
        entries = (level * np.stack(sent) - self.products).reshape(-1)
        return np.concatenate([entries, level * scalars[:-1] - self.equations.captured, scalars[-1:] - 1])
