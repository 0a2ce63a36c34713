"""Complete distances that messages do not determine, by the completion of largest determinant.

-1/2 J D J is a Gram matrix, so that it has no negative eigenvalue. Of all completions with that property the one of
largest determinant is unique; for Gaussian data it is the one of largest entropy. Sources: Dempster 1972, Covariance
Selection; Grone et al. 1984; for distances Hentschel, Engelke and Segers, arXiv:2210.14292.
"""

from __future__ import annotations

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._graph.edges import Edges
from securefed.attacks._distances.classical_scaling import centred_gram

_NUGGETS = (1.0, 0.1, 0.01, 1e-3, 1e-4)
"""Variances, relative to the mean distance, that are added to every vertex one after the other."""
_STEPS, _INNER, _ENOUGH = 4, 30, 1e-2
"""Newton steps with each variance, conjugate gradient iterations of a step, and the gain at which they end."""
_DETERMINED = 1e-6
"""Relative size from which on a singular value counts as determined by the messages."""


def complete_undetermined(edges: Edges, distances: Array, hidden: Array, jacobian: Array) -> Array:
    """Complete the hidden distances in the directions that the messages leave open.

    Args:
        edges: of the graph.
        distances: (edges,) a fit to the messages.
        hidden: indices of the edges that are 0 in every graph.
        jacobian: (equations, edges) of the messages by the distances.
    """
    columns = jacobian[:, hidden]
    span = np.linalg.qr(np.delete(jacobian, hidden, axis=1))[0]
    rest = columns - span @ (span.T @ columns)  # what no other distance can make up for
    _, sizes, directions = np.linalg.svd(rest, full_matrices=False)
    determined = directions[sizes > _DETERMINED * np.linalg.norm(columns, 2)].T
    return complete_distances(edges, distances, hidden, determined)


def complete_distances(edges: Edges, distances: Array, free: Array, determined: Array) -> Array:
    """Return the distances with those at `free` moved to the largest log-determinant, (edges,).

    Before a fit has converged, the other distances need not be distances of any signals; the added variances allow for
    that.

    Args:
        edges: of the graph.
        distances: (edges,) start of the search.
        free: indices of the distances that may move.
        determined: (free, directions), orthonormal directions in which they must not move.
    """
    added_variance = 0.0
    for nugget in _NUGGETS:
        scale = float(np.mean(distances))
        least = float(np.linalg.eigvalsh(centred_gram(edges.adjacency(distances)))[0])
        added_variance = max(nugget * scale, -2.4 * least)
        for _ in range(_STEPS):
            distances, gain = _newton(edges, distances, free, determined, added_variance)
            if gain < _ENOUGH:
                break
    return distances


def _shifted(edges: Edges, distances: Array, nugget: float) -> Array:
    size = edges.vertices
    return centred_gram(edges.adjacency(distances)) + nugget / 2 * np.eye(size) + np.ones((size, size)) / size


def _log_determinant(matrix: Array) -> float:
    try:
        return 2 * float(np.log(np.diag(np.linalg.cholesky(matrix))).sum())
    except LinAlgError:
        return -np.inf


def _newton(edges: Edges, distances: Array, free: Array, determined: Array, nugget: float) -> tuple[Array, float]:
    """Return the distances after one damped Newton step by conjugate gradients, and the predicted gain."""
    size, heads, tails = edges.vertices, edges.ends[0][free], edges.ends[1][free]
    matrix = _shifted(edges, distances, nugget)
    inverse = np.linalg.inv(matrix) - np.ones((size, size)) / (size * (1 + nugget / 2))
    across = inverse[heads, tails]

    def inside(vector: Array) -> Array:
        return np.asarray(vector - determined @ (determined.T @ vector))

    def curvature(vector: Array) -> Array:
        moved = np.zeros((size, size))
        moved[heads, tails] = moved[tails, heads] = vector
        return inside(0.5 * (inverse @ moved @ inverse)[heads, tails])

    slope = inside(-across)
    scale = 0.5 * (across**2 + inverse[heads, heads] * inverse[tails, tails])
    step, rest = np.zeros_like(slope), slope.copy()
    along = preconditioned = inside(rest / scale)
    initial = remaining = float(rest @ preconditioned)
    for _ in range(_INNER):
        bending = curvature(along)
        if not (remaining > 1e-6 * initial and along @ bending > 0):
            break
        length = remaining / float(along @ bending)
        step, rest = step + length * along, rest - length * bending
        preconditioned = inside(rest / scale)
        remaining, last = float(rest @ preconditioned), remaining
        along = preconditioned + remaining / last * along
    predicted, value, share = float(slope @ step), _log_determinant(matrix), 1.0
    while predicted > 0 and share > 1e-4:
        there = distances.copy()
        there[free] += share * step
        if _log_determinant(_shifted(edges, there, nugget)) > value + 1e-4 * share * predicted:
            return there, predicted
        share /= 2
    return distances, 0.0
