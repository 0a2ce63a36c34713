"""The linear models as an attacker computes with them: any leading axes; gradients, and their derivatives by rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed.attacks.base import Target
from securefed.attacks.gradient_inversion.dual import Dual
from securefed.problems import LogisticRegression, SoftmaxRegression
from securefed.public import Public
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
        powers = np.exp(z - z.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def logits(self, vector: Array, x: Array) -> Array:
        """(..., rows, outputs) for rows x (..., rows, width)."""
        z = x @ np.swapaxes(self.weight(vector), -1, -2)
        return z + np.asarray(self.offset(vector))[..., None, :] if self.bias else z

    def gradient(self, vector: Array, x: Array, targets: Array, weights: Array) -> Array:
        """Weighted sum over rows of the gradients, plus the penalty's. `targets` (..., rows, outputs)."""
        return self._summed(vector, x, (self.probabilities(self.logits(vector, x)) - targets) * weights[..., None])

    def _summed(self, vector: Array, x: Array, slope: Array) -> Array:
        data = np.swapaxes(slope, -1, -2) @ x
        if self.l2:
            data = data + self.l2 * self.weight(vector)
        flat = data.reshape(*data.shape[:-2], -1)
        return np.concatenate([flat, slope.sum(axis=-2)], axis=-1) if self.bias else flat

    def weighed(self, vector: Array | Dual, x: Array, targets: Array, weights: Array) -> Dual:
        """`gradient` with slopes (rows, ..., outputs): how much each row counts in the gradient of the weights.

        They are its derivatives by an entry of the rows in which the vector is zero.
        """
        point = vector.value if isinstance(vector, Dual) else vector
        slope = (self.probabilities(self.logits(point, x)) - targets) * weights[..., None]
        own = np.moveaxis(slope, -2, 0)
        return Dual(self._summed(point, x, slope), own + self.l2 * vector.slopes if isinstance(vector, Dual) else own)

    def sensitive(self, vector: Array | Dual, x: Array, targets: Array, weights: Array, slots: slice) -> Dual:
        """`gradient` for x (members, rows, width) with its derivatives by every entry of the rows in `slots`, those of
        all members side by side: slopes (slots * width, members, parameters). A dual `vector` depends on rows itself.

        Two matrix products over all directions carry the vector's part; a row's own part is an outer product.
        """
        point = vector.value if isinstance(vector, Dual) else vector
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
        if isinstance(vector, Dual):
            self._carried(vector.slopes, x, p, weights[:, None, None, :], out)
        return Dual(self._summed(point, x, slope), out)

    def _carried(self, slopes: Array, x: Array, p: Array, weights: Array, out: Array) -> None:
        """Adds what derivatives of the vector become in those of its gradient."""
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
        """Change of the probabilities (..., outputs) with the logits."""
        if self.logistic:
            return np.asarray(p * (1.0 - p) * dz)
        return np.asarray(p * (dz - np.sum(p * dz, axis=-1, keepdims=True)))

    def targets(self, labels: Array) -> Array:
        """(..., outputs) what `probabilities` should be."""
        return labels[..., None].astype(float) if self.logistic else np.eye(self.outputs)[labels]


def classes(model: LinearModel, public: Public) -> int:
    """Number of labels."""
    return 2 if model.logistic else public.classes
