"""Protocol of a training problem: a loss over rows, and its gradient by named tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from scipy.linalg import eigh

from securefed.datasets.base import Dataset
from securefed.problems.products import Products
from securefed.public import Public, require
from securefed.registry import Registry
from securefed.tensors import Array, Tensors

Precision = Literal["float32", "float64"]
PRACTICAL_LOSS = 100.0
"""Largest mean loss of a row that evaluation sums are planned for; beyond, clients refuse and the range doubles."""


@runtime_checkable
class Problem(Protocol):
    """A model and its loss. Parameters and gradients are `Tensors` of the same names and shapes.

    Losses and gradients are means over the rows given; multiply by the number of rows for sums.
    """

    name: ClassVar[str]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of parameters and gradients: float64, or float32 for networks."""
        ...

    def shapes(self, public: Public) -> dict[str, tuple[int, ...]]:
        """The parameters' names and shapes. Raises `ConfigError` where the data cannot be trained on."""
        ...

    def gradient_bounds(self, public: Public) -> dict[str, float]:
        """By tensor, the largest absolute entry of a gradient, from public facts."""
        ...

    def initial(self, public: Public, rng: np.random.Generator) -> Tensors:
        """Parameters before the first round."""
        ...

    def targets(self, data: Dataset) -> Array:
        """(rows, ...) what the rows are compared with. Raises `DataError` where `data` cannot be trained on."""
        ...

    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Mean loss of the rows `x` (rows, features) with targets `y` (rows, ...), regulariser included."""
        ...

    def gradient(self, parameters: Tensors, x: Array, y: Array) -> Tensors:
        """Gradient of `loss`."""
        ...

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> Tensors:
        """Gradients of several clients at once; every argument has a leading axis that counts them.

        Args:
            parameters: (clients, *shape) by name: every client is at a point of its own.
            x, y: (clients, widest, ...), padded where a client has fewer rows.
            weights: (clients, widest) 1 / rows of the client, 0 on padding.
        """
        ...

    def measures(self, public: Public) -> dict[str, float]:
        """Names of the sums that `measure` returns, and the largest value of one row."""
        ...

    def measure(self, parameters: Tensors, x: Array, y: Array) -> dict[str, float]:
        """Sums over the rows: `loss`, `count`, and more that the problem knows (`correct`)."""
        ...

    def score(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Score the model on held-out rows, higher is better: accuracy, or minus the loss."""
        ...


@runtime_checkable
class Smooth(Protocol):
    """Optional capability of a problem: a smoothness constant of its loss at the start."""

    def smoothness(self, x: Array, classes: int) -> float | None:
        """Largest eigenvalue of the Hessian at the initial parameters, for the rows `x` (rows, features)."""
        ...


@runtime_checkable
class LinearInput(Protocol):
    """Optional capability of a problem: its rows enter only through z = x W^T.

    W (outputs, features) is the first of the parameters. A cohort is then computed without forming gradients of W.
    """

    @property
    def l2(self) -> float:
        """Weight of l2/2 ||W||^2 in the loss."""
        ...

    @property
    def inner(self) -> tuple[str, ...]:
        """The weights behind W that `after_input` uses in no way but through `products`."""
        ...

    def after_input(
        self, z: Array, others: Tensors, products: Products, y: Array, weights: Array
    ) -> tuple[Array, dict[str, Array]]:
        """d loss / dz, and the gradients of the other parameters, for several clients.

        Args:
            z: (clients, widest, outputs); may be overwritten.
            others: as in `Problem.gradients`, W left out, and maybe inner weights.
            products: with the inner weights; a gradient that they keep is left out of what is returned.
            y, weights: as in `Problem.gradients`.
        """
        ...


def known_smoothness(problem: Problem, data: Dataset, classes: int | None = None) -> float | None:
    """L of `data`'s mean loss at the start, or `None` where it is not known exactly.

    Gradient descent with steps beyond 2 / L leaves the start for worse; it converges below, where the
    Hessian is nowhere larger than at the start (logistic regression, quadratics).

    Args:
        classes: of the whole task; the labels of one client may stop short of it.
    """
    return (
        problem.smoothness(data.x, data.classes if classes is None else classes)
        if isinstance(problem, Smooth)
        else None
    )


class BaseProblem(ABC):
    """Defaults for problems of your own: float64, gradients client by client, loss as the only measure."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    @abstractmethod
    def loss(self, parameters: Tensors, x: Array, y: Array) -> float:
        """As `Problem.loss`."""

    @abstractmethod
    def gradient(self, parameters: Tensors, x: Array, y: Array) -> Tensors:
        """As `Problem.gradient`."""

    def gradients(self, parameters: Tensors, x: Array, y: Array, weights: Array) -> dict[str, Array]:
        own = []
        for k, weight in enumerate(weights):
            rows = weight > 0
            own.append(self.gradient({name: value[k] for name, value in parameters.items()}, x[k, rows], y[k, rows]))
        return {name: np.stack([np.asarray(gradient[name]) for gradient in own]) for name in parameters}

    def measures(self, public: Public) -> dict[str, float]:
        return {"loss": PRACTICAL_LOSS, "count": 1.0}

    def measure(self, parameters: Tensors, x: Array, y: Array) -> dict[str, float]:
        return {"loss": len(x) * self.loss(parameters, x, y), "count": float(len(x))}

    def score(self, parameters: Tensors, x: Array, y: Array) -> float:
        return -self.loss(parameters, x, y)


class Classifier(BaseProblem):
    """A problem whose targets are labels 0, 1, ...; adds `predict` and `accuracy`."""

    @abstractmethod
    def predict(self, parameters: Tensors, x: Array) -> Array:
        """(rows,) int64 labels."""

    def targets(self, data: Dataset) -> Array:
        return data.labels()

    def accuracy(self, parameters: Tensors, x: Array, y: Array) -> float:
        """Share of rows whose label is predicted, in [0, 1]."""
        return float(np.mean(self.predict(parameters, x) == y))

    def score(self, parameters: Tensors, x: Array, y: Array) -> float:
        return self.accuracy(parameters, x, y)

    def measures(self, public: Public) -> dict[str, float]:
        return {"loss": PRACTICAL_LOSS, "correct": 1.0, "count": 1.0}

    def measure(self, parameters: Tensors, x: Array, y: Array) -> dict[str, float]:
        correct = float(np.sum(self.predict(parameters, x) == y))
        return super().measure(parameters, x, y) | {"correct": correct}


def check_precision(precision: str) -> None:
    """Raises `ConfigError` where it is none of `Precision`."""
    require(precision in ("float32", "float64"), f"precision is float32 or float64, not {precision!r}")


problems: Registry[Problem] = Registry("problem")


def largest_eigenvalue(x: Array, *, bias: bool = False, scale: float = 1.0, l2: float = 0.0) -> float:
    """Of scale / rows X^T X + l2 I, exact to round-off; `bias` adds a column of ones, which l2 leaves out."""
    rows, features = x.shape
    columns = np.hstack([x, np.ones((rows, 1))]) if bias else x
    if (bias and l2) or columns.shape[1] <= rows:
        gram = scale / rows * (columns.T @ columns)
        gram[range(features), range(features)] += l2
        l2 = 0.0
    else:
        gram = scale / rows * (columns @ columns.T)
    last = len(gram) - 1
    return float(eigh(gram, eigvals_only=True, subset_by_index=(last, last))[0]) + l2
