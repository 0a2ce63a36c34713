"""FedProx, FedCM, MimeSVRG, FedSaga, FedADMM: update lines, invariants under drops, where they converge."""

from dataclasses import replace

import numpy as np
import pytest

from securefed.algorithms import CompositeFedADMM, FedAvg, FedCM, FedProx, FedSaga, MimeSVRG
from securefed.errors import DivergenceError
from tests.algorithms.gradients import PROBLEM, Loop, make_clients, optimum, some_drop
from tests.combinations import first_ones


def uniform(data):
    return [1.0] * len(data)


def gap(loop, data, weights):
    """Largest distance from the minimiser of sum_i weights[i] * (mean loss of client i)."""
    best, _ = optimum(PROBLEM, data, weights, PROBLEM.initial(loop.public, loop.rng))
    return float(np.abs(loop.x - best).max())


# ------------------------------------------------------------------------------------------------- update lines


def test_fedprox_local_steps_descend_equation_2() -> None:
    """Many local steps end where the gradient of f_i(y) + mu/2 ||y - x||^2 vanishes."""
    data, mu = make_clients(2), 0.7
    method = FedProx(problem=PROBLEM, learning_rate=0.5, local_steps=400, mu=mu, weighting="uniform")
    loop = Loop(method, data).run(1)
    client, x = loop.clients[0], loop.x
    _, sent = method.contribute(client, method.broadcast(loop.server), loop.rng)
    moved = client.model.vector("delta", sent)
    np.testing.assert_allclose(client.model.gradient(x + moved, data[0], slice(None)) + mu * moved, 0, atol=1e-12)
    assert np.abs(moved).max() > 0.01


def test_fedcm_momentum_is_the_mean_direction_of_the_survivors() -> None:
    data = make_clients(5)
    method = FedCM(problem=PROBLEM, learning_rate=0.2, local_steps=3, alpha=0.4)
    loop = Loop(method, data).run(2)
    x, momentum = loop.x, loop.server.vectors["momentum"]
    directions = []
    for k in (0, 2, 3):
        point, taken = x, []
        for _ in range(3):
            own = loop.clients[k].model.gradient(point, data[k], slice(None))
            taken.append(0.4 * own + 0.6 * momentum)
            point = point - 0.2 * taken[-1]
        directions.append(np.mean(taken, axis=0))
    loop.round([0, 2, 3], lost=[1, 4])
    np.testing.assert_allclose(loop.server.vectors["momentum"], np.mean(directions, axis=0), atol=1e-13)
    np.testing.assert_allclose(loop.x, x - 0.2 * 3 * np.mean(directions, axis=0), atol=1e-13)


def test_mimesvrg_alternates_between_a_gradient_and_steps_around_it_whoever_is_lost() -> None:
    data = make_clients(5)
    method = MimeSVRG(problem=PROBLEM, learning_rate=0.3, local_steps=4)
    loop, drop = Loop(method, data), some_drop(7, 5)
    shapes = {name: value.shape for name, value in method.broadcast(loop.server).items()}
    for number in range(10):
        x, c = loop.x, loop.server.vectors["c"]
        survivors = sorted(set(range(5)) - set(drop(number))) or [0]
        gradients = [loop.clients[k].model.gradient(x, data[k], slice(None)) for k in survivors]
        loop.round(survivors, [k for k in range(5) if k not in survivors])
        if number % 2 == 0:
            np.testing.assert_array_equal(loop.x, x)
            np.testing.assert_allclose(loop.server.vectors["c"], np.mean(gradients, axis=0), atol=1e-14)
        else:
            ends = []
            for k, anchor in zip(survivors, gradients, strict=True):
                y = x
                for _ in range(4):
                    y = y - 0.3 * (loop.clients[k].model.gradient(y, data[k], slice(None)) - anchor + c)
                ends.append(y)
            np.testing.assert_array_equal(loop.server.vectors["c"], c)
            np.testing.assert_allclose(loop.x, np.mean(ends, axis=0), atol=1e-13)
        assert {name: value.shape for name, value in method.broadcast(loop.server).items()} == shapes


def test_fedsaga_local_steps_are_equation_9() -> None:
    data = make_clients(3, rows=7)
    method = FedSaga(problem=PROBLEM, learning_rate=0.01, local_steps=6, blocks=3)
    loop = Loop(method, data).run(3)
    client, x, rows = loop.clients[1], loop.x, data[1].rows
    _, sent = method.contribute(client, method.broadcast(loop.server), np.random.default_rng(5))
    drawn = np.random.default_rng(5).integers(3, size=6)
    parts = np.array_split(np.arange(rows), 3)
    point, y = x, list(client.memory)
    for j in drawn:
        g = len(parts[j]) * client.model.gradient(point, data[1], parts[j])
        point, y[j] = point - 0.01 * (rows / len(parts[j]) * (g - y[j]) + np.sum(y, axis=0)), g
    np.testing.assert_allclose(client.model.vector("dx", sent), point - x, atol=1e-14)


def test_fedsaga_averages_over_the_survivors_or_as_printed_over_all_clients() -> None:
    data = make_clients(4)
    moves = []
    for average in ("participants", "clients"):
        loop = Loop(FedSaga(problem=PROBLEM, learning_rate=0.01, average=average), data)
        start = loop.x
        loop.round([0, 2], lost=[1])
        moves.append(loop.x - start)
    np.testing.assert_allclose(moves[0], 2 * moves[1], atol=1e-15)


# --------------------------------------------------------------------------------------- invariants under drops


