"""Train a linear support vector machine of several classes, NumPy only.

A row x with label y of C classes has the logits z = W x + b.

    loss = mean over rows of 1/C sum_{j != y} max(0, 1 - z_y + z_j)^power + l2/2 ||W||^2

Source: Weston and Watkins, Support Vector Machines for Multi-Class Pattern Recognition (1999). FLAME's table I names
an SVM of 610 parameters (60 features, 10 classes) and no loss; the authors' code takes this one with power 1.

In code, the slope is the derivative of the loss by z, and the excess of class j is max(0, 1 - z_y + z_j). Gradient
methods (securefed.algorithms) train it; `MulticlassProblem` turns slopes into gradients of `weight` and `bias`. The
declared bounds of a gradient scale fixed-point sums: a client whose message is beyond them refuses, and the run repeats
the round with twice the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from securefed._hyperparameters import check_choice
from securefed._public import Public
from securefed._tensors import Array, Tensors
from securefed.problems._cross_entropy import at
from securefed.problems._linear import MulticlassProblem

PRACTICAL_MARGIN = 10.0
"""Up to this difference of two logits the bound of the squared hinge's gradient holds."""


@dataclass(frozen=True)
class SupportVectorMachine(MulticlassProblem):
    """Multi-class support vector machine; parameters `weight` (classes, features) and `bias` (classes,).

    Attributes:
        power: 1, the hinge, whose gradient jumps where a margin is exactly 1 (there it is that of the flat side), or 2,
            the squared hinge.
    """

    name: ClassVar[str] = "svm"

    power: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_choice("power", self.power, (1, 2))

    def gradient_bounds(self, public: Public) -> dict[str, float]:
        """Bound the gradient: |dl/dz| <= (C - 1) / C for the hinge, 2 (1 + |z_j - z_y|) times that for its square.

        The latter is declared for differences up to `PRACTICAL_MARGIN`.
        """
        steepest = (public.classes - 1) / public.classes * (1.0 if self.power == 1 else 2.0 * (1.0 + PRACTICAL_MARGIN))
        return self._bounds(public, steepest)

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Compute the mean loss of the rows `x`, regulariser included."""
        z = self.logits(parameters, x)
        excess = _excess(z, y)
        return float((excess**self.power).sum() / z.size) + self.penalty(parameters)

    def slope(self, z: Array, y: Array) -> Array:
        """Compute d (mean loss of the rows) / dz, for z (rows, classes) and labels y (rows,)."""
        return self._slope(z, y) / len(z)

    def slopes(self, z: Array, y: Array, weights: Array) -> Array:
        """Compute d (sum over rows of weight * loss) / dz for several clients, z (clients, widest, classes).

        `weights`, (clients, widest), are those of the rows in their client's mean, 0 on padding.
        """
        return self._slope(z, y) * weights[:, :, None]

    def _slope(self, z: Array, y: Array) -> Array:
        """Compute d (a row's loss) / dz, for one client's rows or several clients'."""
        excess = _excess(z, y)
        slope: Array = (excess > 0).astype(self.dtype) if self.power == 1 else 2.0 * excess
        slope /= z.shape[-1]
        slope[at(y)] = -slope.sum(axis=-1)  # at(y): the places of z_y, which is in every term with the other sign
        return slope


def _excess(z: Array, y: Array) -> Array:
    """Compute max(0, 1 - z_y + z_j) for every row and class j, and 0 for j = y."""
    own = at(y)
    excess: Array = 1.0 + z - z[own][..., None]
    np.maximum(excess, 0.0, out=excess)
    excess[own] = 0.0
    return excess
