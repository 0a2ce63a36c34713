"""Train linear classifiers: binary logistic regression and softmax regression, NumPy only.

A row x with label y has the logits z = W x + b, W and b being the parameters. With p(z) the predicted probabilities and
[y] the one-hot vector of the label,

    loss = mean over rows of l(z, y) + l2/2 ||W||^2        (the bias is not penalised)
    dl/dz = p(z) - [y],   dl/dW = (dl/dz) x^T + l2 W,   dl/db = dl/dz

In code, the slope is the derivative of the loss by z, (rows, classes).

Gradient methods (securefed.algorithms) train it: a client calls `gradient` in its local steps, with parameters and
gradients as arrays by name. Simulations call `gradients` for several clients at once: rows x are then (clients, widest,
features), `widest` the largest number of rows of a client, and `weights` (clients, widest) holds 1 / rows of the
client, 0 on padding. The declared bounds of a gradient (`gradient_bounds`) scale fixed-point sums: a client whose
message is beyond them refuses, and the run repeats the round with twice the bound.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, logsumexp, softmax

from securefed._hyperparameters import check_choice, check_number
from securefed._public import Public, require
from securefed._tensors import Array, Tensors
from securefed.problems._base import PRECISIONS, Classifier, Precision, check_classes, largest_eigenvalue
from securefed.problems._cross_entropy import slope_of

PRACTICAL_WEIGHT = 10.0
"""Up to this size of a weight the declared gradient bound covers the l2 term."""


@dataclass(frozen=True)
class LinearProblem(Classifier):
    """Base class of losses of a linear map z = W x + b.

    Attributes:
        bias: whether there is a bias.
        l2: weight of l2/2 ||W||^2, >= 0.
        initial_scale: standard deviation of the initial weights; 0 starts at zero. The bias starts at zero.
        precision: the precision of parameters, gradients and all arithmetic of a client.

    Raises:
        ConfigError: a parameter outside its domain.
    """

    bias: bool = True
    l2: float = 0.0
    initial_scale: float = 0.0
    precision: Precision = "float64"

    def __post_init__(self) -> None:
        """Check the settings."""
        check_choice("precision", self.precision, PRECISIONS)
        check_number("l2", self.l2, 0)
        check_number("initial_scale", self.initial_scale, 0)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of parameters and gradients."""
        return np.dtype(self.precision)

    def gradient_bounds(self, public: Public) -> dict[str, float]:
        """Bound the gradient: |dl/dz| <= 1, so |dl/dW| <= feature_bound + l2 |W| with |W| <= `PRACTICAL_WEIGHT`."""
        return self._bounds(public, 1.0)

    def _bounds(self, public: Public, steepest: float) -> dict[str, float]:
        """Return the gradient's bounds where every |dl/dz| is at most `steepest`."""
        bounds = {"weight": steepest * public.feature_bound + self.l2 * PRACTICAL_WEIGHT}
        return bounds | {"bias": steepest} if self.bias else bounds

    def initial(self, public: Public, rng: np.random.Generator) -> dict[str, Array]:
        """Return the parameters before the first round, in float64; the algorithms cast them to `dtype` for clients."""
        out = {name: np.zeros(shape) for name, shape in self.shapes(public).items()}
        if self.initial_scale:
            out["weight"] = rng.normal(0.0, self.initial_scale, out["weight"].shape)
        return out

    @abstractmethod
    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters."""

    def logits(self, parameters: Tensors, x: Array) -> Any:
        """Compute z = W x + b for every row of `x`, (rows, classes), or (rows,) in binary logistic regression."""
        z = x @ parameters["weight"].T
        return z + parameters["bias"] if self.bias else z

    def penalty(self, parameters: Tensors) -> float:
        """Compute l2/2 ||W||^2."""
        return 0.5 * self.l2 * float(np.sum(parameters["weight"] ** 2)) if self.l2 else 0.0


@dataclass(frozen=True)
class LogisticRegression(LinearProblem):
    """Binary logistic regression, labels 0 and 1; parameters `weight` (features,) and `bias` ()."""

    name: ClassVar[str] = "logistic"

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        require(
            public.classes >= 1,
            "logistic regression separates labels 0 and 1, and the data declares no classes; write "
            "Dataset(x, numpy.unique(y.ravel(), return_inverse=True)[1]) where labels are floats",
        )
        require(
            public.classes <= 2,
            f"logistic regression separates labels 0 and 1, the data declares {public.classes} classes; "
            "use problem='softmax', or relabel",
        )
        return {"weight": (public.features,)} | ({"bias": ()} if self.bias else {})

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Compute the mean loss of the rows `x`, regulariser included."""
        z = self.logits(parameters, x)
        return float(np.mean(np.logaddexp(0.0, z) - y * z)) + self.penalty(parameters)

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> dict[str, Array]:
        """Compute the gradient of `loss`."""
        x = np.asarray(x, self.dtype)
        slope = np.asarray((expit(self.logits(parameters, x)) - y) / len(x), self.dtype)
        out: dict[str, Array] = {"weight": slope @ x + self.l2 * parameters["weight"]}
        if self.bias:
            out["bias"] = np.asarray(slope.sum())
        return out

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the mean gradients of several clients at once, (clients, *shape) by name."""
        W = parameters["weight"]
        z = (x @ W[:, :, None])[:, :, 0]
        slope = np.asarray((expit(z + parameters["bias"][:, None] if self.bias else z) - y) * weights, self.dtype)
        out: dict[str, Array] = {"weight": (slope[:, None, :] @ x)[:, 0, :] + self.l2 * W}
        if self.bias:
            out["bias"] = slope.sum(axis=1)
        return out

    def predict(self, parameters: Tensors, x: Array) -> Array:
        """Predict the (rows,) int64 labels."""
        return np.asarray(self.logits(parameters, x) > 0, dtype=np.int64)

    def smoothness(self, x: Array, classes: int) -> float | None:
        """Return the Hessian's largest eigenvalue at zero weights, where p (1 - p) = 1/4; `None` for another start.

        It is nowhere larger, since p (1 - p) is nowhere larger. For a random start it would therefore be a bound only;
        but callers (`known_smoothness`) refuse step sizes by it and need the value at the start.
        """
        return None if self.initial_scale else largest_eigenvalue(x, bias=self.bias, scale=0.25, l2=self.l2)


@dataclass(frozen=True)
class MulticlassProblem(LinearProblem):
    """Base class of losses of C logits; parameters `weight` (classes, features) and `bias` (classes,)."""

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data does not fit."""
        check_classes(public)
        return {"weight": (public.classes, public.features)} | ({"bias": (public.classes,)} if self.bias else {})

    @abstractmethod
    def slope(self, z: Array, y: Array) -> Array:
        """Compute d (mean loss of the rows) / dz for logits z (rows, classes) and labels y (rows,)."""

    @abstractmethod
    def slopes(self, z: Array, y: Array, weights: Array) -> Array:
        """Compute `slope` for several clients, z (clients, widest, classes), with `weights` in place of 1 / rows.

        z may be overwritten.
        """

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> dict[str, Array]:
        """Compute the gradient of `loss`."""
        x = np.asarray(x, self.dtype)
        slope = self.slope(self.logits(parameters, x), y)
        out: dict[str, Array] = {"weight": slope.T @ x + self.l2 * parameters["weight"]}
        return out | {"bias": slope.sum(axis=0)} if self.bias else out

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the mean gradients of several clients at once, (clients, *shape) by name."""
        W = parameters["weight"]
        z = x @ W.transpose(0, 2, 1)
        if self.bias:
            z += parameters["bias"][:, None, :]
        slope = self.slopes(z, y, weights)
        out: dict[str, Array] = {"weight": slope.transpose(0, 2, 1) @ x + self.l2 * W}
        return out | {"bias": slope.sum(axis=1)} if self.bias else out

    def predict(self, parameters: Tensors, x: Array) -> Array:
        """Predict the (rows,) int64 labels."""
        return np.asarray(self.logits(parameters, x).argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True)
class SoftmaxRegression(MulticlassProblem):
    """Softmax regression: l(z, y) = log(sum_j exp z_j) - z_y, labels 0..classes-1."""

    name: ClassVar[str] = "softmax"

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Compute the mean loss of the rows `x`, regulariser included."""
        z = self.logits(parameters, x)
        return float(np.mean(logsumexp(z, axis=1) - z[np.arange(len(y)), y])) + self.penalty(parameters)

    def slope(self, z: Array, y: Array) -> Array:
        """Compute (softmax(z) - [y]) / rows."""
        slope: Array = softmax(z, axis=1)
        slope[np.arange(len(y)), y] -= 1.0
        slope /= len(z)
        return slope

    def slopes(self, z: Array, y: Array, weights: Array) -> Array:
        """Compute weight (softmax(z) - [y])."""
        return slope_of(z, y, weights)

    def smoothness(self, x: Array, classes: int) -> float | None:
        """Return the Hessian's largest eigenvalue at zero weights, where that of diag(p) - p p^T is 1 / classes.

        It is `None` for another start. At other weights the Hessian reaches up to classes / 2 times that.
        """
        return None if self.initial_scale else largest_eigenvalue(x, bias=self.bias, scale=1.0 / classes, l2=self.l2)
