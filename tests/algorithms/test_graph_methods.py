"""PPGL and its baselines: limits, invariances, descent and roll-back."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, RunOptions
from securefed._persistence.packing import pack, restore
from securefed.algorithms import IGL, MRMTL, PPGL, GraphDitto, GraphFedAvg, GraphFedProx
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.method import GRAPH
from securefed.algorithms._graph.ppgl import WEIGHT, WEIGHTED
from securefed.algorithms._graph.smooth import MomentumDescent
from securefed.datasets import related_graphs, smooth_signals
from tests.algorithms.rounds import Loop

METHODS = [PPGL(), PPGL(weights="equal"), IGL(), GraphFedAvg(), GraphFedProx(), MRMTL(), GraphDitto()]
IDS = ["ppgl", "equal", "igl", "fedavg", "fedprox", "mrmtl", "ditto"]
PERSONAL = [method for method in METHODS if method.result]
every = pytest.mark.parametrize("method", METHODS, ids=IDS)


def silos(clients=4, rows=(30, 40, 25, 30), seed=0):
    rng = np.random.default_rng(seed)
    related = related_graphs(clients, 0.5, rng, vertices=12)
    return [smooth_signals(graph, n, rng) for graph, n in zip(related.graphs, rows, strict=False)]


def graphs(loop):
    return np.stack([loop.algorithm.personal(client)[GRAPH] for client in loop.clients])


def distances(loop):
    return np.stack([client.distances for client in loop.clients])


# Limits


@pytest.mark.parametrize("method", [PPGL(sparsity=1e-14), MRMTL(pull=0.0), GraphDitto(strength=0.0)])
@pytest.mark.parametrize("count", [1, 4])
def test_without_a_pull_every_client_learns_alone(method, count):
    alone, pulled = Loop(IGL(), silos()[:count]).run(6), Loop(method, silos()[:count]).run(6)
    np.testing.assert_allclose(graphs(pulled), graphs(alone), rtol=0, atol=1e-11)
    strong = Loop(replace(method, **({"sparsity": 1.0} if isinstance(method, PPGL) else {})), silos()).run(6)
    if isinstance(method, PPGL):  # positive control: a pull does change the graphs
        assert np.abs(graphs(strong) - graphs(Loop(IGL(), silos()).run(6))).max() > 1e-3


def test_rounds_of_igl_are_one_long_descent():
    loop, steps, momentum = Loop(IGL(), silos()).run(7), 35, 0.9
    start, problem = np.full((4, 66), 0.1), IGL().problem(loop.public)
    long, _ = MomentumDescent(0.005, momentum, steps).run(problem, start, start, distances(loop))
    # The two differ by rounding alone, as they sum in another order. A step rounds a sum of 11 weights, and some ten
    # operations on it: less than 25 units in the last place of the largest weight. With 0 <= mu = 1 - eta l <= 1 for
    # every curvature l, the steps' recursion x^2 - (1 + xi) mu x + xi mu has its roots in the unit circle, and carries
    # an error 1 / (1 - xi) times as far at most.
    assert 0.005 * problem.smoothness(min(start.min() * 11, problem.edges.degrees(long).min())) < 1
    bound = steps / (1 - momentum) * 25 * np.finfo(float).eps * long.max()
    np.testing.assert_allclose(graphs(loop), long, rtol=0, atol=bound)
    forgetful = [MomentumDescent(0.005, momentum, 5).run(problem, start, start, distances(loop))[0]]
    for _ in range(6):
        forgetful.append(MomentumDescent(0.005, momentum, 5).run(problem, *forgetful[-1:] * 2, distances(loop))[0])
    assert np.abs(forgetful[-1] - long).max() > 1e-3, "rounds that forget the iterate before the last end elsewhere"


def test_fedavg_with_one_plain_step_is_gradient_descent_on_the_pooled_objective():
    """(28): all signals together, because clients count by their rows and g is affine in z / N."""
    method = GraphFedAvg(local_steps=1, momentum=0.0)
    clients = silos()
    pooled = Dataset(np.concatenate([data.x for data in clients]))
    many, one = Loop(method, clients).run(20), Loop(method, [pooled]).run(20)
    assert one.server.consensus.min() > 0  # the projection does nothing: before or after the mean is the same
    np.testing.assert_allclose(many.server.consensus, one.server.consensus, rtol=1e-12)


def test_fedprox_without_its_term_is_fedavg_and_ditto_s_global_graph_too():
    average = Loop(GraphFedAvg(), silos()).run(5).server.consensus
    np.testing.assert_array_equal(Loop(GraphFedProx(mu=0.0), silos()).run(5).server.consensus, average)
    np.testing.assert_array_equal(Loop(GraphDitto(), silos()).run(5).server.consensus, average)
    assert np.abs(Loop(GraphFedProx(mu=5.0), silos()).run(5).server.consensus - average).max() > 1e-3


@pytest.mark.parametrize(("method", "strong"), [(MRMTL(), "pull"), (GraphDitto(), "strength")])
def test_a_stronger_pull_leaves_less_between_the_graphs(method, strong):
    spread = [graphs(Loop(replace(method, **{strong: s}), silos()).run(30)).std(axis=0).sum() for s in (0, 3, 100)]
    assert spread[0] > spread[1] > spread[2]


def test_equal_weights_are_the_first_round_of_automatic_ones():
    left, right = Loop(PPGL(), silos()).run(1), Loop(PPGL(weights="equal"), silos()).run(1)
    np.testing.assert_array_equal(left.server.consensus, right.server.consensus)
    left.run(1), right.run(1)
    assert np.abs(left.server.consensus - right.server.consensus).max() > 1e-6


def test_clients_with_the_same_data_have_the_same_weight_so_that_the_weights_only_scale_nu():
    """Only nu gamma enters: where all have the same gamma, equal weights with nu gamma N do the same."""
    clients = [silos()[0]] * 3
    loop = Loop(PPGL(), clients).run(1)
    for _ in range(3):
        consensus = loop.server.consensus
        state = [(client.memory, client.counted) for client in loop.clients]
        loop.round()
        gammas = {float(sent[WEIGHT]) for sent in loop.sent.values()}
        assert len(gammas) == 1
        scaled = Loop(PPGL(weights="equal", nu=3.0 * gammas.pop() * 3), clients)
        scaled.server = replace(scaled.server, consensus=consensus)
        scaled.clients = [replace(c, memory=m, counted=k) for c, (m, k) in zip(scaled.clients, state, strict=True)]
        scaled.round()
        np.testing.assert_allclose(scaled.server.consensus, loop.server.consensus, rtol=1e-12, atol=1e-14)


# PPGL's own lines


def test_the_weight_is_the_inverse_distance_of_what_was_last_counted():
    loop = Loop(PPGL(), silos()).run(3)
    before = graphs(loop)
    gap = np.linalg.norm(before - loop.server.consensus, axis=1)
    loop.round()
    for i, sent in loop.sent.items():
        assert float(sent[WEIGHT]) == pytest.approx(1 / (gap[i] + 1e-2), rel=1e-13)
        np.testing.assert_allclose(sent[WEIGHTED], sent[WEIGHT] * graphs(loop)[i], rtol=1e-14)
        assert float(loop.algorithm.personal(loop.clients[i])[WEIGHT]) == sent[WEIGHT]


def test_the_consensus_solves_its_subproblem():
    """(22): subgradients of sum rho gamma / 2 ||w_i - w||^2 + lambda ||w||_1 over w >= 0."""
    method = PPGL(sparsity=0.4, nu=2.0)
    loop = Loop(method, silos()).run(4)
    gamma = np.array([float(sent[WEIGHT]) for sent in loop.sent.values()])
    found = loop.server.consensus
    slope = method.rho * (gamma[:, None] * (found - graphs(loop))).sum(axis=0) + method.sparsity
    assert (found > 0).any()
    assert (found == 0).any()
    assert np.abs(slope[found > 0]).max() < 1e-12
    assert (slope[found == 0] >= -1e-12).all()


def descent_of(method, rounds=120):
    loop = Loop(method, silos())
    values, degrees, gammas = [], [], []
    for _ in range(rounds):
        loop.round()
        values.append(method.objective(graphs(loop), loop.server.consensus, distances(loop), loop.public))
        degrees.append(Edges(12).degrees(graphs(loop)).min())
        gammas.append(max(float(sent[WEIGHT]) for sent in loop.sent.values()))
    needed = method.problem(loop.public).smoothness(min(degrees)) + method.rho * max(gammas[1:])
    return np.diff(values), method.step_size * needed


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(("sparsity", "nu"), [(0.3, 3.0), (0.05, 20.0), (1.0, 1.0)])
def test_the_objective_falls_in_every_round_without_momentum(steps, sparsity, nu):
    method = PPGL(momentum=0.0, step_size=0.02, beta=0.05, local_steps=steps, sparsity=sparsity, nu=nu)
    falls, condition = descent_of(method)
    assert condition <= 2
    assert (falls <= 1e-10).all()
    assert falls[0] < -1e-3


def test_with_momentum_the_objective_may_rise():
    """The negative half of the guarantee: a step within the same condition, a momentum above the paper's."""
    falls, condition = descent_of(PPGL(momentum=0.97, step_size=0.02, beta=0.05))
    assert condition <= 2
    assert falls.max() > 1e-3


