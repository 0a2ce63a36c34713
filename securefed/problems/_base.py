"""Define what a training problem is: a loss over rows, and its gradient by named tensors.

Gradient methods (`securefed.algorithms`) train a problem: they draw its initial parameters, and clients call `gradient`
on their rows in every local step. Simulations call `gradients` for several clients at once: rows are then (clients,
widest, features), with `widest` the largest number of rows of a client, and shorter clients are padded.

Public facts (`Public`) are those that all parties know before a run: numbers of rows, columns and classes, and
`feature_bound`, the largest entry of a row. Bounds of gradients follow from them; they scale fixed-point sums. A client
whose message is beyond its bound refuses, and the run repeats the round with twice the bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from scipy.linalg import eigh

from securefed._public import Public, require
from securefed._registry import Registry
from securefed._tensors import Array, Tensors
from securefed.datasets._base import Dataset

Precision = Literal["float32", "float64"]
PRECISIONS = get_args(Precision)
PRACTICAL_LOSS = 100.0
"""Largest mean loss of a row that evaluation sums are planned for: some 20 times that of guessing among 100 classes."""


@runtime_checkable
class Problem(Protocol):
    """A model and its loss. Parameters and gradients are `Tensors`, arrays by name, of the same names and shapes.

    Losses and gradients are means over the rows given; multiply by the number of rows for sums. Derive your own from
    `BaseProblem`.

    Attributes:
        name: name under which the problem is registered.
    """

    name: ClassVar[str]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of parameters and gradients: float64, or float32 for networks."""
        ...

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """Return the parameters' names and shapes; raise `ConfigError` where the data cannot be trained on."""
        ...

    def gradient_bounds(self, public: Public) -> dict[str, float]:
        """Return for each tensor the largest absolute entry of a gradient, from public facts."""
        ...

    def initial(self, public: Public, rng: np.random.Generator) -> Tensors:
        """Return the parameters before the first round."""
        ...

    def targets(self, data: Dataset) -> Array:
        """Return the (rows, ...) targets of the rows; raise `DataError` where `data` cannot be trained on."""
        ...

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Compute the mean loss of the rows `x` (rows, features) with targets `y` (rows, ...), regulariser included."""
        ...

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> Tensors:
        """Compute the gradient of `loss`."""
        ...

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> Tensors:
        """Compute the gradients of several clients at once; every argument has a leading axis that counts them.

        Args:
            parameters: (clients, *shape) by name; each client has parameters of its own.
            x: (clients, widest, features), padded where a client has fewer rows.
            y: (clients, widest, ...), padded in the same way.
            weights: (clients, widest) 1 / rows of the client, 0 on padding.

        Returns:
            The mean gradients, (clients, *shape) by name.
        """
        ...

    def measures(self, public: Public) -> dict[str, float]:
        """Return the names of the sums that `measure` computes, and the largest value of one row."""
        ...

    def measure(self, parameters: Tensors, x: Array, y: Array) -> dict[str, float]:
        """Compute sums over the rows: `loss`, `count`, and more that the problem knows (`correct`)."""
        ...

    def score(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Score the model on held-out rows, higher is better: accuracy, or minus the loss."""
        ...


@runtime_checkable
class HasSmoothness(Protocol):
    """Mark a problem that knows the smoothness constant of its loss at the start (optional)."""

    def smoothness(self, x: Array, classes: int) -> float | None:
        """Return the largest eigenvalue of the Hessian at the initial parameters, for the rows `x` (rows, features)."""
        ...


@runtime_checkable
class WritesGradients(Protocol):
    """Mark a problem that can write its gradients into arrays of the caller's (optional).

    A simulation of large networks asks for it, since copying a gradient takes about as long as a local step's update.
    """

    def write_gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array, out: Tensors) -> None:
        """Write `Problem.gradients` of these arguments into `out`, arrays (clients, *shape) by name."""
        ...


