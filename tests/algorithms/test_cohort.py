"""A cohort computed together gives what the clients give one by one, for every gradient method, to 1e-10 in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from securefed import _catalogue as catalogue
from securefed._messages import Aggregate
from securefed._public import Public
from securefed._tensors import add
from securefed.algorithms._base import RoundOutcome
from securefed.algorithms._optimization import FedAvg, Scaffold
from securefed.algorithms._optimization import cohort as cohorts
from securefed.algorithms._optimization.array_pool import ArrayPool
from securefed.algorithms._optimization.factored_cohort import FactoredCohort, FactoredVector
from securefed.algorithms._optimization.factored_gradients import FactoredGradients
from securefed.algorithms._optimization.lazy_sums import MANY, LazySum
from securefed.algorithms._optimization.local_steps import BatchDraw
from securefed.algorithms._optimization.method import GradientMethod
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.proximal import L1
from securefed.algorithms._optimization.stacked_rows import StackedRows, joined
from securefed.datasets._base import Dataset
from securefed.errors import DivergenceError
from securefed.problems import DenseNetwork, SoftmaxRegression

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


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("name", GRADIENT_METHODS)
def test_every_method_sends_and_remembers_the_same(name: str, batch: int | None, kind: str) -> None:
    algorithm = method(name, problem=PROBLEMS[kind], local_steps=4, batch_size=batch)
    assert compare(algorithm, data()) > 1e-4, "something was sent"


def test_more_steps_than_a_sum_keeps_apart_give_the_same() -> None:
    compare(Scaffold(problem=PROBLEMS["dense"], learning_rate=RATE, local_steps=2 * MANY), data(), rounds=2)


def test_the_battery_is_not_empty() -> None:
    assert len(GRADIENT_METHODS) >= 14
    assert {"optimization/fedavg", "optimization/losac", "personalized/flame"} <= set(GRADIENT_METHODS)


@pytest.mark.parametrize("limit", ["GROUP_BYTES", "FACTORED_BYTES", "BATCH_BYTES"])
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


@pytest.mark.parametrize("inner", [(), ("weight2",), ("weight2", "weight3")], ids=["input", "one-inner", "all"])
@pytest.mark.parametrize("share", [False, True], ids=["own-points", "one-point"])
def test_a_frame_gives_the_plain_gradient_and_its_combinations(share: bool, inner: tuple[str, ...]) -> None:
    """Every operation a method may use, against the same on plain vectors."""
    clients, problem = data((6, 6, 4)), PROBLEMS["dense"]
    model, rng = Model(problem, Public.of(clients)), np.random.default_rng(1)
    parts = [slice(None)] * 3
    stack = StackedRows.of(clients, [rows.y for rows in clients], parts, problem.dtype, ArrayPool())
    count, size = 3, model.layout.size
    point = rng.normal(size=size) if share else rng.normal(size=(count, size))
    other, scale = rng.normal(size=(count, size)), np.array([[0.5], [2.0], [-1.0]])
    frame = FactoredCohort(model, problem, count, inner)

    def path(gradient: Any) -> Any:
        first = gradient(point)
        here = point - 0.1 * (scale * first - other) / 2.0
        second = gradient(here)
        return here - first * scale + second - (-other) + 0.0 * first - point

    def plain(at: Any) -> Any:
        return model.gradients(np.broadcast_to(at, (count, size)), stack.x, stack.y, stack.weights)

    lazy = path(lambda at: frame.gradient(at, stack))
    assert isinstance(lazy, FactoredVector)
    assert lazy.shape == (count, size)
    np.testing.assert_allclose(lazy, path(plain), rtol=0, atol=1e-12)
    np.testing.assert_allclose(lazy[1], path(plain)[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.abs(lazy), np.abs(path(plain)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(lazy * other, path(plain) * other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("coefficients", [{0: 0.5, 2: -1.0}, {1: np.array([[1.0], [0.0], [2.0]]), 2: 3.0}])
def test_factors_multiply_as_what_they_stand_for(coefficients: dict[int, Any]) -> None:
    rng, kept, formed = np.random.default_rng(0), FactoredGradients(ArrayPool()), np.zeros((3, 4, 5))
    for step, width in enumerate((2, 6, 3)):
        slope, entered = rng.normal(size=(3, width, 4)), rng.normal(size=(3, width, 5))
        kept.take(slope, entered)
        formed += np.reshape(coefficients.get(step, 0.0), (-1, 1, 1)) * (slope.swapaxes(1, 2) @ entered)
    forward, backward, out = rng.normal(size=(3, 7, 5)), rng.normal(size=(3, 7, 4)), np.empty((3, 4, 5))
    kept.form(coefficients, out)
    np.testing.assert_allclose(out, formed, rtol=0, atol=1e-13)
    np.testing.assert_allclose(kept.forward(forward, coefficients), forward @ formed.swapaxes(1, 2), rtol=0, atol=1e-12)
    np.testing.assert_allclose(kept.backward(backward, coefficients), backward @ formed, rtol=0, atol=1e-12)


def test_a_sum_is_what_it_stands_for_and_forgets_what_is_taken_away_again() -> None:
    rng, pool, each = np.random.default_rng(0), ArrayPool(), np.array([[0.5], [2.0], [-1.0]])
    common, own = rng.normal(size=5), [rng.normal(size=(3, 5)) for _ in range(12)]
    before = [array.copy() for array in own]
    total, wanted = LazySum.of(pool, common).times(-2.0), -2.0 * common
    for array in own:
        total, wanted = total.plus(LazySum.of(pool, array).times(each), -1.0), wanted - each * array
    total, wanted = total.plus(LazySum.of(pool, own[0]), 1.0), wanted + own[0]
    out = np.empty((3, 5))
    total.write(out)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-13)
    total.write(out[:, :2], slice(1, 3))
    np.testing.assert_allclose(out[:, :2], wanted[:, 1:3], rtol=0, atol=1e-13)
    np.testing.assert_allclose(total.numbers((3, 5), common.dtype), wanted, rtol=0, atol=1e-13)
    assert all(np.array_equal(a, b) for a, b in zip(own, before, strict=True))
    assert len(total) == 1
    nothing = total.plus(total, -1.0)
    assert len(nothing) == 0
    assert np.array_equal(nothing.numbers((3, 5), common.dtype), np.zeros((3, 5)))


def test_a_pool_gives_memory_again_once_nobody_holds_it() -> None:
    pool, kind = ArrayPool(), np.dtype(np.float32)
    first = pool.empty((3, 5), kind)
    part, address = first[1:, 2:], first.ctypes.data
    del first
    assert not np.shares_memory(pool.empty((3, 5), kind), part), "a view holds it"
    del part
    again = pool.empty((2, 7), kind)
    assert (again.shape, again.dtype, again.ctypes.data) == ((2, 7), kind, address)
    assert not np.shares_memory(again, pool.empty((2, 7), kind))
    assert isinstance(copy.deepcopy(pool), ArrayPool)


def test_rounds_use_the_same_memory_again_and_never_what_somebody_holds() -> None:
    clients, algorithm = data(), method("optimization/scaffold", problem=PROBLEMS["dense"], local_steps=3)
    public, rng = Public.of(clients), np.random.default_rng(0)
    server = algorithm.start(public, rng)
    states = [algorithm.enroll(rows, public, rng) for rows in clients]

    def sent() -> list[np.ndarray[Any, Any]]:
        found = algorithm.contribute_together(states, algorithm.broadcast(server), streams(len(clients), 0))
        return [message["dx.weight1"] for _, message in found]

    held = sent()
    kept, known = [part.copy() for part in held], {part.ctypes.data for part in held}
    assert known.isdisjoint(part.ctypes.data for part in sent())
    assert all(np.array_equal(a, b) for a, b in zip(held, kept, strict=True))
    del held
    assert known & {part.ctypes.data for part in sent()}


def test_inner_weights_are_left_unformed_where_that_pays() -> None:
    """Few rows a step and several steps: yes. Many rows, or one step, which forms them anyway: no."""

    def unformed(rows: int, steps: int) -> tuple[str, ...]:
        clients, problem = data((rows, rows)), DenseNetwork(hidden=(200, 200))
        draw = BatchDraw.of([np.arange(rows)] * steps)
        return cohorts._unformed(Model(problem, Public.of(clients)), problem, clients, [draw, draw], [0, 1])

    assert unformed(12, 5) == ("weight2",)  # a layer of three outputs is small: moving it costs nothing
    assert unformed(60, 5) == unformed(12, 1) == ()


def test_groups_are_even_in_size_and_number() -> None:
    for count, most in ((50, 10), (50, 30), (7, 7), (9, 2), (1, 5)):
        found = cohorts._evenly(list(range(count)), most)
        sizes = [len(part) for part in found]
        assert [i for part in found for i in part] == list(range(count))
        assert max(sizes) <= most
        assert max(sizes) - min(sizes) <= 1
        assert len(found) % 2 == 0 or len(found) in (1, count)
        assert (len(found) == 1) == (count <= most)


def test_stacks_of_one_array_lie_side_by_side_without_a_copy() -> None:
    clients, whole = data((6, 6)), np.empty((2, 6, 5))
    parts = [[np.arange(2)] * 2, [np.arange(2, 5)] * 2]
    near = [
        StackedRows.of(clients, [rows.y for rows in clients], part, whole.dtype, ArrayPool(), whole, k)
        for part, k in zip(parts, (0, 2), strict=True)
    ]
    apart = [StackedRows.of(clients, [rows.y for rows in clients], part, whole.dtype, ArrayPool()) for part in parts]
    assert np.shares_memory(joined(near), whole)
    for stacks in (near, near[::-1], apart):
        together = joined(stacks)
        assert np.array_equal(together, np.concatenate([stack.x for stack in stacks], axis=1))
        assert np.shares_memory(together, whole) == (stacks is near)
    np.testing.assert_array_equal(joined(near)[0], clients[0].x[:5])


def test_a_frame_is_taken_where_it_pays() -> None:
    """Few rows and wide layers: yes. Blocks of memory, or more rows than a layer has outputs many times over: no."""

    def taken(hidden: int, rows: int, blocks: tuple[int, ...] = (0, 0)) -> bool:
        clients = data((rows, rows), features=40)
        problem = DenseNetwork(hidden=(hidden,), precision="float64")
        draw = BatchDraw((np.arange(rows),) * 2, blocks)
        return cohorts._factored(Model(problem, Public.of(clients)), clients, [draw, draw], [0, 1])

    assert taken(50, 4)
    assert not taken(50, 4, (0, 1))
    assert not taken(3, 400)


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
