"""FedPG on z-scored columns: the diagonal that is known beside the messages, and what few digits leave."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset
from securefed.algorithms import FedPG
from securefed.attacks._duals import FedPGDuals
from securefed.attacks._duals.fedpg import gradient_block
from securefed.attacks._duals.observed_steps import observed_steps
from securefed.attacks._duals.unit_diagonal import _images, with_unit_diagonal
from securefed.attacks._gram.coordinates import SymmetricMatrices
from securefed.attacks.scores import relative_error
from tests.attacks.consensus import digits, gram, observe
from tests.combinations import first_ones

RNG = np.random.default_rng(0)
ONE_STEP = FedPG(3, rho=1.0, step_size=0.01, local_steps=1)


def single(view):
    """The view of a run whose messages travel as float32."""
    sent = lambda o: {name: value.astype(np.float32) for name, value in o.message.items()}  # noqa: E731
    return replace(view, rounds=tuple(replace(o, message=sent(o)) for o in view.rounds))


def pooled(clients):
    return sum(map(gram, clients)) * clients[0].rows / sum(data.rows for data in clients)


@pytest.mark.parametrize("seed", range(5))
def test_five_participations_are_enough_once_the_diagonal_is_known(seed):
    clients = digits(20, seed)
    views, target, _ = observe(ONE_STEP, clients, 5, seed)
    got = FedPGDuals().run(views[0], target, RNG)
    assert got.diagnostics["standardised"] and got.rank == got.unknowns == 190
    assert relative_error(got.value, gram(clients[0])) < 1e-6
    raw = [Dataset(data.x * np.linspace(0.7, 1.3, 20)) for data in clients]
    views, target, _ = observe(ONE_STEP, raw, 5, seed)
    got = FedPGDuals().run(views[0], target, RNG)
    assert not got.diagnostics["standardised"]
    assert 0.01 < relative_error(got.value, gram(raw[0])) < 0.3  # 15 directions of 20, and no diagonal


@pytest.mark.parametrize("seed", first_ones(range(5), 2))
def test_single_precision_hides_directions_and_not_the_matrix(seed):
    clients = digits(20, seed)
    views, target, _ = observe(ONE_STEP, clients, 13, seed)
    steps = observed_steps(single(views[0]).rounds, ONE_STEP.rho)
    blocks = [gradient_block(step, ONE_STEP.step_size) for step in steps]
    S = gram(clients[0]) / clients[0].rows
    found = with_unit_diagonal(steps, blocks, ONE_STEP.step_size)
    error = relative_error(found.gram, S)
    assert error < relative_error(pooled(clients) / clients[0].rows, S)
    assert error < 1.5 * oracle(steps, blocks, S)
    assert 1 / 3 < error / found.error < 3
    got = FedPGDuals().run(single(views[0]), target, RNG)
    assert relative_error(got.value / clients[0].rows, S) == pytest.approx(error)
    assert got.diagnostics["hidden error"] == found.error


def oracle(steps, blocks, S):
    """The least error of all truncations, for one who knows S: of its entries beside a unit diagonal."""
    coordinates = SymmetricMatrices.of(len(S))
    matrix = np.vstack([_images(step.start, coordinates) for step in steps])
    right = np.concatenate([block.reshape(-1) for block in blocks])
    diagonal = coordinates.i == coordinates.j
    U, s, Vt = np.linalg.svd(matrix[:, ~diagonal], full_matrices=False)
    seen = U.T @ (right - matrix[:, diagonal].sum(axis=1)) / s
    truth = coordinates.coordinates(S)[~diagonal]
    errors = [np.linalg.norm(Vt[:count].T @ seen[:count] - truth) for count in range(1, len(s) + 1)]
    return min(errors) / np.linalg.norm(S)


@pytest.mark.parametrize("seed", first_ones(range(3)))
def test_a_diagonal_that_spreads_is_not_taken_for_a_constant(seed):
    """In float32 too, and by as little as a column scaled by a tenth."""
    for scale in (np.linspace(0.8, 1.2, 20), np.where(np.arange(20) == 3, 1.3, 1.0)):
        clients = [Dataset(data.x * scale) for data in digits(20, seed)]
        views, target, _ = observe(ONE_STEP, clients, 13, seed)
        for view in (views[0], single(views[0])):
            got = FedPGDuals().run(view, target, RNG)
            assert not got.diagnostics["standardised"]


def test_columns_that_are_constant_at_a_client_are_no_unit_diagonal():
    clients = [Dataset(np.where(np.arange(20) < 4, 0.0, data.x)) for data in digits(20, 0)]
    views, target, _ = observe(ONE_STEP, clients, 13)
    got = FedPGDuals().run(views[0], target, RNG)
    assert not got.diagnostics["standardised"]
    assert relative_error(got.value, gram(clients[0])) < 1e-5


def per_row(algorithm, rows):
    """The same steps on the Gram matrix of all rows: S n, with rho n, Y n and eta / n."""
    scaled = {"rho": algorithm.rho * rows, "step_size": algorithm.step_size / rows}
    return replace(algorithm, normalise=False, **scaled)


@pytest.mark.parametrize(("local_steps", "rounds"), [(1, 5), (1, 13), (3, 20)])
def test_the_diagonal_of_z_scored_columns_is_the_number_of_rows_where_the_algorithm_does_not_divide(
    local_steps, rounds
):
    clients = digits(12, 0)
    algorithm = per_row(replace(ONE_STEP, local_steps=local_steps), clients[0].rows)
    views, target, _ = observe(algorithm, clients, rounds)
    for client in (0, 2):  # of 360 and of 359 rows
        got = FedPGDuals().run(views[client], target, RNG)
        assert got.diagnostics["standardised"]
        np.testing.assert_allclose(np.diag(got.value), clients[client].rows, rtol=1e-6)
        assert relative_error(got.value, gram(clients[client])) < 1e-6


def test_raw_columns_are_not_taken_for_z_scored_ones_where_the_algorithm_does_not_divide():
    clients = [Dataset(data.x * np.linspace(0.8, 1.2, 20)) for data in digits(20, 0)]
    views, target, _ = observe(per_row(ONE_STEP, clients[0].rows), clients, 13)
    assert not FedPGDuals().run(views[0], target, RNG).diagnostics["standardised"]
