"""Gradient methods that coincide: with one client, one step, full batches, or a parameter at its limit."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Layout
from securefed.algorithms import (
    DSGD,
    CompositeFedADMM,
    FedAvg,
    FedCM,
    FedProx,
    FedSaga,
    LoSAC,
    LoSACProx,
    MimeSVRG,
    Scaffold,
    ScaffoldProx,
)
from securefed.problems import LogisticRegression, SoftmaxRegression
from tests.algorithms.gradients import PROBLEM, Loop, make_clients


@pytest.mark.parametrize("problem", [PROBLEM, SoftmaxRegression(bias=False), LogisticRegression(l2=0.2)])
def test_one_full_batch_client_is_gradient_descent_for_every_method(problem) -> None:
    data = make_clients(1, classes=2)
    rate, rows = 0.3, data[0].rows
    stepping = [FedAvg, FedProx, FedCM, Scaffold, ScaffoldProx, MimeSVRG]
    summing = [LoSAC, LoSACProx, FedSaga]  # losses are sums over the rows: the step is eta n_i
    runs = [
        Loop(DSGD(problem=problem, learning_rate=rate), data),
        *(
            Loop(method(problem=problem, learning_rate=rate, local_steps=1, **plain(method)), data)
            for method in stepping
        ),
        *(Loop(method(problem=problem, learning_rate=rate / rows, local_steps=1), data) for method in summing),
    ]
    layout = Layout.of(problem.initial(runs[0].public, np.random.default_rng(0)))
    x = np.zeros(layout.size)
    for _ in range(7):
        x = x - rate * layout.flatten(problem.gradient(layout.unflatten(x), data[0].x, data[0].y))
    # SCAFFOLD and LoSAC with N = 1: c = c_i, phi = y, so the control terms cancel from the first round on.
    for loop in runs:
        exchanges = 14 if isinstance(loop.method, MimeSVRG) else 7
        np.testing.assert_allclose(loop.run(exchanges).x, x, atol=1e-13, err_msg=type(loop.method).__name__)


def plain(method):
    """The setting in which a method has no momentum."""
    return {"alpha": 1.0} if method is FedCM else {}


def test_one_step_fedavg_is_dsgd_for_clients_of_unequal_size() -> None:
    data = make_clients(5)
    one = Loop(FedAvg(problem=PROBLEM, learning_rate=0.2, local_steps=1), data).run(6)
    np.testing.assert_allclose(one.x, Loop(DSGD(problem=PROBLEM, learning_rate=0.2), data).run(6).x, atol=1e-14)
    uniform = Loop(FedAvg(problem=PROBLEM, learning_rate=0.2, local_steps=1, weighting="uniform"), data).run(6)
    assert np.abs(uniform.x - one.x).max() > 1e-4, "weights matter for clients of unequal size"


def test_dsgd_is_gradient_descent_on_the_pooled_rows() -> None:
    data = make_clients(4)
    pooled = [Dataset(np.vstack([d.x for d in data]), np.concatenate([d.y for d in data]))]
    split, one = (Loop(DSGD(problem=PROBLEM), rows).run(9) for rows in (data, pooled))
    np.testing.assert_allclose(split.x, one.x, atol=1e-14)


def test_fedprox_without_a_pull_is_fedavg_and_with_one_stays_closer() -> None:
    data = make_clients(4)
    average = Loop(FedAvg(problem=PROBLEM, local_steps=4, batch_size=3), data, cohort=3).run(5)
    none, strong = (
        Loop(FedProx(problem=PROBLEM, local_steps=4, batch_size=3, mu=mu), data, cohort=3).run(5) for mu in (0.0, 5.0)
    )
    np.testing.assert_array_equal(none.x, average.x)
    assert np.linalg.norm(strong.x) < 0.95 * np.linalg.norm(average.x)


def test_fedcm_of_the_clients_own_gradients_is_fedavg_with_its_server_step() -> None:
    data = make_clients(4)
    settings = {"problem": PROBLEM, "local_steps": 3, "learning_rate": 0.1}
    average = Loop(FedAvg(weighting="uniform", **settings), data, cohort=3).run(6)
    same = Loop(FedCM(alpha=1.0, **settings), data, cohort=3).run(6)
    np.testing.assert_allclose(same.x, average.x, atol=1e-14)
    given = Loop(FedCM(alpha=1.0, server_rate=0.3, **settings), data, cohort=3).run(6)
    np.testing.assert_allclose(given.x, average.x, atol=1e-14)
    other = Loop(FedCM(alpha=0.5, **settings), data, cohort=3).run(6)
    assert np.abs(other.x - average.x).max() > 1e-3


def test_mimesvrg_with_one_full_batch_step_is_gradient_descent_on_the_mean_of_the_clients() -> None:
    data = make_clients(4)
    once = Loop(MimeSVRG(problem=PROBLEM, local_steps=1, learning_rate=0.2), data).run(12)
    descent = Loop(FedAvg(problem=PROBLEM, local_steps=1, learning_rate=0.2, weighting="uniform"), data).run(6)
    np.testing.assert_allclose(once.x, descent.x, atol=1e-14)


def test_fedsaga_with_one_block_is_fedavg_on_sums() -> None:
    data = [rows.take(np.arange(6)) for rows in make_clients(4)]
    saga = Loop(FedSaga(problem=PROBLEM, local_steps=3, learning_rate=0.02), data, cohort=3).run(5)
    average = Loop(FedAvg(problem=PROBLEM, local_steps=3, learning_rate=0.12), data, cohort=3).run(5)
    np.testing.assert_allclose(saga.x, average.x, atol=1e-13)


@pytest.mark.parametrize(("with_prox", "without"), [(LoSACProx, LoSAC), (ScaffoldProx, Scaffold)])
def test_proximal_methods_without_a_regulariser_are_the_smooth_ones(with_prox, without) -> None:
    data = make_clients(4)
    one, two = (
        Loop(method(problem=PROBLEM, learning_rate=0.01, local_steps=3), data, cohort=2).run(6)
        for method in (with_prox, without)
    )
    np.testing.assert_array_equal(one.x, two.x)


def test_fedadmm_with_one_client_is_linearised_admm() -> None:
    """(80), (78) and (82) written out for N = 1 and Psi = 0."""
    data, rate, rho = make_clients(1), 0.03, 2.0
    loop = Loop(CompositeFedADMM(problem=PROBLEM, learning_rate=rate, rho=rho, local_steps=1), data).run(9)
    model = loop.clients[0].model
    z = local = dual = np.zeros(model.layout.size)
    for _ in range(9):
        slope = data[0].rows * model.gradient(local, data[0], slice(None))
        local = (rho * rate * z - rate * dual + local - rate * slope) / (1 + rho * rate)
        dual = dual + rho * (local - z)
        z = local + dual / rho
    np.testing.assert_allclose(loop.x, z, atol=1e-13)


@pytest.mark.parametrize("method", [FedAvg(local_steps=3), FedCM(local_steps=3), Scaffold(local_steps=3), DSGD()])
def test_a_batch_of_all_rows_is_the_full_batch_and_a_smaller_one_is_not(method) -> None:
    data = make_clients(3)
    whole = Loop(method, data).run(4).x
    np.testing.assert_array_equal(Loop(replace(method, batch_size=100), data).run(4).x, whole)
    assert np.abs(Loop(replace(method, batch_size=2), data).run(4).x - whole).max() > 1e-4