def test_the_objective_is_problem_8_when_the_floor_vanishes():
    loop = Loop(PPGL(distance_floor=1e-12), silos()).run(5)
    method, w, con = loop.algorithm, graphs(loop), loop.server.consensus
    problem = method.problem(loop.public)
    fit = sum(
        z @ g - np.log(Edges(12).degrees(g) + 1e-3).sum() + 0.02 * g @ g
        for z, g in zip(distances(loop), w, strict=True)
    )
    wanted = fit + 0.9 * np.linalg.norm(w - con, axis=1).sum() + 0.3 * con.sum()
    assert method.objective(w, con, distances(loop), loop.public) == pytest.approx(wanted, rel=1e-9)
    assert problem.objective(w, distances(loop)).sum() == pytest.approx(fit, rel=1e-12)


def test_evaluation_sums_to_the_objective():
    loop = Loop(PPGL(), silos()).run(4)
    method, broadcast = loop.algorithm, loop.algorithm.broadcast(loop.server)
    parts = [method.evaluate(client, broadcast) for client in loop.clients]
    total = sum(float(part["objective"]) + method.rho * float(part["penalty"]) for part in parts)
    con = loop.server.consensus
    wanted = method.objective(graphs(loop), con, distances(loop), loop.public)
    assert total + method.sparsity * con.sum() == pytest.approx(wanted, rel=1e-12)


