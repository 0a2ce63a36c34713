"""Distances under clips and noise: exact as they vanish, a constant where they drown everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from securefed import Dataset, Federation, chain
from securefed.algorithms import IGL, MRMTL, PPGL, GraphFedAvg
from securefed.algorithms._graph.edges import Edges
from securefed.attacks import DistanceFit, Target, views
from securefed.attacks._distances.graph_simulation import GraphSimulation
from securefed.attacks._distances.posterior_mode import posterior_mode, prior
from securefed.attacks._engine.fit import Messages
from securefed.attacks.scores import relative_error
from securefed.defenses import clip, clip_each, gaussian
from securefed.defenses._differential_privacy.clip import clipped
from tests.attacks.steady import SteadyGaussian
from tests.combinations import first_ones

VERTICES = 7
EDGES = Edges(VERTICES)


def scene(method, *parts, seed=0, clients=2, rounds=6):
    """(federation, the clients' distances, target) on correlated signals."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, 0.4, (VERTICES, VERTICES))
    mixed = [shared + rng.normal(0, 0.1, shared.shape) for _ in range(clients)]
    data = [Dataset(rng.normal(size=(30 + 5 * k, VERTICES)) @ own, None) for k, own in enumerate(mixed)]
    federation = Federation(method, data, chain(*parts), seed=seed)
    federation.run(rounds)
    truth = np.stack([EDGES.distances(own.x) / own.rows for own in data])
    return federation, truth, Target(method, federation.public)


def noisy(norm, multiplier, seed=0):
    return clip(norm), SteadyGaussian(gaussian(multiplier), seed)


def undistorted(observed):
    """The same numbers, by an attacker who does not know the defence."""
    return replace(observed, rounds=tuple(replace(item, clips=(), noise={}) for item in observed.rounds))


def found(observed, target, attack=None):
    return (attack or DistanceFit()).run(observed, target, np.random.default_rng(0))


def apart(value, truth):
    """Relative error, in the best order of the clients."""
    blocks, whole = value.reshape(len(truth), VERTICES, VERTICES), EDGES.adjacency(truth)
    return min(relative_error(blocks[list(order)], whole) for order in permutations(range(len(truth))))


def pooled(value, truth):
    mean = value.reshape(len(truth), VERTICES, VERTICES).mean(axis=0)
    return relative_error(mean, EDGES.adjacency(truth.mean(axis=0)))


@pytest.mark.parametrize("defence", [clip(0.5), clip_each(0.4)])
def test_simulated_clips_are_the_defences_and_their_slope_is_the_derivative(defence) -> None:
    federation, truth, target = scene(PPGL(), defence, clients=3)
    system = GraphSimulation.of(views.sum_only(federation.transcript, None), target)
    equations = Messages([system], system.observed, system.unit)
    assert np.linalg.norm(equations.residual(truth.ravel())) < 1e-11
    free = GraphSimulation.of(undistorted(views.sum_only(federation.transcript, None)), target)
    unclipped = Messages([free], free.observed, free.unit).residual(truth.ravel())
    assert np.linalg.norm(unclipped) > 0.1  # the clip did something
    point, along = 1.1 * truth.ravel(), np.random.default_rng(0).normal(size=truth.size)
    _, jacobian = equations.linearised(point)
    ahead, behind = (equations.residual(point + s * along) for s in (1e-5, -1e-5))
    np.testing.assert_allclose(jacobian @ along, (ahead - behind) / 2e-5, rtol=1e-4, atol=1e-5)


def test_a_clip_scales_tensors_together_as_the_message_layer_does() -> None:
    federation, _, target = scene(PPGL(), clip(0.5))
    seen = GraphSimulation.of(views.sum_only(federation.transcript, None), target).rounds[0]
    for size in (1e-3, 1.0, 1e3):
        sent = size * np.random.default_rng(0).normal(size=seen.total.size)
        np.testing.assert_allclose(seen.clipped(sent), clipped({"all": sent}, 0.5)["all"], rtol=1e-14)


@pytest.mark.exhaustive
def test_one_clipped_client_and_clipped_sums_are_opened_exactly_where_unclipped_ones_are() -> None:
    exact = 0
    for seed in range(2):
        for method in (PPGL(local_steps=1), MRMTL(local_steps=1)):
            federation, truth, target = scene(method, clip(0.3), seed=seed, rounds=3)
            own = found(views.server(federation.transcript, 1), target)
            exact += relative_error(own.value, EDGES.adjacency(truth[1])) < 1e-10
        federation, truth, target = scene(PPGL(local_steps=1), clip(0.3), seed=seed)
        both = found(views.sum_only(federation.transcript, None), target)
        exact += apart(both.value, truth) < 1e-8
    assert exact >= 5


def test_the_prior_is_that_of_a_level_of_edges_and_of_clients() -> None:
    """Draws level (1 + .4 g + .3 a_e + .1 b_ie) have independent standard normal entries under the prior's root."""
    federation, truth, target = scene(PPGL(), clients=3)
    believed = prior(GraphSimulation.of(views.sum_only(federation.transcript, None), target))
    (members, edges), level = truth.shape, believed.mean
    slopes = level * np.hstack(
        [np.full((truth.size, 1), 0.4), 0.3 * np.tile(np.eye(edges), (members, 1)), 0.1 * np.eye(truth.size)]
    )
    np.testing.assert_allclose(believed.root @ slopes @ slopes.T @ believed.root.T, np.eye(truth.size), atol=1e-10)


@pytest.mark.parametrize(
    ("method", "some", "most"),
    # much noise drives PPGL out of its domain
    first_ones([(MRMTL(), 0.1, 3.0), (PPGL(), 0.03, 0.2), (GraphFedAvg(), 0.1, 3.0)]),
    ids=["mrmtl", "ppgl", "fedavg"],
)
def test_less_noise_tells_more_and_much_noise_leaves_about_the_guess(method, some, most) -> None:
    errors, guesses, seeds = [], [], range(2)
    for multiplier in (1e-4, some, most):
        shown = [_released(method, multiplier, seed) for seed in seeds]
        errors.append(np.mean([pooled(found(view, target).value, truth) for view, truth, target in shown]))
    naive = np.mean([pooled(found(undistorted(view), target).value, truth) for view, truth, target in shown])
    for view, truth, target in shown:
        level = prior(GraphSimulation.of(view, target)).mean
        guesses.append(pooled(EDGES.adjacency(np.full_like(truth, level)), truth))
    assert errors[0] < errors[1] < errors[2] < 1.3 * np.mean(guesses)
    assert errors[2] < 0.6 * naive


def _released(method, multiplier, seed):
    federation, truth, target = scene(method, *noisy(1.0, multiplier, seed), seed=seed, clients=4, rounds=3)
    return views.released(federation.transcript, None), truth, target


@pytest.mark.exhaustive
def test_little_noise_costs_little() -> None:
    """Whose distances are whose hangs on the noise; a search may end away from the best explanation, yet near it."""
    explained = 0
    for draw in range(3):
        federation, truth, target = scene(PPGL(local_steps=1), clip(1.0), SteadyGaussian(gaussian(1e-6), draw), seed=1)
        both = found(views.released(federation.transcript, None), target)
        assert apart(both.value, truth) < 0.1 and pooled(both.value, truth) < 1e-2
        explained += both.diagnostics["explained"]
    assert explained >= 2


def test_what_a_clip_cuts_off_whole_leaves_the_guess() -> None:
    federation, _, target = scene(IGL(), clip(0.1))
    observed = views.sum_only(federation.transcript, None)
    system = GraphSimulation.of(observed, target)
    distances, _ = posterior_mode(system, np.random.default_rng(0), 10)
    np.testing.assert_allclose(distances, prior(system).mean)
    assert found(observed, target).residual < 1e-6


def test_a_wrong_noise_is_seen_in_the_misfit() -> None:
    federation, _, target = scene(PPGL(), *noisy(1.0, 0.3), clients=4)
    observed = views.released(federation.transcript, None)
    told = [
        found(replace(observed, rounds=tuple(_louder(item, factor) for item in observed.rounds)), target).diagnostics
        for factor in (1.0, 0.3)
    ]
    assert told[0]["explained"] and not told[1]["explained"]


def _louder(item, factor):
    return replace(item, noise={name: factor * deviation for name, deviation in item.noise.items()})
