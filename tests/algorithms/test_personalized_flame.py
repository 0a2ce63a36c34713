"""FLAME: Lemma 2 and the running mean under every schedule, the centralised limits, biased selection, refusals."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from securefed import Algorithm, Dataset, Federation, Public
from securefed._persistence.packing import pack, restore
from securefed.algorithms import FLAME, RoundOutcome, SupportsClientSelection
from securefed.errors import ConfigError
from securefed.problems import SoftmaxRegression
from tests.algorithms.rounds import Loop
from tests.combinations import first_ones

PROBLEM = SoftmaxRegression(l2=0.1, initial_scale=0.3)


def make_clients(count, rows=6, seed=0):
    rng = np.random.default_rng(seed)
    sizes = [rows + k % 3 for k in range(count)]
    return [Dataset(rng.uniform(-1, 1, (n, 4)), np.append(rng.integers(3, size=n - 1), 2)) for n in sizes]


def flame(**settings):
    return FLAME(**({"problem": PROBLEM, "learning_rate": 0.2, "attraction": 1.0, "penalty": 0.5} | settings))


def gradient(data, vector):
    model = Loop(flame(), [data]).clients[0].model
    return model.gradient(vector, data, slice(None))


def shares(method, data):
    rows = np.array([d.rows for d in data], float)
    return rows / rows.sum() if method.weighting == "rows" else np.full(len(data), 1 / len(data))


def moreau(data, weights, attraction):
    """Minimiser (w, theta) of (6), all blocks at once."""
    size = Loop(flame(), data).server.vectors["x"].size
    model = Loop(flame(), data).clients[0].model

    def value(flat):
        w, *theta = flat.reshape(-1, size)
        out, slope = 0.0, np.zeros((len(data) + 1, size))
        for i, (a, d, t) in enumerate(zip(weights, data, theta, strict=True)):
            loss = PROBLEM.loss(model.layout.unflatten(t), d.x, d.y)
            out += a * (loss + 0.5 * attraction * np.sum((t - w) ** 2))
            slope[1 + i] = a * (model.gradient(t, d, slice(None)) + attraction * (t - w))
            slope[0] -= a * attraction * (t - w)
        return out, slope.ravel()

    start = np.zeros((len(data) + 1) * size)
    found = minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}).x.reshape(-1, size)
    return found[0], found[1:]


def random_rounds(loop, rounds, seed):
    """Each client takes part with probability .6; a third of those are lost after contributing."""
    rng, count = np.random.default_rng(seed), len(loop.clients)
    for _ in range(rounds):
        role = rng.choice(3, size=count, p=[0.4, 0.4, 0.2])
        survivors = tuple(int(i) for i in np.flatnonzero(role == 1)) or (0,)
        loop.round(survivors, tuple(int(i) for i in np.flatnonzero(role == 2) if i not in survivors))
        yield


# ------------------------------------------------------------------------------------------------ invariants


@pytest.mark.parametrize("anchor", ["local", "global"])
@pytest.mark.parametrize("weighting", ["uniform", "rows"])
def test_the_dual_and_the_mean_of_all_z_under_every_schedule(anchor: str, weighting: str) -> None:
    data = make_clients(5)
    method = flame(anchor=anchor, weighting=weighting, initial_seed=3)
    loop, share = Loop(method, data), shares(method, data)
    seen = set()
    for _ in random_rounds(loop, 30, seed=1):
        z = []
        for a, client in zip(share, loop.clients, strict=True):
            theta, w_i, pi = client.memory
            np.testing.assert_allclose(pi, method.attraction * a * (theta - w_i), atol=1e-13)  # Lemma 2
            z.append(w_i + pi / method.penalty)
        np.testing.assert_allclose(loop.server.vectors["x"], np.mean(z, axis=0), atol=1e-12)  # (12), stale ones too
        seen |= set(loop.sent)
    assert seen == set(range(5))


def test_a_client_that_never_took_part_counts_as_the_start() -> None:
    loop = Loop(flame(initial_seed=3), make_clients(4))
    start = loop.server.vectors["x"]
    assert np.abs(start).max() > 0.1
    for _ in range(5):
        loop.round((0, 2))
    joined = [client.memory[1] + client.memory[2] / 0.5 for client in (loop.clients[0], loop.clients[2])]
    np.testing.assert_allclose(loop.server.vectors["x"], (joined[0] + joined[1] + 2 * start) / 4, atol=1e-13)
    personal = loop.algorithm.personal(loop.clients[1])
    np.testing.assert_array_equal(loop.clients[1].model.flatten(personal), start)


def test_committing_lost_contributions_breaks_the_mean() -> None:
    """Positive control of the roll-back."""
    method = flame()
    loop = Loop(method, make_clients(3))
    for _ in range(3):
        state, _ = method.contribute(loop.clients[2], method.broadcast(loop.server), None)
        loop.round((0, 1))
        loop.clients[2] = method.commit(state, RoundOutcome(True, None))
    z = [client.memory[1] + client.memory[2] / method.penalty for client in loop.clients]
    assert np.abs(loop.server.vectors["x"] - np.mean(z, axis=0)).max() > 1e-2


# ------------------------------------------------------------------------------------------------ limits


def test_one_client_is_the_centralised_admm() -> None:
    """Independent lines, in the Lagrangian's own terms (8)-(12), for m = 1 and a = 1."""
    data = make_clients(1)
    method = flame(local_steps=4)
    loop = Loop(method, data)
    w = theta = w_1 = loop.server.vectors["x"]
    pi = np.zeros_like(w)
    for _ in range(9):
        for _ in range(4):
            theta = theta - 0.2 * (gradient(data[0], theta) + 1.0 * (theta - w_1))
        w_1 = (1.0 * theta + 0.5 * w - pi) / 1.5  # stationary point of (8) in w_i
        pi = pi + 0.5 * (w_1 - w)
        w = w_1 + pi / 0.5  # stationary point of (8) in w
        loop.round()
        np.testing.assert_allclose(loop.server.vectors["x"], w, atol=1e-12)
        np.testing.assert_allclose(loop.clients[0].memory[0], theta, atol=1e-12)


