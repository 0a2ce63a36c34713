"""One client's distances where its graphs only bound some of them: the rest is exact, and these are completed."""

import numpy as np

from securefed import Dataset, Federation
from securefed.algorithms import PPGL
from securefed.algorithms._graph.edges import Edges
from securefed.attacks import DistanceFit, Target, views
from securefed.attacks._distances import centred_gram
from securefed.attacks._distances.distance_completion import complete_distances
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks.scores import relative_error


def camps(vertices, rows, seed, weight=0.7):
    """Signals that follow one factor, half of the vertices with the other sign: z-scored, distances up to 4."""
    rng = np.random.default_rng(seed)
    signs = np.where(np.arange(vertices) % 2 == 0, 1.0, -1.0)
    x = weight * rng.normal(size=(rows, 1)) * signs + (1 - weight) * rng.normal(size=(rows, vertices))
    return Dataset((x - x.mean(axis=0)) / x.std(axis=0), None)


def scene(method, vertices=14, seed=0, rounds=6, weight=0.7):
    """(observed, target, edges, distances) of client 1."""
    data = [camps(vertices, rows, 10 * seed + rows, weight) for rows in (50, 60)]
    federation = Federation(method, data, seed=seed)
    federation.run(rounds)
    edges = Edges(vertices)
    observed = views.server(federation.transcript, 1)
    return observed, Target(method, federation.public), edges, edges.distances(data[1].x) / data[1].rows


def test_the_completion_has_no_partial_correlation_where_nothing_was_told() -> None:
    edges, rng = Edges(9), np.random.default_rng(1)
    truth = edges.distances(rng.normal(size=(30, 9)) @ rng.normal(size=(9, 9))) / 30
    free = np.array([3, 10, 25])
    start = truth.copy()
    start[free] *= 1.3
    found = complete_distances(edges, start, free, np.zeros((3, 0)))
    told = np.setdiff1d(np.arange(edges.count), free)
    np.testing.assert_array_equal(found[told], truth[told])
    inverse = np.linalg.pinv(centred_gram(edges.adjacency(found)))
    heads, tails = edges.ends
    assert np.abs(inverse[heads, tails][free]).max() < 1e-2 * np.abs(inverse[heads, tails][told]).max()
    start[free] = truth[free]
    held = np.linalg.qr(rng.normal(size=(3, 2)))[0]
    moved = complete_distances(edges, start, free, held)[free] - truth[free]
    assert np.linalg.norm(moved) > 1e-3 and np.abs(held.T @ moved).max() < 1e-9


def test_what_is_seen_is_exact_and_what_is_bounded_is_completed() -> None:
    for seed in range(3):
        observed, target, edges, truth = scene(PPGL(), seed=seed)
        hidden = GraphSimulation.of(observed, target).hidden
        found = DistanceFit().run(observed, target, np.random.default_rng(0))
        value = edges.vector(found.value)
        assert len(hidden) > 10 and found.diagnostics["bounded only"] == len(hidden)
        assert edges.count - len(hidden) < found.rank < found.unknowns
        seen = np.setdiff1d(np.arange(edges.count), hidden)
        assert found.residual < 1e-9 and np.abs(value - truth)[seen].max() < 1e-7
        assert relative_error(value[hidden], truth[hidden]) < 0.05
