"""Distances from graphs: exact in the clear, member by member from PPGL's sums, and honest about the rest."""

from dataclasses import replace
from itertools import islice, permutations

import numpy as np
import pytest

from securefed import Dataset, Federation, RunOptions
from securefed.algorithms import DSGD, IGL, MRMTL, PPGL, GraphDitto, GraphFedAvg, GraphFedProx
from securefed.algorithms._graph.edges import Edges
from securefed.attacks import DistanceFit, Target, views
from securefed.attacks._distances import centred_gram, embedding
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._distances.starting_points import starting_points
from securefed.attacks._engine.fit import Fit, Messages
from securefed.attacks.scores import relative_error
from securefed.errors import TranscriptError

VERTICES = 7
EDGES = Edges(VERTICES)


def scene(method, seed=0, clients=2, rounds=6, schedule=None):
    """(federation, clients, target) on correlated signals."""
    rng = np.random.default_rng(seed)
    data = [
        Dataset(rng.normal(size=(30 + 5 * k, VERTICES)) @ rng.normal(0, 0.4, (VERTICES, VERTICES)), None)
        for k in range(clients)
    ]
    federation = Federation(method, data, seed=seed, options=RunOptions(schedule=schedule))
    federation.run(rounds)
    return federation, data, Target(method, federation.public)


def distances(data):
    return EDGES.distances(data.x) / data.rows


SENT = {
    "ppgl-1": PPGL(local_steps=1),
    "ppgl-5": PPGL(),
    "fedavg": GraphFedAvg(),
    "fedprox": GraphFedProx(),
    "mrmtl": MRMTL(),
    "ditto": GraphDitto(),
}


@pytest.mark.parametrize("name", SENT)
def test_one_client_in_the_clear_is_opened_exactly_by_one_or_two_rounds(name: str) -> None:
    for seed in range(3):
        federation, data, target = scene(SENT[name], seed, rounds=2)
        found = DistanceFit().run(views.server(federation.transcript, 1), target, np.random.default_rng(0))
        assert found.rank == found.unknowns == EDGES.count and found.residual < 1e-12
        assert relative_error(found.value, EDGES.adjacency(distances(data[1]))) < 1e-12


def test_ppgls_sums_tell_two_clients_apart_and_their_residual_says_so() -> None:
    exact = 0
    for seed in range(4):
        federation, data, target = scene(PPGL(local_steps=1), seed)
        found = DistanceFit().run(views.sum_only(federation.transcript, None), target, np.random.default_rng(0))
        blocks = found.value.reshape(2, VERTICES, VERTICES)
        truth = EDGES.adjacency(np.stack([distances(one) for one in data]))
        error = min(relative_error(blocks, truth), relative_error(blocks[::-1], truth))
        assert (error < 1e-9) == (found.residual < 1e-11)
        exact += error < 1e-9
    assert exact >= 3


@pytest.mark.exhaustive
def test_sums_of_three_clients_fall_with_more_rounds() -> None:
    members, exact = 3, 0
    for seed in range(4):
        federation, data, target = scene(PPGL(local_steps=1), seed, clients=members, rounds=14)
        found = DistanceFit(starts=6).run(
            views.sum_only(federation.transcript, None), target, np.random.default_rng(seed)
        )
        blocks = found.value.reshape(members, VERTICES, VERTICES)
        truth = EDGES.adjacency(np.stack([distances(one) for one in data]))
        error = min(relative_error(blocks[list(order)], truth) for order in permutations(range(members)))
        assert found.rank == found.unknowns == members * EDGES.count
        assert (error < 1e-8) == (found.residual < 1e-11)
        exact += error < 1e-8
    assert exact >= 3


def test_the_first_round_alone_gives_the_pooled_distances_and_half_the_rank() -> None:
    federation, data, target = scene(PPGL(local_steps=1), rounds=1)
    found = DistanceFit().run(views.sum_only(federation.transcript, None), target, np.random.default_rng(0))
    assert found.rank == EDGES.count and found.unknowns == 2 * EDGES.count
    mean = found.value.reshape(2, VERTICES, VERTICES).mean(axis=0)
    assert relative_error(mean, EDGES.adjacency(np.mean([distances(one) for one in data], axis=0))) < 1e-9


def test_igl_sends_one_number_a_round_and_the_rank_says_so() -> None:
    federation, _, target = scene(IGL())
    found = DistanceFit().run(views.server(federation.transcript, 0), target, np.random.default_rng(0))
    assert found.rank == 6 and np.isfinite(found.value).all()


