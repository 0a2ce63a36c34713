"""The labels that a search tries, and the search from many starts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed import Dataset, Federation
from securefed.algorithms import FedAvg, LoSAC, Scaffold
from securefed.attacks import SampleFit, Target, views
from securefed.attacks._gradient_inversion import TelescopingFit
from securefed.attacks._gradient_inversion.multistart_search import MultiStartSearch
from securefed.attacks._gradient_inversion.row_fit_problem import problem_from_view
from securefed.attacks.scores import sample_error
from securefed.problems import LogisticRegression
from tests.combinations import each_value

X, Y = load_digits(return_X_y=True)
X = X / 16


def federation(method, labels: list[int]) -> tuple[Federation, np.ndarray]:
    """Run with a client 0 of one row of each label and three clients of one row; return client 0's rows too."""
    rng = np.random.default_rng(0)
    rows = [rng.choice(np.flatnonzero(label == Y)) for label in labels]
    others = [[row] for row in rng.choice(len(X), 3, replace=False)]
    made = Federation(method, [Dataset(X[own], Y[own]) for own in (rows, *others)], seed=0)
    made.run(8)
    return made, X[rows]


@pytest.mark.parametrize(
    ("labels", "method"),
    each_value(
        [[3, 4, 4, 4], [5, 7, 9, 9], [1, 1, 1, 1], [0, 2, 6, 8]],
        [FedAvg(learning_rate=1.0), Scaffold(learning_rate=1.0)],
    ),
)
def test_the_labels_of_few_rows_are_among_the_first_tried_after_large_steps(method, labels: list[int]) -> None:
    """The bias then no longer counts rows, but it shows which classes are present."""
    made, _ = federation(method, labels)
    problem = problem_from_view(views.server(made.transcript, 0), Target(method, made.public), rounds=4)
    starts = itertools.islice(problem.starts(np.random.default_rng(0)), 8)
    first = [np.bincount(start.labels, minlength=10).tolist() for start in starts]
    assert np.bincount(labels, minlength=10).tolist() in first


def test_rows_mostly_of_one_class_are_recovered_from_large_steps() -> None:
    method = FedAvg(learning_rate=1.0)
    made, rows = federation(method, [3, 4, 4, 4])
    found = SampleFit().run(views.server(made.transcript, 0), Target(method, made.public), np.random.default_rng(0))
    assert sample_error(found.value, rows) < 1e-9


@pytest.mark.exhaustive
def test_ten_rows_of_two_classes_are_recovered() -> None:
    method = LoSAC(problem=LogisticRegression(), learning_rate=1.0, local_steps=1)
    chosen = np.random.default_rng(4).permutation(len(X))[:40].reshape(4, 10)
    clients = [Dataset(X[own], (Y[own] >= 5).astype(int)) for own in chosen]
    made = Federation(method, clients, seed=4)
    made.run(24)
    observed, target = views.server(made.transcript, 1), Target(method, made.public)
    found = TelescopingFit(search=MultiStartSearch(budget=600)).run(observed, target, np.random.default_rng(4))
    assert sample_error(found.value, X[chosen[1]]) < 1e-6
