"""One client's distances from its own graphs, beyond what a dense Jacobian affords."""

import numpy as np
import pytest

from securefed.algorithms.graph import MRMTL, PPGL, FedAvg
from securefed.algorithms.graph.edges import Edges
from securefed.attacks import views
from securefed.attacks.base import Target
from securefed.attacks.distances import Fit, centred_gram
from securefed.attacks.distances.chain import Chain
from securefed.attacks.distances.completion import complete
from securefed.attacks.distances.momenta import switched
from securefed.attacks.distances.newton import newton
from securefed.attacks.scores import relative_error
from securefed.datasets.base import Dataset
from securefed.federation import Federation


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


@pytest.mark.parametrize("method", [PPGL(), PPGL(local_steps=1), MRMTL(), FedAvg()], ids=lambda m: type(m).__name__)
def test_the_descent_at_the_truth_is_what_was_seen_and_one_step_near_it_is_quadratic(method) -> None:
    observed, target, edges, truth = scene(method, weight=0.4)
    chain = Chain.of(observed, target).first(3, method.zeta)
    assert chain.run(truth).norm < 1e-12
    near = truth * (1 + 1e-6 * np.random.default_rng(0).normal(size=truth.shape))
    course = chain.run(near)
    assert course.norm > 1e-9
    step = newton(chain, course, (0.0,))
    assert step.rank == edges.count - len(step.hidden) + step.told.shape[1]
    after = near + step.changes[0]
    assert chain.run(after).norm < 1e-4 * course.norm
    seen = np.setdiff1d(np.arange(edges.count), chain.unseen)
    assert np.abs(after - truth)[seen].max() < 1e-4 * np.abs(near - truth)[seen].max()


def test_the_completion_has_no_partial_correlation_where_nothing_was_told() -> None:
    edges, rng = Edges(9), np.random.default_rng(1)
    truth = edges.distances(rng.normal(size=(30, 9)) @ rng.normal(size=(9, 9))) / 30
    free = np.array([3, 10, 25])
    start = truth.copy()
    start[free] *= 1.3
    found = complete(edges, start, free, np.zeros((3, 0)))
    told = np.setdiff1d(np.arange(edges.count), free)
    np.testing.assert_array_equal(found[told], truth[told])
    inverse = np.linalg.pinv(centred_gram(edges.adjacency(found)))
    heads, tails = edges.ends
    assert np.abs(inverse[heads, tails][free]).max() < 1e-2 * np.abs(inverse[heads, tails][told]).max()
    start[free] = truth[free]
    held = np.linalg.qr(rng.normal(size=(3, 2)))[0]
    moved = complete(edges, start, free, held)[free] - truth[free]
    assert np.linalg.norm(moved) > 1e-3 and np.abs(held.T @ moved).max() < 1e-9


def test_what_is_seen_is_exact_and_what_is_bounded_is_completed() -> None:
    for seed in range(3):
        observed, target, edges, truth = scene(PPGL(), seed=seed)
        unseen = Chain.of(observed, target).unseen
        found = Fit().run(observed, target, np.random.default_rng(0))
        value = edges.vector(found.value)
        assert len(unseen) > 10 and found.diagnostics["bounded only"] == len(unseen)
        assert edges.count - len(unseen) < found.rank < found.unknowns
        seen = np.setdiff1d(np.arange(edges.count), unseen)
        assert found.residual < 1e-9 and np.abs(value - truth)[seen].max() < 1e-7
        assert relative_error(value[unseen], truth[unseen]) < 0.05


def test_steps_without_momentum_are_read_from_the_graphs() -> None:
    for step_size, switches in ((0.02, True), (0.01, False)):
        method = PPGL(step_size=step_size)
        observed, target, _, truth = scene(method, vertices=40, rounds=3, weight=0.3)
        chain = Chain.of(observed, target)
        told = switched(chain, np.random.default_rng(0)).first(3, method.zeta)
        assert (told.momenta == 0).any() == switches
        assert told.run(truth).norm < 1e-11
        assert (chain.first(3, method.zeta).run(truth).norm > 1e-3) == switches