@pytest.mark.parametrize(("anchor", "weighting"), first_ones([("local", "rows"), ("global", "uniform")]))
def test_it_converges_to_the_minimiser_of_the_moreau_envelopes(anchor: str, weighting: str) -> None:
    data = make_clients(3)
    method = flame(anchor=anchor, weighting=weighting, learning_rate=0.5, local_steps=4)
    w, theta = moreau(data, shares(method, data), method.attraction)
    loop = Loop(method, data)
    for k, _ in enumerate(random_rounds(loop, 900, seed=2)):
        if k % 100 == 99 and np.abs(loop.server.vectors["x"] - w).max() < 1e-8:
            break
    np.testing.assert_allclose(loop.server.vectors["x"], w, atol=1e-7)
    np.testing.assert_allclose([client.memory[0] for client in loop.clients], theta, atol=1e-7)


def test_the_anchors_agree_in_the_first_round_and_differ_as_stated_in_the_second() -> None:
    data = make_clients(3)
    ends = {}
    for anchor in ("local", "global"):
        loop = Loop(flame(anchor=anchor, local_steps=3), data)
        loop.round()
        first = loop.clients[1].memory
        w = loop.server.vectors["x"]
        loop.round()
        theta, target = first[0], first[1] if anchor == "local" else w
        for _ in range(3):
            theta = theta - 0.2 * (gradient(data[1], theta) + 1.0 * (theta - target))
        np.testing.assert_allclose(loop.clients[1].memory[0], theta, atol=1e-13)
        ends[anchor] = first, loop.clients[1].memory
    np.testing.assert_array_equal(ends["local"][0], ends["global"][0])
    assert np.abs(ends["local"][1][0] - ends["global"][1][0]).max() > 1e-3


# ------------------------------------------------------------------------------------------------ the contract


def test_it_implements_the_protocols_and_its_states_can_be_stored() -> None:
    assert isinstance(flame(), Algorithm)
    assert isinstance(flame(), SupportsClientSelection)
    loop = Loop(flame(), make_clients(2)).run(2)
    for state in (loop.server, *loop.clients):
        restored = restore(state, pack(state))
        for name in ("vectors", "memory"):
            if hasattr(state, name):
                np.testing.assert_equal(getattr(restored, name), getattr(state, name))


def test_evaluation_sums_the_personal_model_beside_the_global_one() -> None:
    data = make_clients(3)
    method = flame(local_steps=5)
    federation = Federation(method, data, seed=1)
    result = federation.run(4, evaluate_every=4)
    metrics = result.history[-1].metrics
    own = [PROBLEM.measure(result.personal[i], d.x, d.y) for i, d in enumerate(data)]
    both = [PROBLEM.measure(result.output, d.x, d.y) for d in data]
    for name in ("loss", "correct"):
        assert metrics[f"personal_{name}"] == pytest.approx(sum(sums[name] for sums in own), rel=1e-12)
        assert metrics[name] == pytest.approx(sum(sums[name] for sums in both), rel=1e-12)
    assert metrics["personal_loss"] < metrics["loss"]
    assert set(metrics) == {s.name for s in method.evaluation_layout(federation.public)} | {"clients"}


