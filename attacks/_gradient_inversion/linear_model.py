"""Gradients of logistic and softmax regression for any leading axes, and their derivatives by the rows.

With logits z_k = W x_k + b of row k, probabilities p_k = softmax(z_k) (logistic: sigmoid), labels y_k as probabilities
and weights v_k of the rows, the gradient of sum_k v_k loss_k + l2/2 ||W||^2 is

    dW = sum_k v_k (p_k - y_k) x_k^T + l2 W,      db = sum_k v_k (p_k - y_k).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._public import Public
from securefed._tensors import Array
from securefed.attacks._base import Target
from securefed.attacks._gradient_inversion.dual_numbers import DualNumber
from securefed.problems import LogisticRegression, SoftmaxRegression


@dataclass(frozen=True)
class LinearModel:
    """Logits z = W x + b with W (outputs, features); parameters are the rows of W, then b.

    Attributes:
        outputs: number of classes of softmax regression, 1 for logistic regression.
        bias: whether the model has a bias b.
        l2: weight of the penalty.
        logistic: whether this is logistic regression, else softmax regression.
    """

    outputs: int
    bias: bool
    l2: float
    logistic: bool

    @classmethod
    def of(cls, target: Target) -> LinearModel | None:
        """Return the target's model, or `None` if it is not linear."""
        match getattr(target.algorithm, "problem", None):
            case LogisticRegression() as problem:
                return cls(1, problem.bias, problem.l2, True)
            case SoftmaxRegression() as problem:
                return cls(target.public.classes, problem.bias, problem.l2, False)
            case _:
                return None

    @property
    def mirrored(self) -> bool:
        """True if (x, y) and (-x, other label) have the same gradient everywhere, as with two classes and no bias."""
        return not self.bias and (self.logistic or self.outputs == 2)

    def size(self, width: int) -> int:
        """Return the number of parameters for rows of `width` features."""
        return self.outputs * (width + self.bias)

    def weight(self, vector: Array) -> Array:
        """Return the weights (..., outputs, width) as a view of parameters (..., size)."""
        width = vector.shape[-1] // self.outputs - self.bias
        return vector[..., : self.outputs * width].reshape(*vector.shape[:-1], self.outputs, width)

    def offset(self, vector: Array) -> Array | float:
        """Return the bias (..., outputs) as a view of parameters (..., size); 0 without a bias."""
        return vector[..., -self.outputs :] if self.bias else 0.0

    def project(self, vector: Array, basis: Array) -> Array:
        """Return parameters that act on coordinates in the orthonormal rows of `basis` (r, features)."""
        weight = self.weight(vector) @ basis.T
        flat = weight.reshape(*vector.shape[:-1], -1)
        return np.concatenate([flat, vector[..., -self.outputs :]], axis=-1) if self.bias else flat

    def probabilities(self, z: Array) -> Array:
        """Return the class probabilities of logits (..., outputs)."""
        if self.logistic:
            return np.asarray(0.5 + 0.5 * np.tanh(0.5 * z))
        powers = np.exp(z - z.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def logits(self, vector: Array, x: Array) -> Array:
        """Return the logits (..., rows, outputs) of rows x (..., rows, width)."""
        z = x @ np.swapaxes(self.weight(vector), -1, -2)
        return z + np.asarray(self.offset(vector))[..., None, :] if self.bias else z

    def gradient(self, vector: Array, x: Array, targets: Array, weights: Array) -> Array:
        """Return the weighted sum of the rows' gradients, plus the penalty's; `targets` are (..., rows, outputs)."""
        return self._summed(vector, x, (self.probabilities(self.logits(vector, x)) - targets) * weights[..., None])

    def _summed(self, vector: Array, x: Array, slope: Array) -> Array:
        data = np.swapaxes(slope, -1, -2) @ x
        if self.l2:
            data = data + self.l2 * self.weight(vector)
        flat = data.reshape(*data.shape[:-2], -1)
        return np.concatenate([flat, slope.sum(axis=-2)], axis=-1) if self.bias else flat

    def gradient_by_row_weight(
        self, vector: Array | DualNumber, x: Array, targets: Array, weights: Array
    ) -> DualNumber:
        """Return `gradient` with slopes (rows, ..., outputs): the coefficient of each row in the weights' gradient.

        The slopes are derivatives by an entry of the rows in which the vector is zero.
        """
        point = vector.value if isinstance(vector, DualNumber) else vector
        slope = (self.probabilities(self.logits(point, x)) - targets) * weights[..., None]
        own = np.moveaxis(slope, -2, 0)
        return DualNumber(
            self._summed(point, x, slope), own + self.l2 * vector.slopes if isinstance(vector, DualNumber) else own
        )

    def gradient_by_rows(
        self, vector: Array | DualNumber, x: Array, targets: Array, weights: Array, slots: slice
    ) -> DualNumber:
        """Return `gradient` of x (members, rows, width) with its derivatives by the rows in `slots`.

        The slopes (slots * width, members, parameters) are derivatives of each member's gradient by its own rows. A
        dual `vector` depends on the rows itself: two matrix products over all directions carry that part, and a row's
        own part is an outer product.
        """
        point = vector.value if isinstance(vector, DualNumber) else vector
        members, rows, width = x.shape
        p, weights = self.probabilities(self.logits(point, x)), np.broadcast_to(weights, (members, rows))
        slope = (p - targets) * weights[..., None]
        W = np.broadcast_to(self.weight(point), (members, self.outputs, width))
        mine, here = x[:, slots].swapaxes(0, 1), p[:, slots, None]  # (slots, members, width), (members, slots, 1, out)
        own = self._curved(here, np.swapaxes(W, 1, 2)[:, None]) * weights[:, slots, None, None]
        own = own.transpose(1, 2, 0, 3)  # (slots, width, members, outputs)
        out = np.empty((len(mine) * width, members, self.size(width)))
        by_weight = out[..., : self.outputs * width].reshape(-1, width, members, self.outputs, width)
        np.multiply(own[..., None], mine[:, None, :, None, :], out=by_weight)
        each = np.arange(width)
        by_weight[:, each, :, :, each] += slope[:, slots].swapaxes(0, 1)
        if self.bias:
            out[..., -self.outputs :] = own.reshape(len(out), members, -1)
        if isinstance(vector, DualNumber):
            self._add_carried(vector.slopes, x, p, weights[:, None, None, :], out)
        return DualNumber(self._summed(point, x, slope), out)

    def _add_carried(self, slopes: Array, x: Array, p: Array, weights: Array, out: Array) -> None:
        """Add to `out` the derivatives that come through the vector."""
        directions, (members, rows, width) = len(slopes), x.shape
        by_weight = self.weight(slopes).swapaxes(0, 1)  # (members, directions, outputs, width)
        dz = by_weight.reshape(members, -1, width) @ np.swapaxes(x, 1, 2)
        dz = dz.reshape(members, directions, self.outputs, rows)
        if self.bias:
            dz += slopes[..., -self.outputs :].swapaxes(0, 1)[..., None]
        turned = np.swapaxes(p, 1, 2)[:, None]
        if self.logistic:
            dz *= turned * (1.0 - turned) * weights
        else:
            dz -= np.einsum("mcr,mdcr->mdr", turned[:, 0], dz)[:, :, None]
            dz *= turned * weights
        back = (dz.reshape(members, -1, rows) @ x).reshape(members, directions, self.outputs, width)
        if self.l2:
            back += self.l2 * by_weight
        out[..., : self.outputs * width] += back.swapaxes(0, 1).reshape(directions, members, -1)
        if self.bias:
            out[..., -self.outputs :] += dz.sum(axis=-1).swapaxes(0, 1)

    def _curved(self, p: Array, dz: Array) -> Array:
        """Return the change of the probabilities (..., outputs) for a change `dz` of the logits."""
        if self.logistic:
            return np.asarray(p * (1.0 - p) * dz)
        return np.asarray(p * (dz - np.sum(p * dz, axis=-1, keepdims=True)))

    def targets(self, labels: Array) -> Array:
        """Encode labels as probabilities (..., outputs)."""
        return labels[..., None].astype(float) if self.logistic else np.eye(self.outputs)[labels]


def number_of_classes(model: LinearModel, public: Public) -> int:
    """Return the number of possible labels."""
    return 2 if model.logistic else public.classes