# Invariances, batching, states


@every
def test_renaming_the_vertices_renames_the_graphs(method):
    order = np.random.default_rng(3).permutation(12)
    clients = silos()
    plain = Loop(method, clients).run(8)
    renamed = Loop(method, [Dataset(data.x[:, order]) for data in clients]).run(8)

    def back(graph):
        return Edges(12).vector(Edges(12).adjacency(graph)[..., order, :][..., order])

    if method.result:
        np.testing.assert_allclose(graphs(renamed), back(graphs(plain)), atol=1e-11)
    if not isinstance(method, IGL):
        np.testing.assert_allclose(renamed.server.consensus, back(plain.server.consensus), atol=1e-11)


@every
def test_a_cohort_computed_together_is_the_loop(method):
    loop = Loop(method, silos()).run(3)
    loop.round(survivors=(0, 2))  # so that some have counted more than others
    late = method.enroll(silos(seed=5)[0], loop.public, None)
    clients, broadcast = [*loop.clients, late], method.broadcast(loop.server)
    together = method.contribute_together(clients, broadcast, [None] * 5)
    for client, (state, sent) in zip(clients, together, strict=True):
        alone_state, alone = method.contribute(client, broadcast, None)
        assert alone.keys() == sent.keys()
        for name in sent:
            assert sent[name].shape == alone[name].shape
            np.testing.assert_allclose(sent[name], alone[name], rtol=0, atol=1e-10)
        for ours, theirs in zip(state.memory, alone_state.memory, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
            assert ours.base is None  # keeps no other client's rows alive


@every
def test_a_federation_with_a_sampled_cohort_keeps_every_personal_graph(method):
    result = Federation(method, silos(), cohort=2, seed=1, options=RunOptions(keep_transcript=False)).run(
        6, evaluate_every=3
    )
    assert np.isfinite(result.history[-1].metrics["objective"])
    assert set(result.personal) == (set(range(4)) if method.result else set())


@pytest.mark.parametrize("method", PERSONAL, ids=lambda method: type(method).__name__)
def test_a_contribution_that_was_not_counted_is_forgotten(method):
    loop, other = Loop(method, silos()).run(3), Loop(method, silos()).run(3)
    loop.round(survivors=(0, 1, 3), dropped=(2,))
    other.round(survivors=(0, 1, 3))
    loop.round(), other.round()
    np.testing.assert_array_equal(graphs(loop), graphs(other))
    for name in loop.sent[2]:
        np.testing.assert_array_equal(loop.sent[2][name], other.sent[2][name])


def test_attendance_does_not_change_how_sparse_the_consensus_is():
    """Four clients with the same data, two of them present: the same consensus as with all four."""
    clients = [silos()[0]] * 4
    some, everybody = Loop(PPGL(), clients), Loop(PPGL(), clients)
    some.round(survivors=(1, 3))
    everybody.round()
    np.testing.assert_allclose(some.server.consensus, everybody.server.consensus, rtol=1e-12, atol=1e-15)


@every
def test_states_survive_packing(method):
    loop = Loop(method, silos()).run(2)
    fresh = Loop(method, silos())
    for client, template in zip(loop.clients, fresh.clients, strict=True):
        restored = restore(template, pack(client))
        assert restored.counted == client.counted == 2
        for ours, theirs in zip(restored.memory, client.memory, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(restore(fresh.server, pack(loop.server)).consensus, loop.server.consensus)


@every
def test_contributions_stay_within_their_bounds(method):
    loop = Loop(method, silos())
    for _ in range(20):
        loop.round()
        for spec in method.layout(loop.public):
            assert all(np.abs(sent[spec.name]).max() <= spec.bound for sent in loop.sent.values())
    public, clients = loop.public, loop.clients
    for spec in method.evaluation_layout(public):
        values = [method.evaluate(client, method.broadcast(loop.server))[spec.name] for client in clients]
        assert np.abs(values).max() <= spec.bound
