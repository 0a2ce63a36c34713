"""Distances that were not told, from those that were: the completion of largest determinant.

-1/2 J D J is a Gram matrix, so it has no negative eigenvalue; of all completions with that property the one of largest
determinant is unique, and that of a Gaussian of largest entropy. Sources: Dempster 1972, Covariance Selection;
Grone et al. 1984; for distances Hentschel, Engelke and Segers, arXiv:2210.14292.
"""

from __future__ import annotations

import numpy as np
from numpy.linalg import LinAlgError

from securefed.algorithms.graph.edges import Edges
from securefed.attacks.distances.scaling import centred_gram
from securefed.tensors import Array

_NUGGETS = (1.0, 0.1, 0.01, 1e-3, 1e-4)
"""Variances, relative to the mean distance, added to every vertex, from large to small."""
_STEPS, _INNER, _ENOUGH = 4, 30, 1e-2


def complete(edges: Edges, distances: Array, free: Array, held: Array) -> Array:
    """(edges,): the distances, those at `free` moved to the largest log-determinant.

    What is told may be slightly no distances (not fitted yet), which the nuggets allow for.

    Args:
        distances: where to begin.      held: (free, directions), orthonormal: directions that must not move.
    """
    nearly = 0.0
    for nugget in _NUGGETS:
        scale = float(np.mean(distances))
        least = float(np.linalg.eigvalsh(centred_gram(edges.adjacency(distances)))[0])
        nearly = max(nugget * scale, -2.4 * least)
        for _ in range(_STEPS):
            distances, gain = _newton(edges, distances, free, held, nearly)
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


def _newton(edges: Edges, distances: Array, free: Array, held: Array, nugget: float) -> tuple[Array, float]:
    """One damped Newton step by conjugate gradients, and what it promised."""
    size, heads, tails = edges.vertices, edges.ends[0][free], edges.ends[1][free]
    matrix = _shifted(edges, distances, nugget)
    inverse = np.linalg.inv(matrix) - np.ones((size, size)) / (size * (1 + nugget / 2))
    across = inverse[heads, tails]

    def inside(vector: Array) -> Array:
        return np.asarray(vector - held @ (held.T @ vector))

    def curvature(vector: Array) -> Array:
        moved = np.zeros((size, size))
        moved[heads, tails] = moved[tails, heads] = vector
        return inside(0.5 * (inverse @ moved @ inverse)[heads, tails])

    slope = inside(-across)
    scale = 0.5 * (across**2 + inverse[heads, heads] * inverse[tails, tails])
    step, rest = np.zeros_like(slope), slope.copy()
    along = near = inside(rest / scale)
    begun = left = float(rest @ near)
    for _ in range(_INNER):
        bent = curvature(along)
        if not (left > 1e-6 * begun and along @ bent > 0):
            break
        length = left / float(along @ bent)
        step, rest = step + length * along, rest - length * bent
        near = inside(rest / scale)
        left, last = float(rest @ near), left
        along = near + left / last * along
    promised, value, share = float(slope @ step), _log_determinant(matrix), 1.0
    while promised > 0 and share > 1e-4:
        there = distances.copy()
        there[free] += share * step
        if _log_determinant(_shifted(edges, there, nugget)) > value + 1e-4 * share * promised:
            return there, promised
        share /= 2
    return distances, 0.0
