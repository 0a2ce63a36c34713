"""A problem on flat vectors, so that update lines read as in the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed._public import Public
from securefed._tensors import Array, Layout, Ring, Tensors, TensorSpec
from securefed.algorithms._optimization.local_steps import Rows
from securefed.datasets._base import Dataset
from securefed.problems._base import Problem


@dataclass(frozen=True)
class Model:
    """The parameters of `problem` as one vector of length `layout.size`."""

    problem: Problem
    public: Public

    @cached_property
    def layout(self) -> Layout:
        """Name the tensors of one contribution, with bounds from public facts."""
        return Layout(tuple(TensorSpec(name, shape) for name, shape in self.problem.shapes(self.public).items()))

    def gradient(self, vector: Array, data: Dataset, rows: Rows) -> Array:
        """Mean gradient over `data`'s `rows`."""
        parameters, problem = self.layout.unflatten(vector), self.problem
        return self.flatten(problem.gradient(parameters, data.x[rows], problem.targets(data)[rows]))

    def gradients(self, vectors: Array, x: Array, y: Array, weights: Array) -> Array:
        """Mean gradients (clients, parameters), each at a row of `vectors`; the rest as `Problem.gradients`."""
        found = self.problem.gradients(self.split(vectors, self.layout.specs), x, y, weights)
        parts = [np.asarray(found[name]).reshape(len(vectors), -1) for name in self.layout.names]
        return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def split(self, vectors: Array, specs: Sequence[TensorSpec]) -> dict[str, Array]:
        """By name, views (clients, *shape) of `vectors` (clients, entries), which hold these tensors in turn."""
        out: dict[str, Array] = {}
        start = 0
        for spec in specs:
            out[spec.name] = vectors[:, start : start + spec.size].reshape(len(vectors), *spec.shape)
            start += spec.size
        return out

    def zeros(self) -> Array:
        """A vector of zeros in the problem's own precision."""
        return np.zeros(self.layout.size, self.problem.dtype)

    def flatten(self, tensors: Tensors) -> Array:
        """(parameters,) in the problem's own precision."""
        return self.layout.flatten(tensors, self.problem.dtype)

    def specs(self, part: str, factor: float, ring: Ring) -> tuple[TensorSpec, ...]:
        """Tensors `part.NAME` whose entries reach `factor` times those of a gradient."""
        bounds = self.problem.gradient_bounds(self.public)
        return tuple(
            TensorSpec(label(part, spec.name), spec.shape, factor * bounds[spec.name], ring) for spec in self.layout
        )

    def name(self, part: str, vector: Array) -> dict[str, Array]:
        """The vector's tensors, called `part.NAME` (`NAME` for an empty part)."""
        return {label(part, name): value for name, value in self.layout.unflatten(vector).items()}

    def vector(self, part: str, tensors: Tensors) -> Array:
        """Inverse of `name`; other tensors are ignored."""
        return self.flatten({name: tensors[label(part, name)] for name in self.layout.names})

    def parameters(self, tensors: Tensors) -> dict[str, Array]:
        """The model in a broadcast, by the problem's own names."""
        return {name: np.asarray(tensors[name]) for name in self.layout.names}


def label(part: str, name: str) -> str:
    """`part.NAME`; packing reserves '/' and ':'."""
    return f"{part}.{name}" if part else name
