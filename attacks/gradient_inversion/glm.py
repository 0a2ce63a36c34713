"""The linear models as an attacker computes with them: any leading axes, real or complex numbers.

Complex numbers, because derivatives are taken by a complex step: d f(a) = Im f(a + i h) / h with h = 1e-30 is exact
to rounding for an analytic f, and everything here is analytic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed.algorithms.base import Public
from securefed.attacks.base import Target
from securefed.problems import LogisticRegression, SoftmaxRegression
from securefed.tensors import Array


@dataclass(frozen=True)
class LinearModel:
    """z = W x + b with W (outputs, features), flattened as weight rows, then bias.

    Attributes:
        outputs: classes of softmax, 1 for logistic.      bias: whether there is one.
        l2: weight of the penalty.      logistic: which of the two.
    """

    outputs: int
    bias: bool
    l2: float
    logistic: bool

    @classmethod
    def of(cls, target: Target) -> LinearModel | None:
        """The target's model, or `None` where it is not linear."""
        match getattr(target.algorithm, "problem", None):
            case LogisticRegression() as problem:
                return cls(1, problem.bias, problem.l2, True)
            case SoftmaxRegression() as problem:
                return cls(target.public.classes, problem.bias, problem.l2, False)
            case _:
                return None

    @property
    def mirrored(self) -> bool:
        """Whether (x, y) and (-x, other label) have the same gradient everywhere: two classes, no bias."""
        return not self.bias and (self.logistic or self.outputs == 2)

    def size(self, width: int) -> int:
        """Parameters for rows of `width` features."""
        return self.outputs * (width + self.bias)

    def weight(self, vector: Array) -> Array:
        """(..., outputs, width) view of the weights in (..., size)."""
        width = vector.shape[-1] // self.outputs - self.bias
        return vector[..., : self.outputs * width].reshape(*vector.shape[:-1], self.outputs, width)

    def offset(self, vector: Array) -> Array | float:
        """(..., outputs) view of the bias, 0 without one."""
        return vector[..., -self.outputs :] if self.bias else 0.0

    def project(self, vector: Array, basis: Array) -> Array:
        """The vector for rows given by their coordinates in the orthonormal rows of `basis` (r, features)."""
        weight = self.weight(vector) @ basis.T
        flat = weight.reshape(*vector.shape[:-1], -1)
        return np.concatenate([flat, vector[..., -self.outputs :]], axis=-1) if self.bias else flat

    def probabilities(self, z: Array) -> Array:
        """(..., outputs) for logits of that shape."""
        if self.logistic:
            return np.asarray(0.5 + 0.5 * np.tanh(0.5 * z))
        powers = np.exp(z - z.real.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def logits(self, vector: Array, x: Array) -> Array:
        """(..., rows, outputs) for rows x (..., rows, width)."""
        z = x @ np.swapaxes(self.weight(vector), -1, -2)
        return z + np.asarray(self.offset(vector))[..., None, :] if self.bias else z

    def gradient(self, vector: Array, x: Array, targets: Array, weights: Array) -> Array:
        """Weighted sum over rows of the gradients, plus the penalty's. `targets` (..., rows, outputs)."""
        slope = (self.probabilities(self.logits(vector, x)) - targets) * weights[..., None]
        data = np.swapaxes(slope, -1, -2) @ x
        if self.l2:
            data = data + self.l2 * self.weight(vector)
        flat = data.reshape(*data.shape[:-2], -1)
        return np.concatenate([flat, slope.sum(axis=-2)], axis=-1) if self.bias else flat

    def targets(self, labels: Array) -> Array:
        """(..., outputs) what `probabilities` should be."""
        return labels[..., None].astype(float) if self.logistic else np.eye(self.outputs)[labels]


def classes(model: LinearModel, public: Public) -> int:
    """Number of labels."""
    return 2 if model.logistic else public.classes
