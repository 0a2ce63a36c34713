"""SCAFFOLD: its two options, the sign and the mean of its control variates, convergence under drops."""

import numpy as np
import pytest

from securefed import Public
from securefed.algorithms import FedAvg, Scaffold
from tests.algorithms.gradients import PROBLEM, Loop, make_clients, optimum, some_drop
from tests.combinations import first_ones


def test_scaffold_options_agree_for_one_full_batch_step_and_differ_for_two() -> None:
    data = make_clients(4)
    for steps, same in ((1, True), (2, False)):
        one, two = (
            Loop(Scaffold(problem=PROBLEM, local_steps=steps, option=option), data, cohort=2).run(9)
            for option in ("I", "II")
        )
        assert np.allclose(one.x, two.x, atol=1e-13) is same
        assert np.allclose(one.server.vectors["c"], two.server.vectors["c"], atol=1e-13) is same


def test_scaffold_control_variates_are_gradients_not_steps() -> None:
    """The sign: after one round of one full-batch step, c_i is the gradient at x."""
    data = make_clients(3)
    loop = Loop(Scaffold(problem=PROBLEM, local_steps=1), data)
    x = loop.x
    loop.run(1)
    for client, rows in zip(loop.clients, data, strict=True):
        np.testing.assert_allclose(client.memory[0], client.model.gradient(x, rows, slice(None)), atol=1e-14)


def test_option_two_is_the_difference_that_the_source_prints() -> None:
    data = make_clients(3)
    method = Scaffold(problem=PROBLEM, local_steps=4, batch_size=2)
    loop = Loop(method, data).run(3)
    client, x, c = loop.clients[1], loop.x, loop.server.vectors["c"]
    _, sent = method.contribute(client, method.broadcast(loop.server), np.random.default_rng(5))
    moved, changed = (client.model.vector(part, sent) for part in ("dx", "dc"))
    np.testing.assert_allclose(changed, -c - moved / (4 * method.learning_rate), atol=1e-13)
    assert np.abs(x).max() > 0.01


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_c_is_the_mean_of_the_client_variates_after_every_drop(option: str) -> None:
    data = make_clients(5)
    loop = Loop(Scaffold(problem=PROBLEM, option=option), data, cohort=3)
    for number in range(25):
        loop.run(1, some_drop(number, 5))
        np.testing.assert_allclose(loop.server.vectors["c"], loop.memories() / 5, atol=1e-12)
    assert np.abs(loop.memories()).max() > 0.01, "there is something to compare"


@pytest.mark.parametrize("cohort", first_ones([3, 6]))
def test_scaffold_converges_to_the_optimum_under_drops(cohort: int) -> None:
    data = make_clients(6)
    loop = Loop(Scaffold(problem=PROBLEM, learning_rate=0.15, local_steps=4), data, cohort=cohort, together=True)
    best, slope = optimum(PROBLEM, data, [1.0] * 6, PROBLEM.initial(loop.public, loop.rng))
    loop.run(800, some_drop(4, 6))
    assert slope(loop.x) < 1e-9
    np.testing.assert_allclose(loop.x, best, atol=1e-8)


def test_fedavg_with_local_steps_misses_the_optimum_that_scaffold_finds() -> None:
    data = make_clients(4)
    _, slope = optimum(PROBLEM, data, [1.0] * 4, PROBLEM.initial(Public.of(data), np.random.default_rng(0)))
    settings = {"problem": PROBLEM, "learning_rate": 0.15, "local_steps": 10}
    assert slope(Loop(FedAvg(weighting="uniform", **settings), data, together=True).run(200).x) > 1e-4
    assert slope(Loop(Scaffold(**settings), data, together=True).run(500).x) < 1e-9