def known_smoothness(problem: Problem, data: Dataset, classes: int | None = None) -> float | None:
    """Return L of the mean loss of `data` at the start, or `None` where it is not known exactly.

    Gradient descent with steps above 2 / L gets worse from the start. Below it converges where the Hessian is nowhere
    larger than at the start (logistic regression, quadratics).

    Args:
        problem: the problem.
        data: rows of a client, or of all clients.
        classes: the number of classes of the whole task; the labels of one client may stop short of it.
    """
    return (
        problem.smoothness(data.x, data.classes if classes is None else classes)
        if isinstance(problem, HasSmoothness)
        else None
    )


class BaseProblem(ABC):
    """Base class for problems of your own: float64, gradients client by client, the loss as the only measure."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of parameters and gradients."""
        return np.dtype(np.float64)

    @abstractmethod
    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """As `Problem.loss`."""

    @abstractmethod
    def gradient(self, parameters: Tensors, x: Array, y: Array) -> Tensors:
        """As `Problem.gradient`."""

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        """Compute the gradients of several clients at once, as in `Problem.gradients`."""
        own = []
        for k, weight in enumerate(weights):
            rows = weight > 0  # without the padding
            own.append(self.gradient({name: value[k] for name, value in parameters.items()}, x[k, rows], y[k, rows]))
        return {name: np.stack([np.asarray(gradient[name]) for gradient in own]) for name in parameters}

    def measures(self, public: Public) -> dict[str, float]:
        """Return the names of the sums that `measure` computes, and the largest value of one row."""
        return {"loss": PRACTICAL_LOSS, "count": 1.0}

    def measure(self, parameters: Tensors, x: Array, y: Array) -> dict[str, float]:
        """Compute sums over the rows, as in `Problem.measure`."""
        return {"loss": len(x) * self.loss(parameters, x, y), "count": float(len(x))}

    def score(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Score the model on held-out rows, higher is better."""
        return -self.loss(parameters, x, y)


class Classifier(BaseProblem):
    """Base class of classifiers: targets are labels 0, 1, ..., the score is the accuracy."""

    @abstractmethod
    def predict(self, parameters: Tensors, x: Array) -> Array:
        """Predict the (rows,) int64 labels."""

    def targets(self, data: Dataset) -> Array:
        """Return the targets of the rows; raise `DataError` where there are none."""
        return data.labels()

    def accuracy(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Return the share of rows whose label is predicted correctly, in [0, 1]."""
        return float(np.mean(self.predict(parameters, x) == y))

    def score(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Score the model on held-out rows, higher is better."""
        return self.accuracy(parameters, x, y)

    def measures(self, public: Public) -> dict[str, float]:
        """Return the names of the sums that `measure` computes, and the largest value of one row."""
        return {"loss": PRACTICAL_LOSS, "correct": 1.0, "count": 1.0}

    def measure(self, parameters: Tensors, x: Array, y: Array) -> dict[str, float]:
        """Compute sums over the rows, as in `Problem.measure`."""
        correct = float(np.sum(self.predict(parameters, x) == y))
        return super().measure(parameters, x, y) | {"correct": correct}


def check_classes(public: Public) -> None:
    """Raise `ConfigError` unless the data has labels of at least two classes."""
    require(
        public.classes >= 2,
        f"a classifier needs at least 2 classes, the data declares {public.classes}; labels are integers from 0: "
        "write Dataset(x, numpy.unique(y.ravel(), return_inverse=True)[1]) where they are floats",
    )


problems: Registry[Problem] = Registry("problem", built_in="securefed.problems")


def largest_eigenvalue(x: Array, *, bias: bool = False, scale: float = 1.0, l2: float = 0.0) -> float:
    """Return the largest eigenvalue of scale / rows X^T X + l2 I; `bias` adds a column of ones without l2.

    Problems call it for `smoothness`: their Hessian at the start is such a matrix. It is computed from the smaller of
    the Gram matrices of columns and of rows, which have the same positive eigenvalues.
    """
    rows, features = x.shape
    columns = np.hstack([x, np.ones((rows, 1))]) if bias else x
    if (bias and l2) or columns.shape[1] <= rows:
        gram = scale / rows * (columns.T @ columns)
        gram[range(features), range(features)] += l2  # not on the bias's entry
        l2 = 0.0
    else:
        gram = scale / rows * (columns @ columns.T)
    last = len(gram) - 1
    return float(eigh(gram, eigvals_only=True, subset_by_index=(last, last))[0]) + l2
