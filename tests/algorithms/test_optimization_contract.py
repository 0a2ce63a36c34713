"""What every gradient method owes the contract: packing, bounds, cohorts, refusals, divergence."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Aggregate, Algorithm, Dataset, Public
from securefed._persistence.packing import pack, restore
from securefed.algorithms import (
    DSGD,
    L1,
    CompositeFedADMM,
    FedAvg,
    FedCM,
    FedProx,
    FedSaga,
    LoSAC,
    LoSACProx,
    MimeSVRG,
    Nuclear,
    Scaffold,
    ScaffoldProx,
    algorithms,
)
from securefed.errors import ConfigError, DataError, DivergenceError
from securefed.problems import LogisticRegression
from tests.algorithms.gradients import Loop, make_clients, some_drop

EVERY = [
    DSGD(batch_size=2),
    FedAvg(batch_size=2),
    FedProx(batch_size=2, mu=1.0),
    FedCM(batch_size=2),
    MimeSVRG(batch_size=2),
    Scaffold(),
    Scaffold(option="I", batch_size=3),
    ScaffoldProx(regulariser=Nuclear(0.05)),
    LoSAC(learning_rate=0.01, blocks=3),
    LoSACProx(learning_rate=0.01, blocks=3, regulariser=L1(0.05)),
    FedSaga(learning_rate=0.01, blocks=3),
    CompositeFedADMM(learning_rate=0.05, local_steps=3, dual_steps="last", regulariser=Nuclear(0.05)),
]


def name(method):
    return f"{type(method).__name__}-{getattr(method, 'batch_size', None)}"


@pytest.mark.parametrize("method", EVERY, ids=name)
def test_a_run_restored_from_packed_states_goes_on_the_same(method) -> None:
    data = make_clients(4)
    straight, stopped = (Loop(method, data, cohort=3).run(4, some_drop(1, 4)) for _ in range(2))
    fresh = Loop(method, data, cohort=3, seed=9)
    fresh.server = restore(fresh.server, pack(stopped.server))
    fresh.clients = [restore(new, pack(old)) for new, old in zip(fresh.clients, stopped.clients, strict=True)]
    fresh.rng = stopped.rng
    np.testing.assert_array_equal(fresh.run(4).x, straight.run(4).x)


@pytest.mark.parametrize("method", EVERY, ids=name)
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


@pytest.mark.parametrize("method", EVERY, ids=name)
def test_contribute_leaves_the_state_it_was_given_alone(method) -> None:
    loop = Loop(method, make_clients(3)).run(2)
    before = pack(loop.clients[0])
    first, sent = method.contribute(loop.clients[0], method.broadcast(loop.server), np.random.default_rng(1))
    _, same = method.contribute(first, method.broadcast(loop.server), np.random.default_rng(1))
    after = pack(loop.clients[0])
    assert before.keys() == after.keys() and all(np.array_equal(before[k], after[k]) for k in before)
    assert all(np.array_equal(sent[k], same[k]) for k in sent), "an unsettled state still stands at the committed one"


@pytest.mark.parametrize("method", EVERY, ids=name)
def test_a_cohort_computed_together_is_the_clients_one_by_one(method) -> None:
    loop = Loop(method, make_clients(5), cohort=4).run(4, some_drop(2, 5))
    broadcast = method.broadcast(loop.server)
    together = method.contribute_together(loop.clients, broadcast, [np.random.default_rng(k) for k in range(5)])
    for k, (client, (state, sent)) in enumerate(zip(loop.clients, together, strict=True)):
        own, alone = method.contribute(client, broadcast, np.random.default_rng(k))
        assert sent.keys() == alone.keys()
        for part in alone:
            np.testing.assert_allclose(sent[part], alone[part], atol=1e-10)
        for ours, theirs in zip(state.pending, own.pending, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-10)
            assert ours.shape == theirs.shape


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
        LoSACProx(problem=LogisticRegression(l2=1.0), learning_rate=1e3, regulariser=L1(1e-3)),
        ScaffoldProx(problem=LogisticRegression(l2=1.0), learning_rate=1e3, regulariser=L1(1e-3)),
        FedSaga(problem=LogisticRegression(l2=1.0), learning_rate=1e3),
        FedCM(problem=LogisticRegression(l2=1.0), learning_rate=1e3),
        FedProx(problem=LogisticRegression(l2=1.0), learning_rate=1e3, mu=1e-4),
        MimeSVRG(problem=LogisticRegression(l2=1.0), learning_rate=1e3),
        CompositeFedADMM(problem=LogisticRegression(l2=1.0), rho=1e-4, local_steps=5, learning_rate=1e3),
    ],
    ids=name,
)
def test_divergence_is_named_before_anything_overflows(method) -> None:
    loop = Loop(method, make_clients(2, classes=2))
    with pytest.raises(DivergenceError, match=r"(round \d+|local steps).*lower learning_rate"):
        loop.run(400)


def test_a_blow_up_is_judged_against_the_start() -> None:
    """The same growth stops a run that starts at 1 and not one that starts at 1000."""
    for start, stops in ((1.0, True), (1e3, False)):
        loop = Loop(DSGD(learning_rate=1.0), make_clients(2))
        loop.server = replace(loop.server, vectors={"x": np.full_like(loop.x, start)}, round=3)
        total = {s.name: np.full(s.shape, -1e8) for s in loop.method.layout(loop.public)}
        if stops:
            with pytest.raises(DivergenceError, match=r"round 3: 'x' reached .*, beyond 1e\+06; lower learning_rate"):
                loop.method.combine(loop.server, Aggregate(total, (0, 1)))
        else:
            assert np.isfinite(loop.method.combine(loop.server, Aggregate(total, (0, 1))).vectors["x"]).all()


def test_what_starts_at_zero_is_judged_against_its_first_value() -> None:
    loop = Loop(FedCM(learning_rate=0.1), make_clients(2)).run(1)
    assert loop.server.peaks["momentum"] == np.abs(loop.server.vectors["momentum"]).max() > 0
    server = replace(loop.server, vectors=loop.server.vectors, peaks=loop.server.peaks | {"momentum": 5.0})
    total = {s.name: np.full(s.shape, 4e6) for s in loop.method.layout(loop.public)}
    with pytest.raises(DivergenceError, match=r"round 1: '(momentum|x)' reached"):
        loop.method.combine(server, Aggregate(total, (0, 1)))


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
        (lambda: DSGD(learning_rate=0.0), "learning_rate must be a positive"),
        (lambda: FedAvg(learning_rate=float("inf")), "learning_rate must be a positive"),
        (lambda: DSGD(batch_size=0), "batch_size must be an integer of at least 1"),
        (lambda: FedAvg(local_steps=0), "local_steps must be an integer of at least 1"),
        (lambda: FedAvg(weighting="loss"), "weighting must be one of 'rows', 'uniform'"),
        (lambda: Scaffold(option="III"), "option must be one of 'I', 'II'"),
        (lambda: LoSAC(blocks=0), "blocks must be an integer of at least 1"),
        (lambda: LoSAC(local_steps=-1), "local_steps must be an integer of at least 1"),
        (lambda: LoSAC(block_scale="mean"), "block_scale must be one of"),
        (
            lambda: LoSAC(blocks=9).layout(Public.of(make_clients(2))),
            "rows of the smallest client.; got 9",
        ),
        (
            lambda: FedSaga(blocks=9).layout(Public.of(make_clients(2))),
            "rows of the smallest client.; got 9",
        ),
        (lambda: FedSaga(average="all"), "average must be one of 'participants', 'clients'"),
        (lambda: FedProx(mu=-0.1), "mu must be a finite number of at least 0"),
        (lambda: FedProx(mu=20.0, learning_rate=0.1), "learning_rate \\* mu must be at most 1"),
        (lambda: FedCM(alpha=0.0), "alpha must be a positive, finite number of at most 1"),
        (lambda: FedCM(alpha=1.1), "alpha must be a positive, finite number of at most 1"),
        (lambda: FedCM(server_rate=0.0), "server_rate must be a positive"),
        (lambda: MimeSVRG(local_steps=0), "local_steps must be an integer of at least 1"),
        (lambda: CompositeFedADMM(rho=0.0), "rho must be a positive"),
        (lambda: CompositeFedADMM(rho=float("nan")), "rho must be a positive"),
        (lambda: CompositeFedADMM(dual_steps="never"), "dual_steps must be one of 'each', 'last'"),
        (lambda: CompositeFedADMM(server_steps=-1), "server_steps must be an integer of at least 0"),
        (
            lambda: CompositeFedADMM(server_steps=5, server_rate=1.0).layout(Public.of(make_clients(2))),
            r"must be below 2 or \(81\) diverges",
        ),
        (lambda: Public.of(make_clients(2), cohort=3), "cohort must be an integer between 1 and 2"),
    ],
)
def test_hyper_parameters_outside_their_domain_are_refused_in_words(make, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_data_without_labels_is_refused() -> None:
    data = make_clients(2)
    with pytest.raises(DataError, match="needs labels"):
        DSGD().enroll(Dataset(data[0].x), Public.of(data), np.random.default_rng(0))


@pytest.mark.parametrize(
    "name",
    [
        "dsgd",
        "fedavg",
        "scaffold",
        "losac",
        "losac_prox",
        "scaffold_prox",
        "fedsaga",
        "mimesvrg",
        "fedcm",
        "fedprox",
        "fedadmm",
    ],
)
def test_the_registry_builds_each_method_with_a_named_problem(name: str) -> None:
    method = algorithms.make(f"optimization/{name}", problem="logistic", learning_rate=0.25)
    assert isinstance(method, Algorithm)
    assert (method.problem, method.learning_rate) == (LogisticRegression(), 0.25)
