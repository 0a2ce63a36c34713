"""Add a regulariser Psi to a method: each local gradient step is followed by the proximal operator of Psi.

    prox_{eta Psi}(v) = argmin_z  Psi(z) + ||z - v||^2 / (2 eta),    eta the learning rate

The class here is mixed into LoSAC and SCAFFOLD: these make every local step by `moved`, which it overrides.
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

    replayable: ClassVar[bool] = False  # its steps are not linear (`GradientMethod.replayable`)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_regulariser(self.regulariser)

    def widened(
        self, factors: Mapping[str, tuple[float, Ring]], steps: int, public: Public
    ) -> dict[str, tuple[float, Ring]]:
        """Add to the bound of `dx`, the client's update, the largest change of an entry by Psi in so many steps.

        Args:
            factors: for each vector sent its largest entry, in units of a gradient's, and the bits of its integers.
            steps: number of local steps.
            public: public facts, from which a gradient's bound follows.
        """
        moved, ring = factors["dx"]
        further = steps * self.learning_rate * reach(self.regulariser, self.problem, public)
        return {**factors, "dx": (moved + further, ring)}

    def moved(self, point: Array, direction: Array, public: Public) -> Array:
        """Return prox_{eta Psi}(point - eta direction), of the shape of `point`, (..., parameters)."""
        layout = Model(self.problem, public).layout
        return self.regulariser.prox(super().moved(point, direction, public), self.learning_rate, layout)  # (16)