@pytest.mark.parametrize("cohort", [2, 5])
def test_fedadmm_sum_is_that_of_the_clients_heard_after_every_drop(cohort: int) -> None:
    data = make_clients(5)
    rho = 2.0
    loop = Loop(CompositeFedADMM(problem=PROBLEM, learning_rate=0.05, rho=rho, local_steps=1), data, cohort=cohort)
    for number in range(25):
        loop.run(1, some_drop(number, 5))
        heard = [client for client in loop.clients if client.memory[2][0]]
        assert np.flatnonzero(loop.server.vectors["heard"]).tolist() == [
            k for k, client in enumerate(loop.clients) if client.memory[2][0]
        ]
        expected = np.sum([dual + rho * point for point, dual, _ in (client.memory for client in heard)], axis=0)
        if heard:
            np.testing.assert_allclose(loop.server.vectors["sum"], expected, atol=1e-12)
            np.testing.assert_allclose(loop.x, expected / (rho * len(heard)), atol=1e-12)
    assert np.abs(expected).max() > 0.1


def test_fedadmm_iterated_server_steps_approach_the_closed_form() -> None:
    data = make_clients(3)
    settings = {"problem": PROBLEM, "learning_rate": 0.05}
    closed = Loop(CompositeFedADMM(**settings), data).run(4).x
    near, far = (Loop(CompositeFedADMM(server_steps=m, server_rate=0.1, **settings), data).run(4).x for m in (100, 2))
    np.testing.assert_allclose(near, closed, atol=1e-12)
    assert np.abs(far - closed).max() > 1e-3


# --------------------------------------------------------------------------------------------------- convergence


def test_fedsaga_of_one_client_is_saga_and_finds_the_optimum_which_several_clients_miss() -> None:
    data = make_clients(3, rows=6)
    settings = {"problem": PROBLEM, "learning_rate": 0.01, "local_steps": 20, "blocks": 3}
    assert gap(Loop(FedSaga(**settings), data[:1]).run(250), data[:1], [1.0]) < 1e-8
    assert (
        gap(Loop(FedSaga(**settings), data, together=True).run(250), data, [float(rows.rows) for rows in data]) > 1e-3
    )


def test_fedsaga_rests_at_its_fixed_point() -> None:
    """Stored gradients and model at the optimum: no block moves it."""
    data = make_clients(1, rows=7)
    method = FedSaga(problem=PROBLEM, learning_rate=0.02, local_steps=20, blocks=3)
    loop = Loop(method, data)
    best, _ = optimum(PROBLEM, data, [1.0], PROBLEM.initial(loop.public, loop.rng))
    client, parts = loop.clients[0], np.array_split(np.arange(data[0].rows), 3)
    stored = tuple(len(part) * client.model.gradient(best, data[0], part) for part in parts)
    server = replace(loop.server, vectors={"x": best})
    moves = [
        np.abs(client.model.vector("dx", method.contribute(state, method.broadcast(server), loop.rng)[1])).max()
        for state in (replace(client, memory=stored), client)
    ]
    assert moves[0] < 1e-7
    assert moves[1] > 1e-3, "with gradients stored elsewhere it moves"


def test_mimesvrg_finds_the_optimum_with_local_mini_batches() -> None:
    """The control term vanishes at the optimum whatever the batch, so no noise is left."""
    data = make_clients(4)
    method = MimeSVRG(problem=PROBLEM, learning_rate=0.15, local_steps=4, batch_size=3)
    assert gap(Loop(method, data, together=True).run(500), data, uniform(data)) < 1e-8
    noisy = Loop(FedAvg(problem=PROBLEM, learning_rate=0.15, local_steps=4, batch_size=3), data, together=True).run(250)
    assert gap(noisy, data, uniform(data)) > 1e-3


def test_fedcm_with_one_local_step_finds_the_optimum_and_with_many_a_point_near_it() -> None:
    data = make_clients(4)
    one = Loop(FedCM(problem=PROBLEM, learning_rate=0.3, local_steps=1, alpha=0.5), data, together=True).run(700)
    assert gap(one, data, uniform(data)) < 1e-8
    many = Loop(FedCM(problem=PROBLEM, learning_rate=0.15, local_steps=10, alpha=0.5), data, together=True).run(300)
    assert 1e-4 < gap(many, data, uniform(data)) < 0.5


@pytest.mark.exhaustive
def test_fedprox_with_one_local_step_is_descent_and_a_stronger_pull_lessens_the_bias() -> None:
    data = make_clients(4)
    settings = {"problem": PROBLEM, "learning_rate": 0.15, "weighting": "uniform"}
    one = Loop(FedProx(mu=1.0, local_steps=1, **settings), data, together=True).run(500)
    assert gap(one, data, uniform(data)) < 1e-3
    weak, strong = (
        gap(Loop(FedProx(mu=mu, local_steps=20, **settings), data, together=True).run(400), data, uniform(data))
        for mu in (0.0, 3.0)
    )
    assert strong < 0.5 * weak


@pytest.mark.parametrize("cohort", first_ones([3, 5]))
def test_fedadmm_finds_the_optimum_under_drops(cohort: int) -> None:
    data = make_clients(5)
    method = CompositeFedADMM(problem=PROBLEM, learning_rate=0.05, local_steps=5, dual_steps="last")
    loop = Loop(method, data, cohort=cohort, together=True).run(300, some_drop(2, 5))
    assert gap(loop, data, [float(rows.rows) for rows in data]) < 1e-8


def test_fedadmm_as_printed_with_many_dual_steps_diverges_and_says_so() -> None:
    loop = Loop(CompositeFedADMM(problem=PROBLEM, learning_rate=0.05, local_steps=5), make_clients(5))
    with pytest.raises(DivergenceError, match=r"round \d+: '(x|sum)' reached .* lower learning_rate"):
        loop.run(100)
