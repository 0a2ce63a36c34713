"""Train a linear support vector machine of several classes, NumPy only.

z = W x + b,   loss = mean_k 1/C sum_{j != y_k} max(0, 1 - z_{y_k} + z_j)^power + l2/2 ||W||^2

Source: Weston and Watkins, Support Vector Machines for Multi-Class Pattern Recognition (1999). FLAME's table I names
an SVM of 610 parameters (60 features, 10 classes) and no loss; the authors' code takes this one with power 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from securefed._public import Public, require
from securefed._tensors import Array, Tensors
from securefed.problems._cross_entropy import at
from securefed.problems._linear import LinearProblem

PRACTICAL_MARGIN = 10.0
"""Up to this difference of two logits the bound of the squared hinge's gradient holds."""


@dataclass(frozen=True)
class SupportVectorMachine(LinearProblem):
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
        require(self.power in (1, 2), f"power is 1 (hinge) or 2 (squared hinge), not {self.power}")

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        require(public.classes >= 2, f"a classifier needs at least 2 classes, the data declares {public.classes}")
        return {"weight": (public.classes, public.features)} | ({"bias": (public.classes,)} if self.bias else {})

    def gradient_bounds(self, public: Public) -> dict[str, float]:
        """Bound the gradient: |dl/dz| <= (C - 1) / C for the hinge, 2 (1 + |z_j - z_y|) times that for its square.

        The latter is declared for differences up to `PRACTICAL_MARGIN`: beyond, clients refuse and the bound doubles.
        """
        steepest = (public.classes - 1) / public.classes * (1.0 if self.power == 1 else 2.0 * (1.0 + PRACTICAL_MARGIN))
        return self._bounds(public, steepest)

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Compute the mean loss of the rows `x`, regulariser included."""
        z = self.logits(parameters, x)
        excess = _excess(z, y)
        return float((excess**self.power).sum() / z.size) + self.penalty(parameters)

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> dict[str, Array]:
        """Compute the gradient of `loss`."""
        x = np.asarray(x, self.dtype)
        slope = self._slope(self.logits(parameters, x), y) / len(x)
        out: dict[str, Array] = {"weight": slope.T @ x + self.l2 * parameters["weight"]}
        if self.bias:
            out["bias"] = slope.sum(axis=0)
        return out

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the gradients of several clients at once, as in `Problem.gradients`."""
        W = parameters["weight"]
        z = x @ W.transpose(0, 2, 1)
        slope = self._slope(z + parameters["bias"][:, None, :] if self.bias else z, y) * weights[:, :, None]
        out: dict[str, Array] = {"weight": slope.transpose(0, 2, 1) @ x + self.l2 * W}
        if self.bias:
            out["bias"] = slope.sum(axis=1)
        return out

    def predict(self, parameters: Tensors, x: Array) -> Array:
        """Predict the (rows,) int64 labels."""
        return np.asarray(self.logits(parameters, x).argmax(axis=1), dtype=np.int64)

    def _slope(self, z: Array, y: Array) -> Array:
        """Compute d (a row's loss) / dz."""
        excess = _excess(z, y)
        slope: Array = (excess > 0).astype(self.dtype) if self.power == 1 else 2.0 * excess
        slope /= z.shape[-1]
        slope[at(y)] = -slope.sum(axis=-1)
        return slope


def _excess(z: Array, y: Array) -> Array:
    """max(0, 1 - z_y + z_j), 0 for j = y."""
    own = at(y)
    excess: Array = 1.0 + z - z[own][..., None]
    np.maximum(excess, 0.0, out=excess)
    excess[own] = 0.0
    return excess
