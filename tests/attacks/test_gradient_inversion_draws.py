"""Random mini-batches and blocks: found together with the rows, or reported as not searched for."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed import Dataset, Federation, Public
from securefed.algorithms import DSGD, FedAvg, FedSaga, LoSAC, Scaffold
from securefed.attacks import SampleFit, Target, views
from securefed.attacks._gradient_inversion import batch_search
from securefed.attacks._gradient_inversion.batch_search import BatchSearch, PossibleDraws, best_draws, number_of_draws
from securefed.attacks._gradient_inversion.multistart_search import fit_rows
from securefed.attacks._gradient_inversion.row_fit_problem import problem_from_view
from securefed.attacks.scores import sample_error
from tests.combinations import first_ones

DIGITS = load_digits()
METHODS = {
    "dsgd": (DSGD(batch_size=2), 4),
    "fedavg": (FedAvg(batch_size=2, local_steps=3), 3),
    "scaffold": (Scaffold(batch_size=2, local_steps=2), 3),
    "losac": (LoSAC(learning_rate=0.02, local_steps=3, blocks=2), 3),
    "fedsaga": (FedSaga(learning_rate=0.02, local_steps=3, blocks=2), 3),
}


def scene(method, rows, seed=1, rounds=20):
    """(client 1's rows, its view, target) of three clients."""
    order = np.random.default_rng(seed).permutation(len(DIGITS.data))[: 3 * rows]
    clients = [Dataset(DIGITS.data[part] / 16, DIGITS.target[part]) for part in np.split(order, 3)]
    federation = Federation(method, clients, seed=seed, public=Public(3, 3, 64, (rows,) * 3, 10, 1.0))
    federation.run(rounds)
    return clients[1], federation.transcript, Target(method, federation.public)


@pytest.mark.parametrize("name", METHODS)
def test_all_draws_of_a_round_are_listed_once(name: str) -> None:
    method, rows = METHODS[name]
    drawn = PossibleDraws.of(method, rows)
    assert len(drawn.options) == number_of_draws(method, rows) == len(np.unique(drawn.weights, axis=0))
    np.testing.assert_allclose(drawn.weights.sum(axis=2), 1.0)
    rng = np.random.default_rng(0)
    listed = {tuple(tuple(sorted(part)) for part in draw.parts) for draw in drawn.options}
    for _ in range(50):
        assert tuple(tuple(sorted(part)) for part in method.draw(rows, rng).parts) in listed


@pytest.mark.parametrize(
    ("method", "rows", "log"),
    [
        (DSGD(batch_size=2), 171, math.log(171 * 85)),  # pairs of rows
        (FedAvg(batch_size=2, local_steps=85), 171, math.lgamma(172) - 85 * math.log(2)),  # 171!, too large for float64
        (FedAvg(batch_size=128, local_steps=3), 1000, math.inf),  # e^1078
        (LoSAC(local_steps=400, blocks=20), 1000, math.inf),  # 20^400
    ],
    ids=["pairs", "an epoch", "batches", "blocks"],
)
def test_numbers_of_draws_that_need_more_than_float64_are_counted(method, rows: int, log: float) -> None:
    assert math.log(number_of_draws(method, rows)) == pytest.approx(log)


@pytest.mark.parametrize("name", METHODS)
def test_given_the_rows_every_rounds_draw_is_found(name: str) -> None:
    method, rows = METHODS[name]
    truth, transcript, target = scene(method, rows, rounds=8)
    system = problem_from_view(views.server(transcript, 1), target, rounds=8).equations
    drawn, samples = PossibleDraws.of(method, rows), truth.x @ system.basis.T
    draws = best_draws(system, drawn, samples, truth.y)
    exact = np.linalg.norm(system.with_draws(draws).residual(samples, truth.y))
    wrong = np.linalg.norm(system.with_draws((*draws[:-1], drawn.options[0])).residual(samples, truth.y))
    assert exact < 1e-11
    assert wrong > 1e-4 or all(map(np.array_equal, draws[-1].parts, drawn.options[0].parts))


def test_the_jacobians_of_all_alternations_are_counted(monkeypatch) -> None:
    method, rows = METHODS["dsgd"]
    _, transcript, target = scene(method, rows, rounds=8)
    problem = problem_from_view(views.server(transcript, 1), target, rounds=8)
    made = []

    def fit(*arguments):
        made.append(fit_rows(*arguments))
        return made[-1]

    monkeypatch.setattr(batch_search, "fit_rows", fit)
    found = BatchSearch(starts=1)(problem.equations, problem.starts, np.random.default_rng(0))[1]
    assert len(made) > 2 and found.steps == sum(one.steps for one in made)


@pytest.mark.parametrize("name", first_ones(METHODS, 2))
def test_rows_and_draws_are_found_together(name: str) -> None:
    method, rows = METHODS[name]
    truth, transcript, target = scene(method, rows)
    found = SampleFit().run(views.server(transcript, 1), target, np.random.default_rng(0))
    assert found.diagnostics["draws"] == "found" and not found.diagnostics["full batches assumed"]
    assert found.residual < 1e-9 and found.rank == found.unknowns
    assert sample_error(found.value, truth.x) < 1e-8
    assert sorted(found.labels) == sorted(truth.y)
    system = problem_from_view(views.server(transcript, 1), target, rounds=len(found.diagnostics["batches"])).equations
    known = best_draws(system, PossibleDraws.of(method, rows), truth.x @ system.basis.T, truth.y)
    place = [int(np.argmin(((truth.x - row) ** 2).sum(axis=1))) for row in found.value]
    for draw, steps in zip(known, found.diagnostics["batches"], strict=True):  # the rows of every step of every round
        assert [{place[row] for row in step} for step in steps] == [set(part) for part in draw.parts]


def test_what_is_not_searched_for_says_so_and_keeps_its_residual() -> None:
    method = FedAvg(batch_size=2, local_steps=2)
    _, transcript, target = scene(method, 3, rounds=6)
    alone, everybody = views.server(transcript, 1), views.sum_only(transcript, None)
    for attack, view, words in (
        (SampleFit(), everybody, "a sum of several clients"),
        (SampleFit(batch_search=BatchSearch(options=2)), alone, "a round has 9, the limit is 2"),
        (SampleFit(limit=5), alone, "too many rows"),
    ):
        found = attack.run(view, target, np.random.default_rng(0))
        assert words in found.diagnostics["draws"] and found.diagnostics["full batches assumed"]
        assert found.residual > 1e-3
