"""Store a graph on d vertices as the vector w of its d (d - 1) / 2 edge weights, and compute degrees S w from it.

S is the (vertices, edges) matrix with S_ve = 1 where edge e ends at vertex v; it is never formed. All methods that
learn graphs, and their metrics, number edges as here: the upper triangle of the adjacency matrix, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securefed._public import require
from securefed._tensors import Array
from securefed.errors import DataError


@dataclass(frozen=True)
class Edges:
    """The d (d - 1) / 2 possible edges of an undirected graph without loops.

    A graph is a vector w (..., edges): the upper triangle of its adjacency matrix, row by row. Leading axes are free
    everywhere (clients). No (vertices x edges) matrix is ever formed.

    Attributes:
        vertices: d, the number of vertices.

    Raises:
        ConfigError: fewer than 2 vertices.
    """

    vertices: int

    def __post_init__(self) -> None:
        require(self.vertices >= 2, f"a graph needs at least 2 vertices (columns of the data), not {self.vertices}")

    @property
    def count(self) -> int:
        """Number of possible edges, d (d - 1) / 2."""
        return self.vertices * (self.vertices - 1) // 2

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """The two vertices of each edge, (edges,) each; the smaller first."""
        heads, tails = np.triu_indices(self.vertices, 1)
        for shared in (heads, tails):  # by all runs on so many vertices, in any thread
            shared.setflags(write=False)
        return heads, tails

    @cached_property
    def incident(self) -> Array:
        """The positions of the edges at each vertex, (vertices, vertices - 1)."""
        heads, tails = self.ends
        number = np.zeros((self.vertices, self.vertices), np.int64)
        number[heads, tails] = number[tails, heads] = np.arange(self.count)  # position of the edge of each pair
        positions = number[~np.eye(self.vertices, dtype=bool)].reshape(self.vertices, -1)
        positions.setflags(write=False)
        return positions

    def degrees(self, graph: Array) -> Array:
        """Compute the degrees S w, (..., vertices): the sum of the weights of the edges at each vertex."""
        degrees: Array = graph[..., self.incident].sum(axis=-1)
        return degrees

    def spread(self, values: Array) -> Array:
        """Compute S^T v, (..., edges): for each edge the sum of the values at its two vertices."""
        heads, tails = self.ends
        sums: Array = values[..., heads] + values[..., tails]
        return sums

    def adjacency(self, graph: Array) -> Array:
        """Return the adjacency matrix, (..., vertices, vertices), symmetric with zero diagonal."""
        heads, tails = self.ends
        out = np.zeros((*graph.shape[:-1], self.vertices, self.vertices), graph.dtype)
        out[..., heads, tails] = out[..., tails, heads] = graph
        return out

    def vector(self, adjacency: Array) -> Array:
        """Return the edge weights, (..., edges), of an adjacency matrix, (..., vertices, vertices).

        Raises:
            DataError: another shape, not symmetric, or a diagonal that is not zero.
        """
        matrix = np.asarray(adjacency, np.float64)
        if matrix.shape[-2:] != (self.vertices, self.vertices):
            raise DataError(f"an adjacency matrix of {self.vertices} vertices is needed, not of shape {matrix.shape}")
        if not np.array_equal(matrix, np.swapaxes(matrix, -1, -2)) or np.diagonal(matrix, axis1=-2, axis2=-1).any():
            raise DataError("an adjacency matrix is symmetric with zero diagonal; this one is not")
        return np.asarray(matrix[(..., *self.ends)])

    def distances(self, signals: Array) -> Array:
        """Compute z, (edges,): squared distances between the vertices' signals, the columns of (rows, vertices).

        Raises:
            DataError: the number of columns is not the number of vertices.
        """
        if signals.shape[1] != self.vertices:
            raise DataError(f"signals on {self.vertices} vertices have as many columns, not {signals.shape[1]}")
        signals = np.asarray(signals, np.float64)
        # Vertex by vertex: differences before squares keep the digits that a Gram matrix would lose to a common offset.
        parts = [((signals[:, i + 1 :] - signals[:, [i]]) ** 2).sum(axis=0) for i in range(self.vertices - 1)]
        return np.concatenate(parts)