def test_bounds_cover_rounds_of_the_papers_setting() -> None:
    """The planned bound of dz holds where steps are full batches and nobody is stale."""
    data = make_clients(6)
    for anchor in ("local", "global"):
        method = flame(anchor=anchor, learning_rate=0.01, attraction=5.0, penalty=0.01, local_steps=60)
        loop = Loop(method, data)
        for _ in range(20):
            loop.round()
            for sent in loop.sent.values():
                method.layout(loop.public).check(sent)


# ------------------------------------------------------------------------------------------------ biased selection


def biased(candidates=4, **settings):
    return flame(selection="biased", candidates=candidates, **settings)


def test_uniform_selection_reveals_nothing() -> None:
    assert flame().reveals == {}
    assert set(biased().reveals) == {"gradient_norm"}


def test_the_norm_is_that_of_equation_nine_before_the_broadcast() -> None:
    data = make_clients(4)
    loop = Loop(biased(), data).run(3)
    theta, w_i, _ = loop.clients[2].memory
    expected = np.linalg.norm(gradient(data[2], theta) + 1.0 * (theta - w_i))
    found = loop.algorithm.reveal(loop.clients[2], np.random.default_rng(0))
    assert found == {"gradient_norm": pytest.approx(expected, rel=1e-12)}
    fresh = Loop(biased(), data)
    start = np.linalg.norm(gradient(data[2], fresh.server.vectors["x"]))  # theta = w_i = w^0
    assert fresh.algorithm.reveal(fresh.clients[2], np.random.default_rng(0))["gradient_norm"] == pytest.approx(start)


def test_a_batch_of_the_rows_is_used() -> None:
    loop = Loop(biased(batch_size=2), make_clients(4))
    norms = {loop.algorithm.reveal(loop.clients[0], np.random.default_rng(k))["gradient_norm"] for k in range(9)}
    assert len(norms) > 3


def test_the_largest_norms_take_part() -> None:
    revealed = {4: {"gradient_norm": 1.0}, 1: {"gradient_norm": 3.0}, 7: {"gradient_norm": 2.0}}
    assert biased().choose(revealed, 2) == (1, 7)
    assert biased().choose(revealed, 5) == (1, 4, 7), "fewer answers than places"
    tie = {k: {"gradient_norm": 1.0} for k in (5, 3, 9)}
    assert biased().choose(tie, 2) == (3, 5)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": 0.0}, r"penalty \(rho\) must be a positive"),
        ({"penalty": -1.0}, r"penalty \(rho\) must be a positive"),
        ({"penalty": float("nan")}, r"penalty \(rho\) must be a positive"),
        ({"attraction": 0.0}, r"attraction \(lambda\) must be a positive"),
        ({"attraction": float("inf")}, r"attraction \(lambda\) must be a positive"),
        ({"local_steps": 0}, "local_steps must be an integer of at least 1"),
        ({"local_epochs": 0}, "local_epochs must be an integer of at least 1"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"weighting": "size"}, "weighting must be one of 'uniform', 'rows'"),
        ({"anchor": "server"}, "anchor must be one of 'local', 'global'"),
        ({"selection": "greedy"}, "selection must be one of 'uniform', 'biased'"),
        ({"selection": "biased"}, "the number of clients that are asked"),
        ({"candidates": 3}, "the number of clients that are asked"),
        ({"initial_seed": -1}, "initial_seed must be an integer of at least 0"),
    ],
)
def test_settings_outside_their_domain_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        flame(**settings)


def test_candidates_must_fill_the_cohort_and_exist() -> None:
    public = Public.of(make_clients(6), cohort=3)
    assert biased(3).layout(public).names == biased(6).layout(public).names
    for candidates in (2, 7):
        with pytest.raises(ConfigError, match=rf"between the cohort \(3\) and the clients \(6\), not {candidates}"):
            biased(candidates).layout(public)


def test_clients_of_one_class_and_of_one_row_work() -> None:
    data = [*make_clients(2), Dataset(np.ones((4, 4)), np.zeros(4, int)), Dataset(np.ones((1, 4)), np.array([1]))]
    loop = Loop(flame(batch_size=None), data).run(5)
    assert all(np.isfinite(client.memory[0]).all() for client in loop.clients)
    assert replace(loop.server).round == 5
