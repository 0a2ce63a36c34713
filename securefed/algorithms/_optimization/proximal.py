"""Regularisers Psi with their proximal operators.

    prox_{step Psi}(v) = argmin_z  Psi(z) + ||z - v||^2 / (2 step)

A regulariser is a setting of the proximal methods (LoSAC-Prox, SCAFFOLD-Prox, FedADMM), which call `prox` after a
gradient step of length `step`. Vectors have shape (..., parameters); leading axes count clients, and each client is
treated separately. A layout names the parameters in a vector and gives their shapes. Source of the
operators: Parikh and Boyd, Proximal Algorithms, sec. 6.5.2 (l1) and 6.7.3 (nuclear norm).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from securefed._hyperparameters import check_positive
from securefed._public import Public, require
from securefed._tensors import Array, Layout
from securefed.algorithms._optimization.model import Model
from securefed.problems._base import Problem


@runtime_checkable
class Regulariser(Protocol):
    """A convex regulariser Psi of the parameters."""

    @property
    def weight(self) -> float:
        """Return the weight of the regulariser; a proximal step changes an entry by at most `step * weight`."""
        ...

    def check(self, layout: Layout) -> None:
        """Check that Psi is defined for parameters of this layout.

        Raises:
            ConfigError: Psi is not defined for them.
        """
        ...

    def value(self, vector: Array, layout: Layout) -> Array:
        """Return Psi for each client, (...)."""
        ...

    def prox(self, vector: Array, step: float, layout: Layout) -> Array:
        """Return prox_{step Psi}(vector), of the vector's shape.

        Args:
            vector: parameters, (..., parameters).
            step: step size.
            layout: names and shapes of the parameters in the vector.
        """
        ...


@dataclass(frozen=True)
class NoRegulariser:
    """No regulariser: Psi = 0, and the proximal step returns its argument unchanged."""

    @property
    def weight(self) -> float:
        """Weight of the regulariser, 0."""
        return 0.0

    def check(self, layout: Layout) -> None:
        """Accept every layout."""

    def value(self, vector: Array, layout: Layout) -> Array:
        """Return the regulariser's value."""
        return np.zeros(vector.shape[:-1])

    def prox(self, vector: Array, step: float, layout: Layout) -> Array:
        """Apply the proximal operator."""
        return vector


@dataclass(frozen=True)
class L1:
    """Psi = weight * sum |v_k| over all parameters, biases included; its proximal operator is soft thresholding."""

    weight: float

    def __post_init__(self) -> None:
        check_positive("the regulariser's weight", self.weight)

    def check(self, layout: Layout) -> None:
        """Accept every layout."""

    def value(self, vector: Array, layout: Layout) -> Array:
        """Return the regulariser's value."""
        return np.asarray(self.weight * np.abs(vector).sum(axis=-1))

    def prox(self, vector: Array, step: float, layout: Layout) -> Array:
        """Apply the proximal operator."""
        shrunk: Array = np.sign(vector) * np.maximum(np.abs(vector) - step * self.weight, 0.0)
        return shrunk


@dataclass(frozen=True)
class Nuclear:
    """Psi = weight * sum of the singular values of every parameter that is a matrix; other parameters do not count.

    The proximal operator soft-thresholds the singular values (Liu et al., LoSAC, sec. 5.5), so the matrices that it
    returns have low rank up to rounding.
    """

    weight: float

    def __post_init__(self) -> None:
        check_positive("the regulariser's weight", self.weight)

    def check(self, layout: Layout) -> None:
        """Raise `ConfigError` where no parameter is a matrix."""
        shapes = {spec.name: spec.shape for spec in layout}
        require(
            any(len(shape) == 2 for shape in shapes.values()),
            f"the nuclear norm needs a matrix among the parameters; the problem has {shapes}. Use L1 instead",
        )

    def value(self, vector: Array, layout: Layout) -> Array:
        """Return the regulariser's value."""
        norms = [np.linalg.svd(matrix, compute_uv=False).sum(axis=-1) for matrix in matrices(vector, layout)]
        return np.asarray(self.weight * np.sum(norms, axis=0))

    def prox(self, vector: Array, step: float, layout: Layout) -> Array:
        """Apply the proximal operator."""
        out = vector.copy()
        for matrix in matrices(out, layout):
            left, values, right = np.linalg.svd(matrix, full_matrices=False)
            values = np.maximum(values - step * self.weight, 0.0).astype(values.dtype)
            matrix[...] = (left * values[..., None, :]) @ right
        return out


def check_regulariser(value: Any) -> None:
    """Raise `ConfigError` unless `value` is a regulariser object."""
    fits = isinstance(value, Regulariser) and not isinstance(value, type)
    require(fits, f"regulariser must be a regulariser, such as securefed.algorithms.L1(0.05); got {value!r}.")


def reach(regulariser: Regulariser, problem: Problem, public: Public) -> float:
    """Return the largest change of an entry by a proximal step of size 1, in units of the smallest gradient bound.

    Local steps add such changes to those of gradients, so that methods widen the bounds of their messages by it
    (`proximal_steps`). The smallest gradient bound makes it enough for every tensor.

    Raises:
        ConfigError: the regulariser does not fit the problem's parameters.
    """
    regulariser.check(Model(problem, public).layout)
    return regulariser.weight / min(problem.gradient_bounds(public).values())


def matrices(vector: Array, layout: Layout) -> list[Array]:
    """Return a view (..., rows, columns) of each parameter that is a matrix."""
    tensors = layout.unflatten(vector)
    return [tensors[spec.name] for spec in layout if len(spec.shape) == 2]
