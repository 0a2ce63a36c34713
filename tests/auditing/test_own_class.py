"""Classes and functions of one's own that cannot be audited as they are: named, with what would help."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from securefed import Algorithm, Layout, TensorSpec, audit_algorithm
from securefed._auditing.engine.results import Read
from securefed._auditing.engine.statistics import Interval, interval, seeds_for, verdict
from securefed.errors import DataError
from securefed.testing import assert_leakage_below
from tests.combinations import first_ones


class Sum(Algorithm):
    """What every class below changes one method of; it can be audited."""

    def layout(self, public):
        return Layout((TensorSpec("sum", (3,), 100.0),))

    def start(self, public, rng):
        return {"round": np.zeros(1)}

    def enroll(self, data, public, rng):
        return data, 0

    def broadcast(self, server):
        return server

    def contribute(self, client, broadcast, rng):
        return (client[0], client[1] + 1), {"sum": client[0].x.sum(axis=0)}

    def combine(self, server, aggregate):
        return server


class Momentum(Sum):
    def __init__(self):
        self.velocity = np.zeros(3)

    def contribute(self, client, broadcast, rng):
        self.velocity = 0.9 * self.velocity + client[0].x.sum(axis=0)
        return client, {"sum": self.velocity.copy()}


class Warming(Sum):
    """Its memory shows only after eight steps."""

    def __init__(self):
        self.steps = 0

    def contribute(self, client, broadcast, rng):
        self.steps += 1
        return client, {"sum": client[0].x.sum(axis=0) * (1.0 + (self.steps > 8))}


class Cached(Sum):
    """Changes itself, and answers the same."""

    def __init__(self):
        self.calls = 0

    def contribute(self, client, broadcast, rng):
        self.calls += 1
        return super().contribute(client, broadcast, rng)


class NoWeights(Sum):
    def contribute(self, client, broadcast, rng):
        return client, {"sum": client[0].x.sum(axis=0) * broadcast["weights"]}


class Picky(Sum):
    def enroll(self, data, public, rng):
        if data.x[0, 0] > 2:
            raise KeyError("labels")
        return data, 0


class Late(Sum):
    def contribute(self, client, broadcast, rng):
        if client[1] == 2 and client[0].x[0, 0] > 2:
            raise KeyError("late")
        return super().contribute(client, broadcast, rng)


class Forgets(Sum):
    def commit(self, client, outcome):
        if client[0].x[0, 0] > 2:
            raise KeyError("memory")
        return client


class PickyLater(Sum):
    def __init__(self):
        self.enrolled = 0

    def enroll(self, data, public, rng):
        self.enrolled += 1
        if self.enrolled > 4 and data.x[0, 0] > 2:  # the rehearsal enrols four clients
            raise KeyError("labels")
        return data, 0


class Divides(Sum):
    def combine(self, server, aggregate):
        raise ZeroDivisionError("no step")


class Narrow(Sum):
    def contribute(self, client, broadcast, rng):
        return client, {"sum": client[0].x.sum(axis=0)[:2]}


class Stateless(Sum):
    def contribute(self, client, broadcast, rng):
        return {"sum": client[0].x.sum(axis=0)}


def clients(seed):
    rows = np.random.default_rng(seed).uniform(0, 1, size=(4, 4, 3))
    rows[2] += 2  # client 2 is the one that some refuse
    return list(rows)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Momentum(), "velocity of the object changed.*belongs in the state"),
        (Warming(), "steps of the object changed"),
        (NoWeights(), r"client 0, round 0: NoWeights\.contribute raised KeyError: 'weights'"),
        (Picky(), r"client 2, round 0: Picky\.enroll raised KeyError: 'labels'"),
        (Late(), r"client 2, round 2, seed 0: Late\.contribute raised KeyError"),
        (Forgets(), r"client 2, seed 0: Forgets\.commit raised KeyError: 'memory'"),
        (PickyLater(), r"client 2, seed 0: PickyLater\.enroll raised KeyError: 'labels'"),
        (Divides(), r"seed 0: Divides\.combine raised ZeroDivisionError: no step"),
        (Narrow(), r"client 0, round 0: Narrow: .*'sum' has shape \(2,\), the layout has \(3,\)"),
        (Stateless(), r"must return \(state, tensors by name\), not dict"),
    ],
)
def test_a_class_that_cannot_be_audited_is_refused_by_method_client_and_round(method, words) -> None:
    with pytest.raises(DataError, match=words):
        audit_algorithm(method, clients, rounds=3, seeds=1, view=["server"])


@pytest.mark.parametrize("method", first_ones([Cached(), Sum()]))
def test_a_class_that_answers_the_same_is_audited_whatever_it_counts(method) -> None:
    assert audit_algorithm(method, clients, rounds=2, seeds=1, view=["sum only"]).cells


@pytest.mark.exhaustive
def test_a_step_that_loads_torch_within_a_call_and_draws_from_it_can_be_replayed() -> None:
    """In a process of its own, for here torch may be loaded already; the first call draws from NumPy alone."""
    code = """
