"""Result of fitting one client's Gram matrix S, and the test that proves it.

Attacks on LocalPower, FedPG and FedPE vary S until a simulated client sends the observed messages (`repeated_products`,
`_duals/local_steps_fit`), and return this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from securefed._tensors import Array

PROOF: Final = 1e-9
"""Norm of the residual below which a fit may count as proven: round-off, since the residual is in units in which the
fitted numbers are about 1."""
_LARGEST_ERROR: Final = 1e-3
"""A fit is proven only where residual times condition number, which bounds the relative error along the weakest
direction of S to first order, is below this."""


@dataclass(frozen=True)
class FittedGram:
    """A Gram matrix S that was fitted to messages, and how well these determine it.

    Attributes:
        gram: S, (features, features); up to a multiple of I where the messages do not depend on that.
        residual: norm of all differences between simulated and observed messages, in relative units.
        rank: rank of the Jacobian of the messages by the parameters of S.
        unknowns: number of directions of S on which the messages depend; the fit determines all where `rank` equals it.
        condition: condition number of the Jacobian over the directions that count for `rank`.
    """

    gram: Array
    residual: float
    rank: int
    unknowns: int
    condition: float

    @property
    def proven(self) -> bool:
        """Return whether the residual is round-off, all directions are determined, and none can hide a large error."""
        return self.residual < PROOF and self.rank == self.unknowns and self.residual * self.condition < _LARGEST_ERROR
