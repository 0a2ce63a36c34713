"""The objective of one graph: its operator, its gradient, its minimisers in closed form; scores of a learned graph."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from securefed.algorithms import community_scores, edge_scores
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.smooth import MomentumDescent, SmoothGraph
from securefed.errors import ConfigError, DataError
from tests.combinations import first_ones

SEVEN = Edges(7)


def signals(seed=0, rows=5, vertices=7):
    return np.random.default_rng(seed).normal(size=(rows, vertices))


def minimised(problem, distances, steps=12_000):
    """By plain projected gradient steps, small enough for the degrees met on the way."""
    graph = np.full(problem.edges.count, 0.5)
    return MomentumDescent(0.01, 0.0, steps).run(problem, graph, graph, distances)[0]


def test_degrees_and_spread_are_the_dense_operator_and_its_transpose():
    rng = np.random.default_rng(0)
    graph, values = rng.uniform(size=(3, SEVEN.count)), rng.normal(size=(3, 7))
    dense = np.zeros((7, SEVEN.count))
    dense[SEVEN.ends[0], np.arange(SEVEN.count)] = dense[SEVEN.ends[1], np.arange(SEVEN.count)] = 1
    np.testing.assert_allclose(SEVEN.degrees(graph), graph @ dense.T, rtol=1e-14)
    np.testing.assert_allclose(SEVEN.spread(values), values @ dense, rtol=1e-14)
    np.testing.assert_allclose(SEVEN.degrees(graph), SEVEN.adjacency(graph).sum(axis=-1), rtol=1e-14)
    np.testing.assert_array_equal(SEVEN.vector(SEVEN.adjacency(graph)), graph)


def test_the_operator_norm_is_that_of_the_smoothness_constant():
    """Hessian 4 beta I + alpha S^T diag(1 / (degree + zeta)^2) S, at equal degrees: its largest eigenvalue."""
    problem, graph = SmoothGraph(SEVEN, 2.0, 0.1, 0.01), np.full(SEVEN.count, 0.3)
    step, hessian = 1e-5, np.empty((SEVEN.count, SEVEN.count))
    for column, direction in enumerate(step * np.eye(SEVEN.count)):
        ahead, behind = (problem.gradient(graph + sign * direction, 0 * graph) for sign in (1, -1))
        hessian[column] = (ahead - behind) / (2 * step)
    assert np.linalg.eigvalsh(hessian)[-1] == pytest.approx(problem.smoothness(6 * 0.3), rel=1e-6)


def test_distances_between_columns_keep_their_digits():
    x = signals()
    np.testing.assert_allclose(SEVEN.distances(x), pdist(x.T, "sqeuclidean"), rtol=1e-14)
    offset = np.float64(
        2.0**26
    )  # x + offset is rounded to 2^-27, so distances to about 1e-8; a Gram matrix has none left
    np.testing.assert_allclose(SEVEN.distances(x + offset), SEVEN.distances(x), rtol=1e-6)


def test_gradient_against_finite_differences():
    problem = SmoothGraph(SEVEN, 1.3, 0.2, 1e-3)
    rng = np.random.default_rng(1)
    graph, z = rng.uniform(0.1, 1, (4, SEVEN.count)), rng.uniform(size=(4, SEVEN.count))
    gradient = problem.gradient(graph, z)
    for edge in range(SEVEN.count):
        step = np.zeros(SEVEN.count)
        step[edge] = 1e-5
        slope = (problem.objective(graph + step, z) - problem.objective(graph - step, z)) / 2e-5
        np.testing.assert_allclose(gradient[:, edge], slope, rtol=1e-6, atol=1e-8)


def test_constant_signals_have_the_complete_graph_with_equal_weights():
    """z = 0: 4 beta c = 2 alpha / ((d - 1) c + zeta) for a common weight c."""
    problem = SmoothGraph(SEVEN, 1.0, 0.3, 1e-9)
    found = minimised(problem, np.zeros(SEVEN.count))
    np.testing.assert_allclose(found, np.sqrt(1 / (2 * 0.3 * 6)), rtol=1e-7)


def test_two_vertices_have_the_root_of_a_quadratic():
    """z - 2 alpha / w + 4 beta w = 0."""
    z, alpha, beta = 0.7, 1.0, 0.3
    root = (-z + np.sqrt(z**2 + 32 * alpha * beta)) / (8 * beta)
    found = minimised(SmoothGraph(Edges(2), alpha, beta, 1e-12), np.array([z]))
    np.testing.assert_allclose(found, [root], rtol=1e-9)


def test_scaling_alpha_and_beta_scales_the_graph():
    z = SEVEN.distances(signals()) / 5
    one, other = (minimised(SmoothGraph(SEVEN, c, 0.1 / c, 1e-12), z) for c in (1.0, 2.0))
    np.testing.assert_allclose(other, 2 * one, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", first_ones(range(5), 2))
def test_no_weight_of_a_minimiser_exceeds_the_stated_largest(seed):
    problem = SmoothGraph(SEVEN, 1.0, 0.05, 1e-6)
    found = minimised(problem, 3 * SEVEN.distances(signals(seed)) / 5)
    assert 0 < found.max() <= problem.largest_weight
    slope = problem.gradient(found, 3 * SEVEN.distances(signals(seed)) / 5)
    assert np.abs(np.minimum(found, slope)).max() < 1e-6  # the conditions of a minimum: w, slope >= 0, one of them 0


def test_plain_steps_within_the_condition_never_raise_the_objective_and_beyond_it_they_do():
    problem, z = SmoothGraph(SEVEN, 1.0, 0.1, 1e-3), SEVEN.distances(signals()) / 5
    graph = np.full(SEVEN.count, 0.5)
    values, needed = [float(problem.objective(graph, z))], 0.0
    for _ in range(200):
        before = SEVEN.degrees(graph).min()
        graph, _ = MomentumDescent(0.02, 0.0, 1).run(problem, graph, graph, z)
        needed = max(needed, problem.smoothness(min(before, SEVEN.degrees(graph).min())))
        values.append(float(problem.objective(graph, z)))
    assert 0.02 * needed <= 2  # the condition held
    assert (np.diff(values) <= 1e-12).all()
    far = MomentumDescent(4.0, 0.0, 1).run(problem, graph * 0.9, graph, z)[0]
    assert problem.objective(far, z) > problem.objective(graph * 0.9, z)


def test_momentum_that_would_leave_the_domain_is_left_out_for_that_client_alone():
    problem, z = SmoothGraph(Edges(3), 1.0, 0.1, 1e-3), np.ones((2, 3))
    graph, previous = np.full((2, 3), 0.1), np.array([[0.4] * 3, [0.11] * 3])  # extrapolates to -.17 and to .091
    with_momentum, without = (MomentumDescent(0.005, xi, 1).run(problem, graph, previous, z)[0] for xi in (0.9, 0.0))
    np.testing.assert_array_equal(with_momentum[0], without[0])
    assert (with_momentum[1] < without[1]).all()


@pytest.mark.parametrize("vertices", [0, 1])
def test_a_graph_needs_two_vertices(vertices):
    with pytest.raises(ConfigError, match="at least 2 vertices"):
        Edges(vertices)


@pytest.mark.parametrize("matrix", [np.ones((7, 7)), np.triu(np.ones((7, 7)), 1)])
def test_matrices_that_are_no_graph_are_refused(matrix):
    with pytest.raises(DataError, match="symmetric with zero diagonal"):
        SEVEN.vector(matrix)


def test_a_matrix_or_signals_on_other_vertices_are_refused():
    with pytest.raises(DataError, match="7 vertices"):
        SEVEN.vector(np.zeros((3, 3)))
    with pytest.raises(DataError, match="7 vertices have as many columns, not 4"):
        SEVEN.distances(signals(vertices=4))


def test_edge_scores_by_hand():
    truth, learned = np.array([1.0, 0.8, 0.0, 0.0]), np.array([0.9, 0.1, 0.3, 0.2])
    scores = edge_scores(learned, truth)  # above .2: the first and the third
    assert (scores.precision, scores.recall, scores.f_score) == (0.5, 0.5, 0.5)
    assert scores.relative_error == pytest.approx(np.sqrt((0.01 + 0.49 + 0.09 + 0.04) / 1.64))
    perfect = edge_scores(truth, truth)
    assert (perfect.precision, perfect.f_score, perfect.relative_error) == (1, 1, 0)
    empty = edge_scores(np.zeros(4), truth)
    assert (empty.precision, empty.recall, empty.f_score, empty.relative_error) == (0, 0, 0, 1)


def test_edge_scores_refuse_what_they_are_not_defined_for():
    with pytest.raises(DataError, match="no edges"):
        edge_scores(np.ones(3), np.zeros(3))
    with pytest.raises(DataError, match="same vertices"):
        edge_scores(np.ones(3), np.ones(6))
    with pytest.raises(ConfigError, match="threshold"):
        edge_scores(np.ones(3), np.ones(3), -0.1)


def test_community_scores_are_one_for_the_same_groups_under_other_labels_and_low_for_mixed_ones():
    groups = np.array([0, 0, 0, 1, 1, 1])
    scores = community_scores(1 - groups, groups)
    assert (scores.information, scores.rand, scores.fowlkes_mallows) == pytest.approx((1, 1, 1))
    mixed = community_scores(np.array([0, 1, 0, 1, 0, 1]), groups)
    assert mixed.information < 0.1
    assert mixed.rand < 0.5
