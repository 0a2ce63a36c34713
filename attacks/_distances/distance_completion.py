"""Complete squared distances between signals that messages do not determine, by the completion of largest determinant.

`distance_fit` calls this for a client of graph learning whose messages show only some distances: an edge (pair of
vertices) whose weight is 0 in every message leaves its distance open. D, (vertices, vertices), holds the squared
distances, of which some are free. With J = I - 1 1^T / vertices, -1/2 J D J is a Gram matrix, so that it has no
negative eigenvalue. Of all completions with that property the one of largest determinant (on the complement of 1) is
unique; for Gaussian data it is the one of largest entropy. Newton's method on the log-determinant finds it. To keep the
matrix well conditioned at first, a number called the nugget is added to every squared distance. That adds nugget/2 I to
the Gram matrix, as if every vertex's signal had noise of variance nugget/2. The nugget falls in steps.

Sources: Dempster 1972, Covariance Selection; Grone et al. 1984; for distances Hentschel, Engelke and Segers,
arXiv:2210.14292.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.linalg import LinAlgError

from securefed._tensors import Array
from securefed.algorithms._graph.edges import Edges
from securefed.attacks._distances.classical_scaling import centred_gram

_NUGGETS = (1.0, 0.1, 0.01, 1e-3, 1e-4)
"""Nuggets in the order in which they are used, relative to the mean squared distance. The first makes the problem well
conditioned; the last hardly changes its solution.
"""
_NEWTON_STEPS, _CG_ITERATIONS, _LEAST_GAIN = 4, 30, 1e-2
"""Most Newton steps with each nugget, most conjugate gradient iterations of a step, and the predicted gain of the
log-determinant below which the steps end. The completion need not be accurate, since a fit follows.
"""
_DETERMINED = 1e-6
"""Singular values of the hidden distances' part of the Jacobian above this share of the largest count as determined by
the messages.
"""


def complete_undetermined(edges: Edges, distances: Array, hidden: Array, jacobian: Array) -> Array:
    """Complete the hidden distances in the directions that the messages leave open.

    Changing the hidden distances changes the messages. In some directions a change of the other distances can cancel
    that, so that the messages leave these directions open. The messages determine the hidden distances in all other
    directions, in which they are kept.

    Args:
        edges: the edges of the graph.
        distances: squared distances that fit the messages, (edges,).
        hidden: indices of the edges whose weight is 0 in every message.
        jacobian: derivatives of the messages by the distances, (equations, edges).

    Returns:
        All distances, (edges,).
    """
    columns = jacobian[:, hidden]
    other_columns = np.linalg.qr(np.delete(jacobian, hidden, axis=1))[0]
    own_part = columns - other_columns @ (other_columns.T @ columns)  # changes that no other distance can undo
    _, sizes, directions = np.linalg.svd(own_part, full_matrices=False)
    determined = directions[sizes > _DETERMINED * np.linalg.norm(columns, 2)].T
    return complete_distances(edges, distances, hidden, determined)


def complete_distances(edges: Edges, distances: Array, free: Array, determined: Array) -> Array:
    """Move the distances at `free` to the largest log-determinant; return all distances, (edges,).

    Before a fit has converged, the other distances need not be those of any signals, so that the Gram matrix may have
    negative eigenvalues. The nugget is therefore at least 2.4 times the size of the most negative one. Half of the
    nugget is added to the diagonal of the matrix, which is then positive definite.

    Args:
        edges: the edges of the graph.
        distances: distances at which the search starts, (edges,).
        free: indices of the distances that may change.
        determined: orthonormal directions in which they must not change, (free, directions).
    """
    for share in _NUGGETS:
        least_eigenvalue = float(np.linalg.eigvalsh(centred_gram(edges.adjacency(distances)))[0])
        nugget = max(share * float(np.mean(distances)), -2.4 * least_eigenvalue)
        for _ in range(_NEWTON_STEPS):
            distances, gain = _newton(edges, distances, free, determined, nugget)
            if gain < _LEAST_GAIN:
                break
    return distances


def _positive_gram(edges: Edges, distances: Array, nugget: float) -> Array:
    """Return -1/2 J D J + nugget/2 I + 1 1^T / vertices, (vertices, vertices).

    On the vector 1 its eigenvalue is 1 + nugget/2, a constant, so that its determinant is that on the complement of 1,
    scaled.
    """
    size = edges.vertices
    return centred_gram(edges.adjacency(distances)) + nugget / 2 * np.eye(size) + np.ones((size, size)) / size


def _log_determinant(matrix: Array) -> float:
    """Return log det of a positive definite matrix; minus infinity where it is not positive definite."""
    try:
        return 2 * float(np.log(np.diag(np.linalg.cholesky(matrix))).sum())
    except LinAlgError:
        return -np.inf


def _newton(edges: Edges, distances: Array, free: Array, determined: Array, nugget: float) -> tuple[Array, float]:
    """Take one damped Newton step on the log-determinant over the free distances, by conjugate gradients.

    P is the inverse of the matrix on the complement of 1. The derivative of the log-determinant by the distance of
    vertices i and j is -P_ij. The negative Hessian maps a change C of D to P C P / 2 at the free entries; its diagonal
    is (P_ij^2 + P_ii P_jj) / 2. Steps stay in the complement of the determined directions.

    Args:
        edges: the edges of the graph.
        distances: distances before the step, (edges,).
        free: indices of the distances that may change.
        determined: orthonormal directions in which they must not change, (free, directions).
        nugget: number that is added to every squared distance between two vertices.

    Returns:
        The distances after the step, and the gain that it predicted.
    """
    # heads and tails are the two vertices of each free edge
    size, heads, tails = edges.vertices, edges.ends[0][free], edges.ends[1][free]
    matrix = _positive_gram(edges, distances, nugget)
    inverse = np.linalg.inv(matrix) - np.ones((size, size)) / (size * (1 + nugget / 2))
    off_diagonal = inverse[heads, tails]

    def project(vector: Array) -> Array:
        """Remove the determined directions."""
        return np.asarray(vector - determined @ (determined.T @ vector))

    def curvature(vector: Array) -> Array:
        """Apply the negative Hessian of the log-determinant."""
        change = np.zeros((size, size))
        change[heads, tails] = change[tails, heads] = vector
        return project(0.5 * (inverse @ change @ inverse)[heads, tails])

    gradient = project(-off_diagonal)
    diagonal = 0.5 * (off_diagonal**2 + inverse[heads, heads] * inverse[tails, tails])
    step = _conjugate_gradients(curvature, gradient, lambda residual: project(residual / diagonal))
    predicted, log_determinant, fraction = float(gradient @ step), _log_determinant(matrix), 1.0
    # halve the step until the log-determinant rises (Armijo's rule)
    while predicted > 0 and fraction > 1e-4:
        trial = distances.copy()
        trial[free] += fraction * step
        if _log_determinant(_positive_gram(edges, trial, nugget)) > log_determinant + 1e-4 * fraction * predicted:
            return trial, predicted
        fraction /= 2
    return distances, 0.0


def _conjugate_gradients(
    matrix: Callable[[Array], Array], right_side: Array, precondition: Callable[[Array], Array]
) -> Array:
    """Solve matrix(x) = right_side for x roughly, by preconditioned conjugate gradients from x = 0."""
    solution, residual = np.zeros_like(right_side), right_side.copy()
    direction = preconditioned = precondition(residual)
    initial = remaining = float(residual @ preconditioned)
    for _ in range(_CG_ITERATIONS):
        image = matrix(direction)
        if not (remaining > 1e-6 * initial and direction @ image > 0):
            break
        step_size = remaining / float(direction @ image)
        solution, residual = solution + step_size * direction, residual - step_size * image
        preconditioned = precondition(residual)
        remaining, previous = float(residual @ preconditioned), remaining
        direction = preconditioned + remaining / previous * direction
    return solution
