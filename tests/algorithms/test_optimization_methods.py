"""Gradient methods: identities, invariants under drops, convergence, refusals."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from securefed.algorithms.base import Algorithm, Outcome, Public, algorithms
from securefed.algorithms.optimization import DSGD, FedAvg, LoSAC, Scaffold
from securefed.datasets.base import Dataset
from securefed.defenses.compose import chain
from securefed.defenses.fixed_point import Quantise
from securefed.errors import ConfigError, DataError, DivergenceError
from securefed.messages import Aggregate
from securefed.problems import LogisticRegression, SoftmaxRegression
from securefed.state import pack, restore
from securefed.tensors import Layout, add

PROBLEM = SoftmaxRegression(l2=0.1)


def make_clients(count: int, rows: int = 6, classes: int = 3, seed: int = 0, features: int = 4) -> list[Dataset]:
    rng = np.random.default_rng(seed)
    sizes = [rows + k % 3 for k in range(count)]
    return [
        Dataset(rng.uniform(-1, 1, (n, features)), np.append(rng.integers(classes, size=n - 1), classes - 1))
        for n in sizes
    ]


class Loop:
    """The round loop without a message layer: `drop(round) -> ids` whose contribution does not count."""

    def __init__(self, method, data, *, cohort=None, seed=0, public=None):
        self.method, self.rng = method, np.random.default_rng(seed)
        self.public = public or Public.of(data, cohort=cohort)
        self.server = method.start(self.public, self.rng)
        self.clients = [method.enroll(rows, self.public, self.rng) for rows in data]

    def run(self, rounds, drop=lambda _: ()):
        for number in range(rounds):
            invited = sorted(self.rng.choice(len(self.clients), self.public.cohort, replace=False))
            lost = set(drop(number))
            self.round([k for k in invited if k not in lost], [k for k in invited if k in lost])
        return self

    def round(self, survivors, lost=()):
        broadcast = self.method.broadcast(self.server)
        total = None
        for k in [*survivors, *lost]:
            state, sent = self.method.contribute(self.clients[k], broadcast, self.rng)
            self.method.layout(self.public).check(sent)
            if k in survivors:
                total = sent if total is None else add(total, sent)
            elif k % 2:
                state = self.clients[k]  # never heard: the tentative state is forgotten
            self.clients[k] = self.method.settle(state, Outcome(k in survivors, None))
        if total is not None:
            self.server = self.method.combine(self.server, Aggregate(total, tuple(survivors)))

    @property
    def x(self):
        return self.server.vectors["x"]

    def memories(self):
        return np.sum([np.sum(client.memory, axis=0) for client in self.clients], axis=0)


def some_drop(seed, count, share=0.3):
    rng = np.random.default_rng(seed)
    return lambda _: np.flatnonzero(rng.random(count) < share)


def optimum(problem, data, weights, initial):
    """Minimiser of sum_i weights[i] * (mean loss of client i), to about 1e-9."""
    layout = Layout.of(initial)

    def value(vector):
        parameters = layout.unflatten(vector)
        losses = [w * problem.loss(parameters, d.x, d.y) for w, d in zip(weights, data, strict=True)]
        parts = [w * layout.flatten(problem.gradient(parameters, d.x, d.y)) for w, d in zip(weights, data, strict=True)]
        return sum(losses), np.sum(parts, axis=0)

    x = minimize(value, layout.flatten(initial), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    return x, lambda vector: np.linalg.norm(value(vector)[1])


# ------------------------------------------------------------------------------------------------ identities


@pytest.mark.parametrize("problem", [PROBLEM, SoftmaxRegression(bias=False), LogisticRegression(l2=0.2)])
def test_one_full_batch_client_is_gradient_descent_for_every_method(problem) -> None:
    data = make_clients(1, classes=2)
    rate, rows = 0.3, data[0].rows
    runs = [
        Loop(DSGD(problem=problem, learning_rate=rate), data),
        Loop(FedAvg(problem=problem, learning_rate=rate, local_steps=1), data),
        Loop(Scaffold(problem=problem, learning_rate=rate, local_steps=1), data),
        Loop(LoSAC(problem=problem, learning_rate=rate / rows, local_steps=1), data),
    ]
    layout = Layout.of(problem.initial(runs[0].public, np.random.default_rng(0)))
    x = np.zeros(layout.size)
    for _ in range(7):
        x = x - rate * layout.flatten(problem.gradient(layout.unflatten(x), data[0].x, data[0].y))
    # SCAFFOLD and LoSAC with N = 1: c = c_i, phi = y, so the control terms cancel from the first round on.
    for loop in runs:
        np.testing.assert_allclose(loop.run(7).x, x, atol=1e-13)


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


def test_scaffold_options_agree_for_one_full_batch_step_and_differ_for_two() -> None:
    data = make_clients(4)
    for steps, same in ((1, True), (2, False)):
        one, two = (
            Loop(Scaffold(problem=PROBLEM, local_steps=steps, option=option), data, cohort=2).run(9)
            for option in ("I", "II")
        )
        assert np.allclose(one.x, two.x, atol=1e-13) is same
        assert np.allclose(one.server.vectors["c"], two.server.vectors["c"], atol=1e-13) is same


def test_scaffold_control_variates_are_gradients_not_steps() -> None:
    """The sign: after one round of one full-batch step, c_i is the gradient at x."""
    data = make_clients(3)
    loop = Loop(Scaffold(problem=PROBLEM, local_steps=1), data)
    x = loop.x
    loop.run(1)
    for client, rows in zip(loop.clients, data, strict=True):
        np.testing.assert_allclose(client.memory[0], client.model.gradient(x, rows, slice(None)), atol=1e-14)


def test_losac_local_steps_are_equation_11() -> None:
    data = make_clients(3)
    method = LoSAC(problem=PROBLEM, learning_rate=0.01, local_steps=4, blocks=2)
    loop = Loop(method, data).run(3)
    client, x, phi = loop.clients[1], loop.x, loop.server.vectors["phi"]
    _, sent = method.contribute(client, method.broadcast(loop.server), np.random.default_rng(5))
    drawn = np.random.default_rng(5).integers(2, size=4)
    halves = np.array_split(np.arange(data[1].rows), 2)
    point, control, y = x, phi, list(client.memory)
    for j in drawn:
        g = data[1].rows * client.model.gradient(point, data[1], halves[j])
        point, control, y[j] = point - 0.01 * (control / 3 - y[j] + g), control + g - y[j], g
    np.testing.assert_allclose(client.model.vector("dx", sent), point - x, atol=1e-14)
    np.testing.assert_allclose(client.model.vector("dphi", sent), control - phi, atol=1e-13)


def test_losac_scales_agree_for_one_block() -> None:
    data = make_clients(3)
    one, two = (Loop(LoSAC(problem=PROBLEM, block_scale=scale), data).run(5) for scale in ("printed", "consistent"))
    np.testing.assert_array_equal(one.x, two.x)
    printed, consistent = (
        Loop(LoSAC(problem=PROBLEM, block_scale=scale, blocks=3), data).run(5) for scale in ("printed", "consistent")
    )
    assert np.abs(printed.x - consistent.x).max() > 1e-6


@pytest.mark.parametrize("method", [FedAvg(local_steps=3), Scaffold(local_steps=3), DSGD()])
def test_a_batch_of_all_rows_is_the_full_batch_and_a_smaller_one_is_not(method) -> None:
    data = make_clients(3)
    whole = Loop(method, data).run(4).x
    np.testing.assert_array_equal(Loop(replace(method, batch_size=100), data).run(4).x, whole)
    assert np.abs(Loop(replace(method, batch_size=2), data).run(4).x - whole).max() > 1e-4


# ------------------------------------------------------------------------------------- invariants under drops


@pytest.mark.parametrize("cohort", [2, 5])
@pytest.mark.parametrize("blocks", [1, 3])
def test_losac_phi_is_the_sum_of_the_stored_gradients_after_every_drop(cohort: int, blocks: int) -> None:
    data = make_clients(5)
    loop = Loop(LoSAC(problem=PROBLEM, learning_rate=0.003, blocks=blocks), data, cohort=cohort)
    for number in range(25):
        loop.run(1, some_drop(number, 5))
        expected = len(data) / cohort * loop.memories()
        np.testing.assert_allclose(loop.server.vectors["phi"], expected, atol=1e-11 * (1 + np.abs(expected).max()))
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_c_is_the_mean_of_the_client_variates_after_every_drop(option: str) -> None:
    data = make_clients(5)
    loop = Loop(Scaffold(problem=PROBLEM, option=option), data, cohort=3)
    for number in range(25):
        loop.run(1, some_drop(number, 5))
        np.testing.assert_allclose(loop.server.vectors["c"], loop.memories() / 5, atol=1e-12)
    assert np.abs(loop.memories()).max() > 0.01, "there is something to compare"


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("cohort", [3, 6])
def test_losac_converges_to_the_optimum_under_drops(cohort: int, blocks: int) -> None:
    data = make_clients(6, rows=6)
    data = [d.take(np.arange(6)) for d in data]  # equal blocks: `printed` then has the same optimum
    method = LoSAC(problem=PROBLEM, learning_rate=0.02, local_steps=4, blocks=blocks)
    loop = Loop(method, data, cohort=cohort)
    best, slope = optimum(PROBLEM, data, [6.0] * 6, PROBLEM.initial(loop.public, loop.rng))
    loop.run(1000, some_drop(3, 6))
    assert slope(loop.x) < 1e-9
    np.testing.assert_allclose(loop.x, best, atol=1e-8)


@pytest.mark.parametrize("cohort", [3, 6])
def test_scaffold_converges_to_the_optimum_under_drops(cohort: int) -> None:
    data = make_clients(6)
    loop = Loop(Scaffold(problem=PROBLEM, learning_rate=0.15, local_steps=4), data, cohort=cohort)
    best, slope = optimum(PROBLEM, data, [1.0] * 6, PROBLEM.initial(loop.public, loop.rng))
    loop.run(1000, some_drop(4, 6))
    assert slope(loop.x) < 1e-9
    np.testing.assert_allclose(loop.x, best, atol=1e-8)


def test_without_roll_back_losac_ends_elsewhere() -> None:
    """The positive control of the convergence under drops: commit every tentative state, and the optimum is missed."""
    data = [d.take(np.arange(6)) for d in make_clients(6)]
    method = LoSAC(problem=PROBLEM, learning_rate=0.02, local_steps=4)

    class Careless(Loop):
        def round(self, survivors, lost=()):
            broadcast = self.method.broadcast(self.server)
            for k in lost:
                state, _ = self.method.contribute(self.clients[k], broadcast, self.rng)
                self.clients[k] = self.method.settle(state, Outcome(True, None))
            super().round(survivors)

    loop = Careless(method, data)
    _, slope = optimum(PROBLEM, data, [6.0] * 6, PROBLEM.initial(loop.public, loop.rng))
    assert slope(loop.run(300, some_drop(3, 6)).x) > 1e-3


def test_fedavg_with_local_steps_misses_the_optimum_that_scaffold_finds() -> None:
    data = make_clients(4)
    _, slope = optimum(PROBLEM, data, [1.0] * 4, PROBLEM.initial(Public.of(data), np.random.default_rng(0)))
    settings = {"problem": PROBLEM, "learning_rate": 0.15, "local_steps": 10}
    assert slope(Loop(FedAvg(weighting="uniform", **settings), data).run(300).x) > 1e-4
    assert slope(Loop(Scaffold(**settings), data).run(800).x) < 1e-9


@pytest.mark.parametrize(("ring", "drift"), [(None, (0.0, 1e-12)), (32, (1e-9, 1.0))])
def test_fixed_point_does_not_make_phi_drift_from_the_stored_gradients(ring, drift) -> None:
    """`dphi` asks for 64 bits; forced into 32 (the positive control) it drifts by rounding."""
    data = make_clients(4)
    method = LoSAC(problem=PROBLEM, learning_rate=0.003)
    defence = chain(Quantise(ring))

    class Rounded(Loop):
        def __init__(self, *args):
            super().__init__(*args)
            self.plan = defence.plan(method.layout(self.public), 4)

        def round(self, survivors, lost=()):
            server, clients = self.server, []
            for k in survivors:
                state, sent = method.contribute(self.clients[k], method.broadcast(server), self.rng)
                clients.append(defence.decode(defence.encode(sent, self.plan), self.plan, 1))
                self.clients[k] = method.settle(state, Outcome(True, None))
            total = {name: np.sum([sent[name] for sent in clients], axis=0) for name in clients[0]}
            self.server = method.combine(server, Aggregate(total, tuple(survivors)))

    loop = Rounded(method, data).run(200)
    gap = np.abs(loop.server.vectors["phi"] - loop.memories()).max()
    assert drift[0] <= gap <= drift[1]


# ----------------------------------------------------------------------------------------- the contract's edges

EVERY = [
    DSGD(batch_size=2),
    FedAvg(batch_size=2),
    Scaffold(),
    Scaffold(option="I", batch_size=3),
    LoSAC(learning_rate=0.01, blocks=3),
]


@pytest.mark.parametrize("method", EVERY, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'batch_size', None)}")
def test_a_run_restored_from_packed_states_goes_on_the_same(method) -> None:
    data = make_clients(4)
    straight, stopped = (Loop(method, data, cohort=3).run(4, some_drop(1, 4)) for _ in range(2))
    fresh = Loop(method, data, cohort=3, seed=9)
    fresh.server = restore(fresh.server, pack(stopped.server))
    fresh.clients = [restore(new, pack(old)) for new, old in zip(fresh.clients, stopped.clients, strict=True)]
    fresh.rng = stopped.rng
    np.testing.assert_array_equal(fresh.run(4).x, straight.run(4).x)


@pytest.mark.parametrize("method", EVERY, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'batch_size', None)}")
def test_contributions_stay_within_the_declared_bounds(method) -> None:
    data = make_clients(5)
    public = Public.of(data, cohort=3)
    loop, layout = Loop(method, data, public=public), method.layout(public)
    share = dict.fromkeys(layout.names, 0.0)
    for number in range(12):
        broadcast = method.broadcast(loop.server)
        for client in loop.clients:
            _, sent = method.contribute(client, broadcast, loop.rng)
            for spec in layout:
                share[spec.name] = max(share[spec.name], float(np.abs(sent[spec.name]).max() / spec.bound))
        loop.run(1, some_drop(number, 5))
    assert all(0.005 < value <= 1.0 for value in share.values()), share


@pytest.mark.parametrize("method", EVERY, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'batch_size', None)}")
def test_contribute_leaves_the_state_it_was_given_alone(method) -> None:
    loop = Loop(method, make_clients(3)).run(2)
    before = pack(loop.clients[0])
    first, sent = method.contribute(loop.clients[0], method.broadcast(loop.server), np.random.default_rng(1))
    _, same = method.contribute(first, method.broadcast(loop.server), np.random.default_rng(1))
    after = pack(loop.clients[0])
    assert before.keys() == after.keys() and all(np.array_equal(before[k], after[k]) for k in before)
    assert all(np.array_equal(sent[k], same[k]) for k in sent), "an unsettled state still stands at the committed one"


def test_evaluation_sums_to_the_pooled_figures() -> None:
    data = make_clients(4)
    loop = Loop(FedAvg(), data).run(3)
    output = loop.method.broadcast(loop.server)
    sums = [loop.method.evaluate(client, output) for client in loop.clients]
    x, y = np.vstack([d.x for d in data]), np.concatenate([d.y for d in data])
    pooled = {name: float(sum(s[name] for s in sums)) for name in sums[0]}
    assert pooled["count"] == len(y)
    assert pooled["loss"] / len(y) == pytest.approx(loop.method.problem.loss(output, x, y), abs=1e-12)
    assert pooled["correct"] / len(y) == loop.method.utility(output, Dataset(x, y))
    for value in sums:
        loop.method.evaluation_layout(loop.public).check(value)


@pytest.mark.parametrize(
    "method",
    [
        DSGD(problem=LogisticRegression(l2=1.0), learning_rate=1e3),
        FedAvg(problem=LogisticRegression(l2=1.0), learning_rate=1e3),
        Scaffold(problem=LogisticRegression(l2=1.0), learning_rate=1e3),
        LoSAC(problem=LogisticRegression(l2=1.0), learning_rate=1e3),
    ],
)
def test_divergence_is_named_before_anything_overflows(method) -> None:
    loop = Loop(method, make_clients(2, classes=2))
    with pytest.raises(DivergenceError, match=r"(round \d+|local steps).*lower learning_rate"):
        loop.run(400)


def test_a_total_that_is_not_finite_is_refused_and_a_noised_one_is_not() -> None:
    loop = Loop(LoSAC(), make_clients(2))
    noise = {s.name: np.random.default_rng(0).normal(0, 50, s.shape) for s in loop.method.layout(loop.public)}
    server = loop.method.combine(loop.server, Aggregate(noise, (0, 1)))
    assert np.isfinite(server.vectors["x"]).all()
    broken = noise | {"dx.bias": np.full(3, np.nan)}
    with pytest.raises(DivergenceError, match="round 0"):
        loop.method.combine(loop.server, Aggregate(broken, (0, 1)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DSGD(learning_rate=0.0), "learning_rate must be positive"),
        (lambda: FedAvg(learning_rate=float("inf")), "learning_rate must be positive"),
        (lambda: DSGD(batch_size=0), "batch_size must be at least 1"),
        (lambda: FedAvg(local_steps=0), "local_steps must be at least 1"),
        (lambda: FedAvg(weighting="loss"), "weighting is 'rows' or 'uniform'"),
        (lambda: Scaffold(option="III"), "option is 'I' or 'II'"),
        (lambda: LoSAC(blocks=0), "blocks must be at least 1"),
        (lambda: LoSAC(local_steps=-1), "local_steps must be at least 1"),
        (lambda: LoSAC(block_scale="mean"), "block_scale is"),
        (lambda: LoSAC(blocks=9).layout(Public.of(make_clients(2))), "9 blocks need as many rows"),
    ],
)
def test_hyper_parameters_outside_their_domain_are_refused_in_words(make, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_data_without_labels_is_refused() -> None:
    data = make_clients(2)
    with pytest.raises(DataError, match="needs labels"):
        DSGD().enroll(Dataset(data[0].x), Public.of(data), np.random.default_rng(0))


@pytest.mark.parametrize("name", ["dsgd", "fedavg", "scaffold", "losac"])
def test_the_registry_builds_each_method_with_a_named_problem(name: str) -> None:
    method = algorithms.make(f"optimization/{name}", problem="logistic", learning_rate=0.25)
    assert isinstance(method, Algorithm)
    assert (method.problem, method.learning_rate) == (LogisticRegression(), 0.25)
