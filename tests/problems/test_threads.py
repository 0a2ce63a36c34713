"""Every problem trains to the same numbers, bit for bit, when four threads share it.

Threads change places as often as Python lets them, and all arrays are so small that products run on one thread each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from securefed import Dataset, Federation, Public, problems
from securefed.algorithms import FedAvg
from securefed.problems import Problem
from tests.threads import THREADS, at_once, hasty

__all__ = ["hasty"]  # a fixture

FEATURES = {"cnn": 110, "low_rank": 9}


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


REGISTERED: dict[str, dict[str, Any]] = {
    "logistic": {},
    "softmax": {"l2": 0.1},
    "svm": {},
    "low_rank": {},
    "2nn": {"hidden": (5, 4)},
    "mlp": {"hidden": (6,)},
    "cnn": {"image_shape": (1, 10, 11), "channels": (3, 2), "hidden": 4},
    "autoencoder": {"layers": (4, 2)},
    "bigan": {"layers": (4, 2)},
}
CASES: dict[str, Problem] = {name: problems.problems.make(name, **more) for name, more in REGISTERED.items()}
CASES["torch"] = problems.TorchModule(module=module)


def clients(name: str, number: int) -> list[Dataset]:
    """Clients of two sizes, so that they are computed in two groups; each thread has rows of its own."""
    rng = np.random.default_rng(number)
    made = []
    for count in (4, 4, 9):
        x = rng.uniform(-1, 1, (count, FEATURES.get(name, 5)))
        labels = np.append(rng.integers(0, 2, count - 1), 1)
        made.append(Dataset(x, rng.normal(size=count) if name == "low_rank" else labels))
    return made


def test_every_problem_is_listed() -> None:
    assert set(problems.problems.names) == set(REGISTERED)
    exported = {kind for kind in (getattr(problems, name) for name in problems.__all__) if isinstance(kind, type)}
    bases = {problems.BaseProblem, problems.Classifier, Problem}
    assert exported - bases == {type(problem) for problem in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_federations_in_four_threads_train_the_models_of_one(name: str) -> None:
    method = FedAvg(problem=CASES[name], learning_rate=0.1, local_steps=5)

    def run(number: int) -> dict[str, Any]:
        federation = Federation(method, clients(name, number), seed=number)
        return dict(federation.run(rounds=2).output)

    alone = [run(number) for number in range(THREADS)]
    for one, other in zip(alone, at_once(run), strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(other[key], value, strict=True)


def test_modules_that_are_built_in_threads_draw_what_they_draw_alone() -> None:
    def starts(number: int) -> list[dict[str, Any]]:
        rng = np.random.default_rng(number)
        public = Public.of(clients("torch", number))
        return [dict(problems.TorchModule(module=module).initial(public, rng)) for _ in range(20)]

    alone = [starts(number) for number in range(THREADS)]
    for one, other in zip(alone, at_once(starts), strict=True):
        for mine, theirs in zip(one, other, strict=True):
            for key, value in mine.items():
                np.testing.assert_array_equal(theirs[key], value)
