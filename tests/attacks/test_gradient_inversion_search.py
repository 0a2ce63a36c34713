"""The search from many starts."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from securefed._runtime.federation import Federation
from securefed.algorithms._optimization import LoSAC
from securefed.attacks import views
from securefed.attacks._base import Target
from securefed.attacks._gradient_inversion import TelescopingFit
from securefed.attacks._gradient_inversion.multistart_search import MultiStartSearch
from securefed.attacks.scores import sample_error
from securefed.datasets._base import Dataset
from securefed.problems._linear import LogisticRegression

X, Y = load_digits(return_X_y=True)
X = X / 16


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
