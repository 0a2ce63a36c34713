"""Add a regulariser Psi to a method: each local gradient step is followed by the proximal operator of Psi.

prox_{eta Psi}(v) = argmin_z  Psi(z) + ||z - v||^2 / (2 eta),    eta the learning rate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from securefed._public import Public
from securefed._tensors import Array, Ring
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.proximal import NoRegulariser, Regulariser, check_regulariser, reach


@dataclass(frozen=True, kw_only=True)
class ProximalSteps(GradientMethod):
    """Add a proximal step: each local step x <- x - eta d becomes x <- prox_{eta Psi}(x - eta d)  (LoSAC, 16).

    Attributes:
        regulariser: Psi.
    """

    regulariser: Regulariser = NoRegulariser()

    replayable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_regulariser(self.regulariser)

    def widened(
        self, factors: Mapping[str, tuple[float, Ring]], steps: int, public: Public
    ) -> dict[str, tuple[float, Ring]]:
        """Add to the bound of `dx` the largest change of an entry by Psi in so many steps."""
        moved, ring = factors["dx"]
        further = steps * self.learning_rate * reach(self.regulariser, self.problem, public)
        return {**factors, "dx": (moved + further, ring)}

    def moved(self, point: Array, direction: Array, public: Public) -> Array:
        """Make one local step from a point."""
        layout = Model(self.problem, public).layout
        return self.regulariser.prox(super().moved(point, direction, public), self.learning_rate, layout)  # (16)
