"""A cohort computed together gives what the clients give one by one, for every gradient method, to 1e-10 in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed import Aggregate, Dataset, Public
from securefed import _catalogue as catalogue
from securefed._tensors import add
from securefed.algorithms import L1, FedAvg, RoundOutcome, Scaffold
from securefed.algorithms._optimization import cohort as cohorts
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model
from securefed.errors import DivergenceError
from securefed.problems import DenseNetwork, SoftmaxRegression
from tests.combinations import each_value

SIZES = (7, 3, 12, 5, 3, 9, 16, 4)
RATE = 0.02
SMALL: dict[str, dict[str, Any]] = {
    "losac": {"learning_rate": 0.002, "blocks": 3},
    "losac_prox": {"learning_rate": 0.002, "blocks": 3, "regulariser": L1(0.05)},
    "scaffold_prox": {"regulariser": L1(0.05)},
    "fedsaga": {"learning_rate": 0.002, "blocks": 3},
    "fedadmm": {"learning_rate": 0.002, "regulariser": L1(0.05)},
    "personalized/fedadmm": {"penalty": 0.5},
    "personalized/pfedme": {"inner_steps": 2},
}
PROBLEMS = {
    "softmax": SoftmaxRegression(l2=0.1),
    "dense": DenseNetwork(hidden=(9, 6), precision="float64", l2=0.1),
}
GRADIENT_METHODS = [
    name for name in catalogue.algorithms.names if name.split("/")[0] in ("optimization", "personalized")
]


def method(name: str, **more: Any) -> GradientMethod:
    """A registered method with small settings, and those of `more` that it has."""
    settings = {"learning_rate": RATE} | SMALL.get(name, SMALL.get(name.removeprefix("optimization/"), {}))
    kind = type(catalogue.algorithms.make(name, **settings))
    settings |= {key: value for key, value in more.items() if key in kind.__dataclass_fields__}
    made = catalogue.algorithms.make(name, **settings)
    assert isinstance(made, GradientMethod)
    return made


def data(sizes: tuple[int, ...] = SIZES, features: int = 5) -> list[Dataset]:
    rng = np.random.default_rng(3)
    return [Dataset(rng.uniform(-1, 1, (n, features)), np.append(rng.integers(3, size=n - 1), 2)) for n in sizes]


def streams(count: int, number: int) -> list[np.random.Generator]:
    return [np.random.default_rng([number, k]) for k in range(count)]


def compare(algorithm: GradientMethod, clients: list[Dataset], rounds: int = 3, atol: float = 1e-10) -> float:
    """Both ways from the same states, for some rounds; the size of what was sent."""
    public, rng = Public.of(clients), np.random.default_rng(0)
    server = algorithm.start(public, rng)
    states = [algorithm.enroll(rows, public, rng) for rows in clients]
    largest = 0.0
    for number in range(rounds):
        broadcast = algorithm.broadcast(server)
        before = [[part.copy() for part in state.memory] for state in states]
        alone = [
            algorithm.contribute(state, broadcast, rng)
            for state, rng in zip(states, streams(len(states), number), strict=True)
        ]
        together = algorithm.contribute_together(states, broadcast, streams(len(states), number))
        for state, kept in zip(states, before, strict=True):  # committed memory is nobody's to write
            assert all(np.array_equal(a, b) for a, b in zip(state.memory, kept, strict=True))
        for (state, sent), (own, message) in zip(together, alone, strict=True):
            assert sent.keys() == message.keys()
            for name, value in message.items():
                np.testing.assert_allclose(sent[name], value, rtol=0, atol=atol)
                assert isinstance(sent[name], np.ndarray)
                largest = max(largest, float(np.abs(value).max()))
            assert len(state.pending) == len(own.pending)
            for mine, theirs in zip(state.pending, own.pending, strict=True):
                assert isinstance(mine, np.ndarray)
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)
        total = together[0][1]
        for _, sent in together[1:]:
            total = add(total, sent)
        server = algorithm.combine(server, Aggregate(total, tuple(range(len(clients)))))
        outcome = RoundOutcome(True, algorithm.broadcast(server) if algorithm.needs_outcome else None)
        states = [algorithm.commit(state, outcome) for state, _ in together]
    return largest


@pytest.mark.parametrize(("name", "batch", "kind"), each_value(GRADIENT_METHODS, [None, 4], PROBLEMS))
def test_every_method_sends_and_remembers_the_same(name: str, batch: int | None, kind: str) -> None:
    algorithm = method(name, problem=PROBLEMS[kind], local_steps=4, batch_size=batch)
    assert compare(algorithm, data()) > 1e-4, "something was sent"


def test_the_battery_is_not_empty() -> None:
    assert len(GRADIENT_METHODS) >= 14
    assert {"optimization/fedavg", "optimization/losac", "personalized/flame"} <= set(GRADIENT_METHODS)


@pytest.mark.parametrize("limit", ["GROUP_BYTES", "BATCH_BYTES"])
def test_any_grouping_gives_the_same(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, limit, 2000)
    for problem in PROBLEMS.values():
        compare(Scaffold(problem=problem, learning_rate=RATE, local_steps=2, batch_size=3), data())


def test_groups_hold_each_client_once_and_pad_to_less_than_twice() -> None:
    clients = data()
    algorithm = FedAvg(problem=PROBLEMS["softmax"], local_steps=2)
    model = Model(algorithm.problem, Public.of(clients))
    draws = [algorithm.draw(rows.rows, np.random.default_rng(k)) for k, rows in enumerate(clients)]
    found = cohorts.groups(model, clients, draws)
    assert sorted(i for members in found for i in members) == list(range(len(clients)))
    for members in found:
        sizes = [clients[i].rows for i in members]
        assert max(sizes) < 2 * min(sizes)


def test_later_rounds_leave_what_was_sent_as_it_was() -> None:
    clients, algorithm = data(), method("optimization/scaffold", problem=PROBLEMS["dense"], local_steps=3)
    public, rng = Public.of(clients), np.random.default_rng(0)
    server = algorithm.start(public, rng)
    states = [algorithm.enroll(rows, public, rng) for rows in clients]

    def sent() -> list[dict[str, Any]]:
        found = algorithm.contribute_together(states, algorithm.broadcast(server), streams(len(clients), 0))
        return [dict(message) for _, message in found]

    held = sent()
    kept = [{name: value.copy() for name, value in message.items()} for message in held]
    sent()
    for message, before in zip(held, kept, strict=True):
        assert all(np.array_equal(message[name], value) for name, value in before.items())


def test_a_client_that_diverges_leaves_the_others_alone() -> None:
    calm = data((5, 5, 5))
    wild = [*calm[:1], Dataset(1e200 * calm[1].x, calm[1].y), *calm[2:]]
    algorithm = FedAvg(problem=SoftmaxRegression(l2=0.1), learning_rate=0.1, local_steps=3)
    public, rng = Public.of(wild), np.random.default_rng(0)
    server = algorithm.start(public, rng)
    states = [algorithm.enroll(rows, public, rng) for rows in wild]
    found = algorithm.contribute_together(states, algorithm.broadcast(server), streams(3, 0))
    assert isinstance(found[1], DivergenceError)
    for k in (0, 2):
        alone = algorithm.contribute(states[k], algorithm.broadcast(server), np.random.default_rng([0, k]))[1]
        for name, value in alone.items():
            np.testing.assert_allclose(found[k][1][name], value, rtol=0, atol=1e-12)