@pytest.mark.parametrize("method", [PPGL(), MRMTL(), IGL(), GraphFedAvg()], ids=lambda m: type(m).__name__)
def test_the_simulation_of_the_true_distances_sends_what_was_sent_and_its_slope_is_the_derivative(method) -> None:
    federation, data, target = scene(method, clients=3, schedule=lambda k: [0, 1, 2] if k % 2 else [0, 2])
    system = GraphSimulation.of(views.sum_only(federation.transcript, None), target)
    truth = np.stack([distances(one) for one in data])
    equations = Messages([system], system.observed, system.unit)
    assert np.linalg.norm(equations.residual(truth.ravel())) < 1e-11
    rng = np.random.default_rng(0)
    point, along = 1.1 * truth.ravel(), rng.normal(size=truth.size)
    residual, jacobian = equations.linearised(point)
    assert np.linalg.norm(residual) > 1e-3
    ahead, behind = (equations.residual(point + s * along) for s in (1e-5, -1e-5))
    np.testing.assert_allclose(jacobian @ along, (ahead - behind) / 2e-5, rtol=1e-4, atol=1e-5)


def test_distances_are_the_data_up_to_a_rotation() -> None:
    x = np.random.default_rng(0).normal(size=(4, VERTICES))
    centred = x - x.mean(axis=1, keepdims=True)
    whole = EDGES.adjacency(EDGES.distances(x))
    np.testing.assert_allclose(centred_gram(whole), centred.T @ centred, atol=1e-12)
    found = embedding(whole, 4)
    left, _, right = np.linalg.svd(centred @ found.T)
    np.testing.assert_allclose(left @ right @ found, centred, atol=1e-10)
    assert not np.allclose(found, centred)


def test_wrong_hyper_parameters_show_in_the_residual() -> None:
    federation, _, target = scene(PPGL())
    observed = views.server(federation.transcript, 1)
    assert DistanceFit().run(observed, target, np.random.default_rng(0)).residual < 1e-12
    for wrong in (PPGL(local_steps=4), PPGL(momentum=0.8), PPGL(alpha=1.1)):
        found = DistanceFit().run(observed, Target(wrong, target.public), np.random.default_rng(0))
        assert found.residual > 1e-6


def test_views_and_sizes_that_do_not_fit_are_refused_in_words() -> None:
    federation, _, target = scene(PPGL())
    observed = views.server(federation.transcript, 1)
    assert "learns none" in DistanceFit().applies(Target(DSGD(), target.public), observed)
    assert "no messages" in DistanceFit().applies(target, views.output_only(federation.transcript, 1))
    with pytest.raises(TranscriptError, match="the limit is"):
        DistanceFit(memory=10_000).run(observed, target, np.random.default_rng(0))
    lacking = replace(
        observed, rounds=tuple(replace(o, message={"weight": o.message["weight"]}) for o in observed.rounds)
    )
    with pytest.raises(TranscriptError, match="lacks tensor"):
        DistanceFit().run(lacking, target, np.random.default_rng(0))
    edges = target.public.features * (target.public.features - 1) // 2
    pooled = views.sum_only(federation.transcript, None)
    with pytest.raises(TranscriptError, match=f"{2 * edges} unknowns.*the limit is {edges}: raise `limit`"):
        DistanceFit(limit=edges).run(pooled, target, np.random.default_rng(0))
    assert DistanceFit(limit=2 * edges).applies(target, pooled) is None


def test_a_start_that_ends_in_no_number_does_not_replace_a_finite_fit() -> None:
    """Whether it comes first or last: the messages of its point are no numbers, as where a simulation overflows."""
    federation, _, target = scene(PPGL(local_steps=1), rounds=2)
    system = GraphSimulation.of(views.sum_only(federation.transcript, None), target)
    lost, found = np.full(2 * EDGES.count, np.nan), np.ones(2 * EDGES.count)

    class TwoEnds(DistanceFit):
        def _fit_rounds(self, system, point):
            return Fit([ends.pop(0)], 1e9, 0, 1, 1.0, 1, 1, np.zeros((0, 0)))  # a norm that ends the start

    for order in ((lost, found), (found, lost)):
        ends = list(order)
        best = TwoEnds(starts=2)._search(system, np.random.default_rng(0))
        assert np.isfinite(best.residual) and np.array_equal(best.points[0], found) and not ends


def test_starts_are_ever_new_ones_for_one_client_and_for_several() -> None:
    """Differences between the members of one client are none: a second start was not a number."""
    federation, _, target = scene(PPGL(local_steps=1), rounds=2)
    one = GraphSimulation.of(views.server(federation.transcript, 1), target)
    both = GraphSimulation.of(views.sum_only(federation.transcript, None), target)
    for system in (one, both):
        starts = list(islice(starting_points(system, np.random.default_rng(0)), 3))
        assert len(starts) == 3 and np.isfinite(starts).all() and np.ptp(starts, axis=0).min() > 0
