"""Compute gradients of logistic and softmax regression, and the derivatives of these gradients by the rows.

With logits z_k = W x_k + b of row k, probabilities p_k = softmax(z_k) (logistic: sigmoid), labels y_k as probabilities
and row weights v_k, the gradient of sum_k v_k loss_k + l2/2 ||W||^2 is

    dW = sum_k v_k (p_k - y_k) x_k^T + l2 W,      db = sum_k v_k (p_k - y_k).

Attacks on these models simulate clients on guessed rows (`round_simulation`) and need both. Leading axes of arrays are
free: they count clients or alternatives that are computed together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._public import Public
from securefed._tensors import Array
from securefed.attacks._base import Target
from securefed.attacks._engine import DualArray
from securefed.attacks._engine.forward import value_of
from securefed.problems import LogisticRegression, SoftmaxRegression


@dataclass(frozen=True)
class LinearModel:
    """Logits z = W x + b with W (outputs, features); parameters are the rows of W, then b.

    Attributes:
        outputs: number of classes of softmax regression, 1 for logistic regression.
        bias: whether the model has a bias b.
        l2: factor of the penalty ||W||^2 / 2.
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
                return cls(1, problem.bias, problem.l2, logistic=True)
            case SoftmaxRegression() as problem:
                return cls(target.public.classes, problem.bias, problem.l2, logistic=False)
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

    def logits(self, vector: Array, x: Array, seen: int | None = None) -> Array:
        """Return the logits (..., rows, outputs) of rows x (..., rows, width), of their first `seen` entries alone."""
        z = x[..., :seen] @ np.swapaxes(self.weight(vector)[..., :seen], -1, -2)
        return z + np.asarray(self.offset(vector))[..., None, :] if self.bias else z

    def gradient(self, vector: Array, x: Array, targets: Array, row_weights: Array, seen: int | None = None) -> Array:
        """Return the gradient of the weighted loss at the parameters `vector` (the formula at the top of this file).

        Args:
            vector: (..., parameters).
            x: (..., rows, width).
            targets: (..., rows, outputs), y_k.
            row_weights: (..., rows), v_k.
            seen: number of entries of a row on which its logits depend; all by default.
        """
        slope = (self.probabilities(self.logits(vector, x, seen)) - targets) * row_weights[..., None]
        return self._summed(vector, x, slope)

    def _summed(self, vector: Array, x: Array, slope: Array) -> Array:
        """Return parameters (..., size) of weights sum_k r_k x_k^T + l2 W and bias sum_k r_k.

        Args:
            vector: (..., parameters), with the weights W.
            x: (..., rows, width).
            slope: (..., rows, outputs), r_k = v_k (p_k - y_k), the derivative of the weighted loss by the logits.
        """
        data = np.swapaxes(slope, -1, -2) @ x
        if self.l2:
            data = data + self.l2 * self.weight(vector)
        flat = data.reshape(*data.shape[:-2], -1)
        return np.concatenate([flat, slope.sum(axis=-2)], axis=-1) if self.bias else flat

    def gradient_by_rows(
        self, vector: Array | DualArray, x: Array, targets: Array, row_weights: Array, slots: slice
    ) -> DualArray:
        """Return `gradient` with its derivatives with respect to some of the rows.

        After the first local step the parameters depend on the rows: `vector` is then a `DualArray`, and the Hessian
        of the loss times its slopes is added to the derivatives.

        Args:
            vector: (members, parameters); a member is a client of the sum, with rows of its own.
            x: (members, rows, width).
            targets: (members, rows, outputs).
            row_weights: (members, rows).
            slots: the rows by which each member's gradient is differentiated.

        Returns:
            The gradients, with slopes (members, parameters, slots * width); in memory the directions come first.
        """
        point = value_of(vector)
        members, rows, width = x.shape
        p, row_weights = self.probabilities(self.logits(point, x)), np.broadcast_to(row_weights, (members, rows))
        slope = (p - targets) * row_weights[..., None]
        W = np.broadcast_to(self.weight(point), (members, self.outputs, width))
        # Shapes: (slots, members, width) for the rows, (members, slots, 1, outputs) for their probabilities.
        # Row k occurs in r_k x_k^T twice. By entry e of the row, with p' the Jacobian of the probabilities by the
        # logits and W_e column e of W:  d r_k = v_k p'(z_k) W_e  and  d x_k = unit vector e.
        varied, p_varied = x[:, slots].swapaxes(0, 1), p[:, slots, None]
        d_slope = self._probability_change(p_varied, np.swapaxes(W, 1, 2)[:, None]) * row_weights[:, slots, None, None]
        d_slope = d_slope.transpose(1, 2, 0, 3)  # (slots, width, members, outputs)
        out = np.empty((len(varied) * width, members, self.size(width)))
        by_weight = out[..., : self.outputs * width].reshape(-1, width, members, self.outputs, width)
        np.multiply(d_slope[..., None], varied[:, None, :, None, :], out=by_weight)  # d r_k x_k^T
        # r_k d x_k^T has r_k in column e. A view, (slots, width, members, outputs), of the places whose column is the e
        # by which the row is differentiated:
        column_e = np.einsum("kemoe->kemo", by_weight)
        column_e += slope[:, slots].swapaxes(0, 1)[:, None]
        if self.bias:
            out[..., -self.outputs :] = d_slope.reshape(len(out), members, -1)
        if isinstance(vector, DualArray):
            self._add_hessian_times(np.moveaxis(vector.slopes, -1, 0), x, p, row_weights[:, None, None, :], out)
        return DualArray(self._summed(point, x, slope), np.moveaxis(out, 0, -1))

    def _add_hessian_times(self, slopes: Array, x: Array, p: Array, row_weights: Array, out: Array) -> None:
        """Add to `out` the Hessian of the weighted loss times each direction of the parameters' `slopes`.

        Along a direction (U, u) of weights and bias, the logits of row k change by dz_k = U x_k + u, so the gradient of
        the weights by sum_k v_k p'(z_k) dz_k x_k^T + l2 U, and that of the bias by sum_k v_k p'(z_k) dz_k.

        Args:
            slopes: (directions, members, parameters).
            x: (members, rows, width).
            p: (members, rows, outputs) probabilities.
            row_weights: (members, 1, 1, rows) v_k.
            out: (directions, members, parameters), changed in place.
        """
        directions, (members, rows, width) = len(slopes), x.shape
        by_weight = self.weight(slopes).swapaxes(0, 1)  # (members, directions, outputs, width)
        dz = by_weight.reshape(members, -1, width) @ np.swapaxes(x, 1, 2)
        dz = dz.reshape(members, directions, self.outputs, rows)
        if self.bias:
            dz += slopes[..., -self.outputs :].swapaxes(0, 1)[..., None]
        p_by_class = np.swapaxes(p, 1, 2)[:, None]  # (members, 1, outputs, rows), beside dz with its directions
        # In place, since dz is the largest array here; the same derivative as in `_probability_change`.
        if self.logistic:
            dz *= p_by_class * (1.0 - p_by_class) * row_weights
        else:  # p' dz = p (dz - <p, dz>)
            dz -= np.einsum("mcr,mdcr->mdr", p_by_class[:, 0], dz)[:, :, None]
            dz *= p_by_class * row_weights
        d_weight = (dz.reshape(members, -1, rows) @ x).reshape(members, directions, self.outputs, width)
        if self.l2:
            d_weight += self.l2 * by_weight
        out[..., : self.outputs * width] += d_weight.swapaxes(0, 1).reshape(directions, members, -1)
        if self.bias:
            out[..., -self.outputs :] += dz.sum(axis=-1).swapaxes(0, 1)

    def _probability_change(self, p: Array, dz: Array) -> Array:
        """Return the change p' dz of the probabilities `p` (..., outputs) for a change `dz` of the logits."""
        if self.logistic:
            return np.asarray(p * (1.0 - p) * dz)
        return np.asarray(p * (dz - np.sum(p * dz, axis=-1, keepdims=True)))

    def targets(self, labels: Array) -> Array:
        """Encode labels as probabilities (..., outputs)."""
        return labels[..., None].astype(float) if self.logistic else np.eye(self.outputs)[labels]


def number_of_classes(model: LinearModel, public: Public) -> int:
    """Return the number of possible labels."""
    return 2 if model.logistic else public.classes
