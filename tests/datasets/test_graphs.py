"""Generated graphs and signals: what they share, and the distribution they are drawn from."""

import numpy as np
import pytest

from securefed.datasets import related_graphs, smooth_signals
from securefed.datasets._graphs import WEIGHTS, graphs_at_distances, nested_parts, rbf_graph, rewired
from securefed.errors import ConfigError, DataError

PATH = np.diag([1.0, 0.5, 2.0], 1) + np.diag([1.0, 0.5, 2.0], -1)


def edges(graph):
    return np.count_nonzero(np.triu(graph))


def test_an_rbf_graph_has_weights_between_the_cut_and_one():
    graph = rbf_graph(20, np.random.default_rng(0))
    np.testing.assert_array_equal(graph, graph.T)
    assert not graph.diagonal().any()
    weights = graph[graph > 0]
    assert 0.7 <= weights.min() < weights.max() < 1
    # dist <= .5 sqrt(2 log(1 / .7)) = .42 joins two points: a disc of that radius, cut by the square, holds .2 to .55
    assert 0.2 < edges(graph) / 190 < 0.6


@pytest.mark.parametrize("shared", [0.0, 0.3, 0.9, 1.0])
def test_clients_share_what_is_common_and_have_as_many_edges_each(shared):
    related = related_graphs(4, shared, np.random.default_rng(1))
    total = edges(related.graphs[0])
    assert edges(related.common) == round(shared * total)
    kept = related.common > 0
    for graph in related.graphs:
        np.testing.assert_array_equal(graph, graph.T)
        np.testing.assert_array_equal(graph[kept], related.common[kept])
        assert edges(graph) == total
        assert graph.sum(axis=0).min() > 0.3
        added = graph[~kept & (graph > 0)]
        assert added.size == 0 or (WEIGHTS[0] <= added.min() and added.max() <= WEIGHTS[1])
    if shared < 1:
        assert not np.array_equal(related.graphs[0], related.graphs[1])


def test_draws_depend_on_the_generator_alone():
    one, same, other = (related_graphs(2, 0.5, np.random.default_rng(seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.graphs, same.graphs)
    assert not np.array_equal(one.graphs, other.graphs)


def test_graphs_at_distances_keep_nested_parts_of_the_first():
    related = graphs_at_distances((0.8, 0.6, 0.4, 0.2), np.random.default_rng(2))
    base, *others = related.graphs
    np.testing.assert_array_equal(base, related.common)
    kept = [np.count_nonzero((graph == base) & (base > 0)) // 2 for graph in others]
    assert kept == [round(share * edges(base)) for share in (0.8, 0.6, 0.4, 0.2)]
    largest, smallest = nested_parts(base, (0.8, 0.2), np.random.default_rng(3))
    assert (largest[smallest > 0] > 0).all()


def test_signals_have_the_stated_covariance():
    """n = 40000 rows: each entry of the sample covariance has a standard error of at most sqrt(2 / n) = .7 % of the
    largest variance, so 4 % is over 5 of them; a covariance without the noise, or with L instead of L^+, is far off."""
    laplacian = np.diag(PATH.sum(axis=0)) - PATH
    data = smooth_signals(PATH, 40_000, np.random.default_rng(0), noise=0.5)
    found = data.x.T @ data.x / data.rows
    wanted = np.linalg.pinv(laplacian) + 0.25 * np.eye(4)
    bound = 0.04 * wanted.max()
    assert np.abs(found - wanted).max() < bound
    assert np.abs(found - np.linalg.pinv(laplacian)).max() > bound
    assert np.abs(found - laplacian - 0.25 * np.eye(4)).max() > bound


def test_signals_of_a_graph_without_edges_are_noise_alone():
    data = smooth_signals(np.zeros((3, 3)), 2000, np.random.default_rng(0), noise=2.0)
    assert data.x.std(axis=0) == pytest.approx([2.0] * 3, rel=0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda rng: rbf_graph(1, rng), "vertices must be an integer of at least 2"),
        (lambda rng: rbf_graph(5, rng, cut=1.0), "cut must be a positive, finite number below 1"),
        (lambda rng: related_graphs(0, 0.5, rng), "clients must be an integer of at least 1"),
        (lambda rng: related_graphs(2, 1.5, rng), r"lie in \[0, 1\]"),
        (lambda rng: related_graphs(2, 0.5, rng, vertices=4, smallest_degree=4.0), "lower smallest_degree"),
        (lambda rng: smooth_signals(PATH, 0, rng), "rows must be an integer of at least 1"),
        (lambda rng: smooth_signals(PATH, 3, rng, noise=-1), "noise must be a finite number of at least 0"),
    ],
)
def test_parameters_outside_their_domain_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make(np.random.default_rng(0))


@pytest.mark.parametrize("graph", [np.ones((3, 3)), np.triu(np.ones((3, 3)), 1), -PATH, np.ones((2, 3)), PATH[0]])
def test_matrices_that_are_no_graph_are_refused(graph):
    with pytest.raises(DataError, match="adjacency matrix"):
        smooth_signals(graph, 2, np.random.default_rng(0))


def test_rewiring_fills_up_to_the_old_number_of_edges():
    base = rbf_graph(8, np.random.default_rng(4))
    assert edges(rewired(base, np.zeros_like(base), np.random.default_rng(0))) == edges(base)
