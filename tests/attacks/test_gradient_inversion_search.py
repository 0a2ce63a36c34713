"""Which labels and which weights of the equations a search tries, and in what order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed.algorithms.optimization import FedAvg, LoSAC, Scaffold
from securefed.attacks import views
from securefed.attacks.base import Target
from securefed.attacks.gradient_inversion import Fit, Telescoping
from securefed.attacks.gradient_inversion.inversion import look
from securefed.attacks.gradient_inversion.search import Race
from securefed.attacks.scores import sample_error
from securefed.datasets.base import Dataset
from securefed.federation import Federation
from securefed.problems.linear import LogisticRegression

X, Y = load_digits(return_X_y=True)
X = X / 16


def federation(method, labels: list[int], rounds: int, seed: int = 0) -> tuple[Federation, np.ndarray]:
    """Client 0 has one row of each label, three others have one row each; a run, and client 0's rows."""
    rng = np.random.default_rng(seed)
    rows = [rng.choice(np.flatnonzero(label == Y)) for label in labels]
    others = [[row] for row in rng.choice(len(X), 3, replace=False)]
    made = Federation(method, [Dataset(X[own], Y[own]) for own in (rows, *others)], seed=seed)
    made.run(rounds)
    return made, X[rows]


@pytest.mark.parametrize("labels", [[3, 4, 4, 4], [5, 7, 9, 9], [1, 1, 1, 1], [0, 2, 6, 8]])
@pytest.mark.parametrize("method", [FedAvg(learning_rate=1.0), Scaffold(learning_rate=1.0)], ids=["fedavg", "scaffold"])
def test_large_steps_leave_the_labels_of_few_rows_among_the_first(method, labels: list[int]) -> None:
    """After them the bias no longer counts rows, but it shows which classes there are."""
    made, _ = federation(method, labels, 8)
    scene = look(views.server(made.transcript, 0), Target(method, made.public), rounds=4)
    guesses = itertools.islice(scene.starts(np.random.default_rng(0)), 8)
    first = [np.bincount(start.labels, minlength=10).tolist() for start in guesses]
    assert np.bincount(labels, minlength=10).tolist() in first


def test_rows_of_one_class_mostly_are_recovered_from_large_steps() -> None:
    method = FedAvg(learning_rate=1.0)
    made, rows = federation(method, [3, 4, 4, 4], 8)
    found = Fit().run(views.server(made.transcript, 0), Target(method, made.public), np.random.default_rng(0))
    assert sample_error(found.value, rows) < 1e-9


@pytest.mark.exhaustive
def test_ten_rows_of_two_classes_need_equations_that_count_alike() -> None:
    method = LoSAC(problem=LogisticRegression(), learning_rate=1.0, local_steps=1)
    chosen = np.random.default_rng(4).permutation(len(X))[:40].reshape(4, 10)
    clients = [Dataset(X[own], (Y[own] >= 5).astype(int)) for own in chosen]
    made = Federation(method, clients, seed=4)
    made.run(24)
    observed, target = views.server(made.transcript, 1), Target(method, made.public)
    found = Telescoping(race=Race(budget=600)).run(observed, target, np.random.default_rng(4))
    assert sample_error(found.value, X[chosen[1]]) < 1e-6
