"""Turn a problem's named parameters into one flat vector and back, so that updates read as in the papers: x - eta g.

A problem (a model with a loss) has named parameters such as `weight` and `bias`. A method keeps several vectors of
that form, each under a name of its own, its part: `phi`, say. On the wire a vector is the tensors `phi.weight` and
`phi.bias`; the tensors of the model itself have the problem's names alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed._public import Public
from securefed._tensors import Array, Layout, Ring, Tensors, TensorSpec
from securefed.algorithms._optimization.local_steps import Rows
from securefed.datasets._base import Dataset
from securefed.problems._base import Problem, WritesGradients


@dataclass(frozen=True)
class Model:
    """The parameters of a problem as one flat vector of length `layout.size`.

    Attributes:
        problem: what is trained.
        public: public facts of the run, from which the parameters' shapes follow.
    """

    problem: Problem
    public: Public

    @cached_property
    def layout(self) -> Layout:
        """Return the names and shapes of the parameters, in the vector's order."""
        return Layout(tuple(TensorSpec(name, shape) for name, shape in self.problem.shapes(self.public).items()))

    def gradient(self, vector: Array, data: Dataset, rows: Rows) -> Array:
        """Compute the mean gradient over these rows of `data`, (parameters,)."""
        parameters, problem = self.layout.unflatten(vector), self.problem
        return self.flatten(problem.gradient(parameters, data.x[rows], problem.targets(data)[rows]))

    def gradients(self, vectors: Array, x: Array, y: Array, weights: Array) -> Array:
        """Compute the mean gradients (clients, parameters) of several clients, each at its row of `vectors`.

        Args:
            vectors: (clients, parameters).
            x: (clients, widest, features), `widest` the largest number of rows of a client; padded.
            y: targets, (clients, widest, ...); padded.
            weights: (clients, widest), 1 / rows of the client, 0 on padding.
        """
        parameters = self.layout.unflatten(vectors)
        if isinstance(self.problem, WritesGradients):
            out = np.empty((len(vectors), self.layout.size), self.problem.dtype)
            self.problem.write_gradients(parameters, x, y, weights, self.layout.unflatten(out))
            return out
        gradients = self.problem.gradients(parameters, x, y, weights)
        parts = [np.asarray(gradients[name]).reshape(len(vectors), -1) for name in self.layout.names]
        return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def zeros(self) -> Array:
        """Return a vector of zeros in the problem's own precision."""
        return np.zeros(self.layout.size, self.problem.dtype)

    def flatten(self, tensors: Tensors) -> Array:
        """Return named tensors as a vector (parameters,) in the problem's own precision."""
        return self.layout.flatten(tensors, self.problem.dtype)

    def specs(self, part: str, factor: float, ring: Ring) -> tuple[TensorSpec, ...]:
        """Describe the tensors of the vector called `part`.

        Args:
            part: the vector's name.
            factor: the vector's largest entry, in units of a gradient's largest entry.
            ring: bits of the integers, 32 or 64, in which the vector is summed.
        """
        layout = self.layout  # before the bounds: `shapes` refuses data that cannot be trained on
        bounds = self.problem.gradient_bounds(self.public)
        return tuple(TensorSpec(label(part, s.name), s.shape, factor * bounds[s.name], ring) for s in layout)

    def name(self, part: str, vector: Array) -> dict[str, Array]:
        """Return a vector's tensors under the names `part.NAME`, or `NAME` for an empty part."""
        return {label(part, name): value for name, value in self.layout.unflatten(vector).items()}

    def vector(self, part: str, tensors: Tensors) -> Array:
        """Return the vector whose tensors are called `part.NAME`; other tensors are ignored."""
        return self.flatten({name: tensors[label(part, name)] for name in self.layout.names})

    def parameters(self, tensors: Tensors) -> dict[str, Array]:
        """Return the model's parameters in a broadcast, by the problem's own names."""
        return {name: np.asarray(tensors[name]) for name in self.layout.names}


def label(part: str, name: str) -> str:
    """Return a tensor's name on the wire; the separator is a dot because packed states reserve '/' and ':'."""
    return f"{part}.{name}" if part else name