import sys
import numpy as np
from securefed._auditing.own.function_algorithm import Rows, as_algorithm
from securefed.datasets._base import Dataset

def step(rows, broadcast):
    if broadcast["round"][0] > 0:
        import torch
        return {"sum": rows.sum(0) + torch.rand(3).numpy()}
    return {"sum": rows.sum(0) + np.random.rand(3)}

data = Dataset(np.ones((2, 3)))
method = as_algorithm(step, data, {"round": np.zeros(1)}, None, "numpy")
assert method.seeded and "torch" not in sys.modules
first, second = (
    method.contribute(Rows(data), {"round": np.ones(1)}, np.random.default_rng(0))[1]["sum"] for _ in range(2)
)
assert "torch" in sys.modules
print(np.array_equal(first, second))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_the_number_of_seeds_that_would_do_is_the_least_and_does_in_eight_of_ten() -> None:
    rng, limit = np.random.default_rng(4), 0.2
    seen = Interval(0.0, -0.2, 0.2, 10, 0.35)
    needed = seeds_for(seen, Interval(0.0, 0.0, 0.0, 10, 0.0), limit)
    assert needed is not None
    for seeds, least, most in ((needed, 0.72, 0.9), (needed // 4, 0.0, 0.5)):  # binomial error of 200: .03
        silent = interval([0.0] * seeds)
        noticed = sum(verdict(interval(rng.normal(limit, 0.35, seeds)), silent).word == "partial" for _ in range(200))
        assert least <= noticed / 200 <= most
    assert seeds_for(Interval(0.25, 0.0, 0.5, 10, 0.4), Interval(0.0, 0.0, 0.0, 10, 0.0), limit) is None
    assert seeds_for(seen, Interval(0.3, 0.2, 0.4, 10, 0.1), limit) is None


def test_a_gate_names_the_seeds_that_would_tell_and_where_none_would() -> None:
    found = audit_algorithm(Cached(), clients, rounds=1, seeds=1, view=["server"])
    wide, silent = Interval(0.0, -0.2, 0.2, 10, 0.35), Interval(0.0, 0.0, 0.0, 10, 0.0)
    (cell, *_) = (cell for cell in found.cells if cell.secret == "gram")

    def gate(limit, leakage):
        cells = (
            replace(
                cell,
                leakage=leakage,
                null_leakage=silent,
                read=Read(),
                runs=replace(cell.runs, asked=10),
                verdict=verdict(leakage, silent),
            ),
        )
        assert_leakage_below(limit, replace(found, cells=cells), secrets=["gram"])

    needed = seeds_for(wide, silent, 0.22)
    with pytest.raises(AssertionError, match=f"of 0.34 would have been seen, about {needed} seeds would tell"):
        gate(0.22, wide)
    with pytest.raises(AssertionError, match=r"up to 0\.20, about [0-9]+ seeds would tell"):
        gate(0.15, wide)
    with pytest.raises(AssertionError, match=r"more seeds will not change \(mean 0\.00"):
        gate(0.04, wide)  # less than what any number of seeds would call a leak
    with pytest.raises(AssertionError, match="one seed has no spread"):
        gate(0.5, interval([0.0]))
    gate(0.5, wide)
