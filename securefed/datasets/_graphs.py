"""Generate graphs that share edges, and smooth signals on them.

The experiments of graph learning (`graph/ppgl`) draw one graph for each client and signals on it: rows are signals,
columns are vertices, and neighbours have similar values. L is a graph's Laplacian, L^+ its pseudo-inverse; graphs are
adjacency matrices (vertices, vertices).

Source ("the paper", ppgl): Zhang and Wang, Graph Learning Across Data Silos, section V-A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from securefed._hyperparameters import check_integer, check_number
from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, DataError

SMALLEST_DEGREE = 0.3
"""Every vertex of a graph must have a larger degree: the variance of its signal grows as 1 / degree, so that one vertex
of tiny degree would dominate every measure."""
ATTEMPTS = 10_000
"""Number of draws after which a `ConfigError` says that such degrees are out of reach; so many take seconds."""
WEIGHTS = (0.7, 1.0)
"""The range of the weights of added edges; an RBF graph that is cut at .7 has the same."""


@dataclass(frozen=True)
class RelatedGraphs:
    """Graphs on the same vertices that share a part of their edges.

    Attributes:
        common: (vertices, vertices) adjacency matrix of the shared edges.
        graphs: one adjacency matrix for each client.
    """

    common: Array
    graphs: tuple[Array, ...]


def rbf_graph(vertices: int, rng: np.random.Generator, *, cut: float = 0.7) -> Array:
    """Draw points in the unit square, and join them with weights exp(-dist^2 / (2 .5^2)) that are at least `cut`."""
    check_integer("vertices", vertices, 2)
    check_number("cut", cut, below=1, positive=True)
    points = rng.uniform(size=(vertices, 2))
    weights = np.exp(-((points[:, None] - points[None]) ** 2).sum(axis=-1) / (2 * 0.5**2))
    np.fill_diagonal(weights, 0)
    return np.where(weights < cut, 0.0, weights)


def rewired(base: Array, common: Array, rng: np.random.Generator) -> Array:
    """Add random edges to `common` until it has as many as `base`; their weights are uniform in `WEIGHTS`.

    Args:
        base: adjacency matrix (vertices, vertices) of the graph whose number of edges is kept.
        common: adjacency matrix of a part of `base`.
        rng: source of all randomness.
    """
    heads, tails = np.triu_indices(len(base), 1)
    free = np.flatnonzero(common[heads, tails] == 0)
    added = np.count_nonzero(base[heads, tails]) - np.count_nonzero(common[heads, tails])
    chosen = rng.choice(free, added, replace=False)
    out = common.copy()
    out[heads[chosen], tails[chosen]] = out[tails[chosen], heads[chosen]] = rng.uniform(*WEIGHTS, added)
    return out


def nested_parts(base: Array, shares: Sequence[float], rng: np.random.Generator) -> list[Array]:
    """Draw for each share q a part of `base` with round(q |E|) of its |E| edges; smaller parts lie in larger ones."""
    if not all(0 <= share <= 1 for share in shares):
        raise ConfigError(f"shares of edges lie in [0, 1], not {tuple(shares)}")
    rows, columns = np.triu_indices(len(base), 1)
    is_edge = base[rows, columns] > 0
    heads, tails = rows[is_edge], columns[is_edge]  # the two ends of each edge of `base`
    order, parts = rng.permutation(len(heads)), []
    for share in shares:
        kept = order[: round(share * len(heads))]
        part = np.zeros_like(base)
        part[heads[kept], tails[kept]] = part[tails[kept], heads[kept]] = base[heads[kept], tails[kept]]
        parts.append(part)
    return parts


def related_graphs(
    clients: int,
    shared: float,
    rng: np.random.Generator,
    *,
    vertices: int = 20,
    smallest_degree: float = SMALLEST_DEGREE,
) -> RelatedGraphs:
    """Draw an RBF graph; each client keeps a share of its edges and adds random ones up to the old number.

    The paper does not give the added weights (`WEIGHTS` here), nor treat vertices that lose all their edges. Here
    everything is drawn again until each client's smallest degree exceeds `smallest_degree`, since the variance of a
    vertex's signal grows without bound as its degree goes to 0.

    Args:
        clients: number of graphs.
        shared: share of the edges of the RBF graph that each client keeps, in [0, 1].
        rng: source of all randomness.
        vertices: number of vertices.
        smallest_degree: bound that every degree of every client's graph exceeds.

    Raises:
        ConfigError: parameters outside their domain, or degrees that no draw reaches.
    """
    return _drawn(lambda: _sharing(clients, shared, rng, vertices), smallest_degree)


def graphs_at_distances(shares: Sequence[float], rng: np.random.Generator, *, vertices: int = 20) -> RelatedGraphs:
    """Draw an RBF graph G_1, and a graph for each share q of its edges to keep (ppgl Table III, case 2).

    The first client has G_1 itself. `common` is G_1; the kept parts are nested. They are drawn until every degree is
    above `SMALLEST_DEGREE`.
    """

    def draw() -> RelatedGraphs:
        base = rbf_graph(vertices, rng)
        return RelatedGraphs(base, (base, *(rewired(base, part, rng) for part in nested_parts(base, shares, rng))))

    return _drawn(draw, SMALLEST_DEGREE)


def smooth_signals(graph: Array, rows: int, rng: np.random.Generator, *, noise: float = 0.1) -> Dataset:
    """Draw `rows` signals from N(0, L^+ + noise^2 I), L the Laplacian of `graph` (ppgl eq. 26)."""
    check_integer("rows", rows, 1)
    check_number("noise", noise, 0)
    matrix = np.asarray(graph, np.float64)
    if matrix.ndim != 2 or not np.array_equal(matrix, matrix.T) or (matrix < 0).any() or np.diagonal(matrix).any():
        raise DataError("an adjacency matrix is square, symmetric and non-negative with zero diagonal; this one is not")
    values, vectors = np.linalg.eigh(np.diag(matrix.sum(axis=0)) - matrix)
    # variances of L^+ + noise^2 I along L's eigenvectors; eigenvalues within rounding of 0 have none in L^+
    tiny = len(matrix) * np.finfo(float).eps * max(values[-1], 1.0)
    variances = np.where(values > tiny, 1 / np.maximum(values, tiny), 0.0) + noise**2
    return Dataset(rng.standard_normal((rows, len(matrix))) * np.sqrt(variances) @ vectors.T)


def _sharing(clients: int, shared: float, rng: np.random.Generator, vertices: int) -> RelatedGraphs:
    """Draw the graphs of `related_graphs` once, whatever their degrees."""
    check_integer("clients", clients, 1)
    base = rbf_graph(vertices, rng)
    (common,) = nested_parts(base, [shared], rng)
    return RelatedGraphs(common, tuple(rewired(base, common, rng) for _ in range(clients)))


def _drawn(draw: Callable[[], RelatedGraphs], smallest_degree: float) -> RelatedGraphs:
    """Draw until every degree of every client's graph is above `smallest_degree`."""
    for _ in range(ATTEMPTS):
        related = draw()
        if min(graph.sum(axis=0).min() for graph in related.graphs) > smallest_degree:
            return related
    raise ConfigError(
        f"no graph in {ATTEMPTS} draws had every degree above {smallest_degree}; lower smallest_degree, "
        "or take more vertices or a larger share"
    )
