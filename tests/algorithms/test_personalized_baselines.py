"""pFedMe, FedADMM and Ditto: fixed points, limits, passes over the rows, batched cohorts, refusals."""

from types import SimpleNamespace

import numpy as np
import pytest

from securefed import Algorithm, Dataset, Federation, Public
from securefed.algorithms import FLAME, Ditto, FedADMM, FedAvg, PFedMe
from securefed.algorithms._optimization.local_steps import passes
from securefed.errors import ConfigError, DataError, DivergenceError
from securefed.problems import SoftmaxRegression, known_smoothness
from tests.algorithms.rounds import Loop
from tests.algorithms.test_personalized_flame import PROBLEM, gradient, make_clients, moreau, random_rounds
from tests.combinations import first_ones

ZERO = SoftmaxRegression(l2=0.1)  # its smoothness at the start is known
METHODS = [FLAME, PFedMe, FedADMM, Ditto]


def slope(data, weights, vector):
    """Norm of the gradient of sum_i weights_i f_i."""
    return np.linalg.norm(np.sum([a * gradient(d, vector) for a, d in zip(weights, data, strict=True)], axis=0))


# ------------------------------------------------------------------------------------------------ pFedMe


def test_pfedme_rests_at_the_minimiser_of_the_moreau_envelopes() -> None:
    data = make_clients(3)
    method = PFedMe(problem=PROBLEM, learning_rate=0.8, attraction=0.4, local_steps=1, inner_steps=40, model_rate=2.5)
    loop = Loop(method, data).run(90)
    w, theta = moreau(data, np.full(3, 1 / 3), 0.4)
    np.testing.assert_allclose(loop.server.vectors["x"], w, atol=1e-7)
    np.testing.assert_allclose([client.memory[0] for client in loop.clients], theta, atol=1e-7)


def test_pfedme_local_rounds_are_gradient_steps_on_the_envelope() -> None:
    """R = 2 updates of K = 3 steps each, both models warm; the server moves by beta times the survivors' mean."""
    data = make_clients(3)
    method = PFedMe(
        problem=PROBLEM,
        learning_rate=0.2,
        attraction=2.0,
        local_steps=2,
        inner_steps=3,
        model_rate=0.1,
        server_step=0.5,
    )
    loop = Loop(method, data)
    w, ends = loop.server.vectors["x"], []
    for d in data:
        w_i = theta = w
        for _ in range(2):
            for _ in range(3):
                theta = theta - 0.2 * (gradient(d, theta) + 2.0 * (theta - w_i))
            w_i = w_i - 0.1 * 2.0 * (w_i - theta)
        ends.append((w_i, theta))
    loop.round((0, 2), dropped=(1,))
    np.testing.assert_allclose(loop.server.vectors["x"], w + 0.5 * (ends[0][0] + ends[2][0] - 2 * w) / 2, atol=1e-14)
    np.testing.assert_allclose(loop.clients[2].memory[0], ends[2][1], atol=1e-14)
    np.testing.assert_array_equal(loop.clients[1].memory[0], w)  # lost: the committed personal model is still w^0


def test_pfedme_holds_a_batch_for_all_steps_of_an_update() -> None:
    method = PFedMe(problem=PROBLEM, local_steps=3, inner_steps=4, batch_size=2)
    parts = method.draw(6, np.random.default_rng(0)).parts
    assert len(parts) == 12
    for update in range(3):
        held = parts[4 * update : 4 * update + 4]
        assert all(np.array_equal(held[0], part) for part in held)
    assert sorted(np.concatenate(parts[::4])) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("settings", [{"local_steps": 1}, {"local_steps": 2}, {"local_steps": 20}, {"local_epochs": 4}])
@pytest.mark.parametrize(
    ("rate", "attraction", "model_rate"), [(0.01, 1.0, 0.05), (0.01, 15.0, 0.05), (0.1, 15.0, 0.1)]
)
def test_the_bound_of_pfedme_is_what_the_worst_gradients_reach(
    settings: dict[str, int], rate: float, attraction: float, model_rate: float
) -> None:
    method = PFedMe(
        problem=PROBLEM, learning_rate=rate, attraction=attraction, inner_steps=5, model_rate=model_rate, **settings
    )
    public = Public.of(make_clients(3))
    bound, _ = method.factors(public)["delta"]
    count = settings.get("local_epochs") or settings["local_steps"] * 5
    # By hand, gradients are constantly 1 where eta lambda <= 1; where it is 1.5, theta - w_i changes sign at each step,
    # and the worst gradients change theirs.
    turn = np.sign(1 - rate * attraction)

    def worst(theta: np.ndarray, step: int) -> np.ndarray:
        return np.full_like(theta, turn**step)

    work = SimpleNamespace(gradient=worst, sizes=(1,) * count)
    sent, _ = method.steps({"x": np.zeros(3)}, (np.zeros(3),), work)
    reached = np.abs(sent["delta"]).max()
    assert reached <= bound * (1 + 1e-12)
    if rate * attraction <= 1 or count <= 5:  # one update, or gradients of one sign: nothing cancels
        assert reached == pytest.approx(bound)


# ------------------------------------------------------------------------------------------------ FedADMM


@pytest.mark.parametrize("pull", [0.5, 1.0, 1.8, 2.1])
@pytest.mark.parametrize("settings", [{"local_steps": 1}, {"local_steps": 5}, {"local_steps": 30}, {"local_epochs": 4}])
@pytest.mark.parametrize("kind", [FLAME, FedADMM])
def test_planned_bounds_hold_for_the_worst_gradients_also_where_steps_overshoot(
    kind: type, settings: dict[str, int], pull: float
) -> None:
    """Where eta lambda (for FedADMM eta rho), here `pull`, is above 1, each step changes the sign of the distance.

    The worst gradients, of entries 1, then change their sign with it. The bound is 8 reaches, the first dz 2 of them.
    """
    rate = 0.1
    pulled = {"attraction": pull / rate, "penalty": 3.0} if kind is FLAME else {"penalty": pull / rate}
    method, public = kind(problem=PROBLEM, learning_rate=rate, **pulled, **settings), Public.of(make_clients(3))
    bound, _ = method.factors(public)["dz"]
    turn = np.sign(1 - pull) if pull != 1 else 1.0

    def worst(theta: np.ndarray, step: int) -> np.ndarray:
        return np.full_like(theta, turn**step)

    work = SimpleNamespace(gradient=worst, sizes=(1,) * method.most_steps(public), rows=6, public=public)
    zeros = np.zeros(3)
    sent, _ = method.steps({"x": zeros}, (zeros,) * (3 if kind is FLAME else 2), work)
    reached = np.abs(sent["dz"]).max()
    assert bound / 8 <= reached <= bound / 4 * (1 + 1e-12)
    if pull > 1:
        assert reached == pytest.approx(bound / 4)


@pytest.mark.parametrize(("weighting", "begin"), first_ones([("uniform", "local"), ("rows", "global")]))
def test_fedadmm_rests_at_the_centralised_optimum(weighting: str, begin: str) -> None:
    data = make_clients(4)
    method = FedADMM(problem=PROBLEM, learning_rate=0.4, local_steps=5, penalty=0.5, weighting=weighting, begin=begin)
    loop = Loop(method, data)
    for _ in random_rounds(loop, 500, seed=3):
        pass
    rows = np.array([d.rows for d in data], float)
    weights, others = rows / rows.sum(), np.full(4, 0.25)
    if weighting == "uniform":
        weights, others = others, weights
    x = loop.server.vectors["x"]
    assert slope(data, weights, x) < 1e-8
    assert slope(data, others, x) > 1e-4, "the other weights have another optimum"
    np.testing.assert_allclose([client.memory[0] for client in loop.clients], np.tile(x, (4, 1)), atol=1e-7)
    z = [client.memory[0] + client.memory[1] / method.penalty for client in loop.clients]
    np.testing.assert_allclose(x, np.mean(z, axis=0), atol=1e-12)


def test_fedadmm_steps_begin_where_they_are_told_to() -> None:
    data = make_clients(3)
    for begin in ("global", "local"):
        loop = Loop(FedADMM(problem=PROBLEM, learning_rate=0.3, local_steps=2, penalty=0.5, begin=begin), data).run(2)
        w, (x, pi) = loop.server.vectors["x"], loop.clients[1].memory
        x = w if begin == "global" else x
        for _ in range(2):
            x = x - 0.3 * (gradient(data[1], x) + pi + 0.5 * (x - w))
        loop.round()
        np.testing.assert_allclose(loop.clients[1].memory[0], x, atol=1e-13)
        np.testing.assert_allclose(loop.clients[1].memory[1], pi + 0.5 * (x - w), atol=1e-13)


# ------------------------------------------------------------------------------------------------ Ditto


@pytest.mark.parametrize("attraction", [0.0, 0.7])
def test_the_shared_part_of_ditto_is_fedavg_bit_for_bit(attraction: float) -> None:
    data = make_clients(4)
    settings = {"problem": PROBLEM, "learning_rate": 0.1, "local_epochs": 2, "batch_size": 4}
    ditto = Ditto(attraction=attraction, initial_seed=5, **settings)

    class Started(FedAvg):
        def start(self, public, rng):
            return ditto.start(public, rng)

    ours = Federation(ditto, data, seed=3, cohort=3).run(6)
    theirs = Federation(Started(**settings), data, seed=3, cohort=3).run(6)
    for name, value in theirs.output.items():
        np.testing.assert_array_equal(ours.output[name], value)
    assert len(ours.personal) == 4
    assert not theirs.personal


def test_ditto_without_attraction_is_local_training() -> None:
    data = make_clients(3)
    loop = Loop(Ditto(problem=PROBLEM, learning_rate=0.3, local_steps=4, attraction=0.0), data)
    v = loop.server.vectors["x"]
    loop.run(3)
    for _ in range(12):
        v = v - 0.3 * gradient(data[1], v)
    np.testing.assert_allclose(loop.clients[1].memory[0], v, atol=1e-13)
    assert np.abs(loop.server.vectors["x"] - v).max() > 1e-2


def test_ditto_rests_where_the_gradient_balances_the_attraction() -> None:
    data = make_clients(3)
    loop = Loop(Ditto(problem=PROBLEM, learning_rate=0.3, local_steps=4, attraction=0.7), data).run(150)
    w = loop.server.vectors["x"]
    for d, client in zip(data, loop.clients, strict=True):
        v = client.memory[0]
        np.testing.assert_allclose(gradient(d, v) + 0.7 * (v - w), 0, atol=1e-7)


# ------------------------------------------------------------------------------------------------ common


def test_passes_visit_every_row_once_an_epoch_and_keep_the_last_batch() -> None:
    parts = passes(11, 4, 3, np.random.default_rng(0))
    assert [len(part) for part in parts] == [4, 4, 3] * 3
    epochs = [np.concatenate(parts[k : k + 3]) for k in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(11)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
    for size in (None, 11, 40):
        assert passes(11, size, 2, np.random.default_rng(0)) == [slice(None)] * 2


@pytest.mark.parametrize("method", [FedAvg, *METHODS])
def test_clients_with_more_rows_make_more_steps(method) -> None:
    data = [make_clients(1, rows=n)[0] for n in (3, 8, 13)]
    algorithm = method(problem=PROBLEM, local_epochs=2, batch_size=5)
    counts = [len(algorithm.draw(d.rows, np.random.default_rng(0)).parts) for d in data]
    assert counts == [2, 4, 6]
    assert algorithm.most_steps(Public.of(data)) == 6
    longer = method(problem=PROBLEM, local_epochs=4, batch_size=5).layout(Public.of(data))
    for more, less in zip(longer, algorithm.layout(Public.of(data)), strict=True):
        assert more.bound > less.bound or method in (FLAME, PFedMe), "reach ends at 1 / lambda"


@pytest.mark.parametrize("settings", [{"local_steps": 3}, {"local_epochs": 2, "batch_size": 3}])
@pytest.mark.parametrize("method", METHODS)
def test_a_batched_cohort_is_the_loop(method, settings: dict) -> None:
    data = make_clients(6)
    algorithm = method(problem=PROBLEM, learning_rate=0.2, **settings)
    assert isinstance(algorithm, Algorithm)
    federation = Federation(algorithm, data, seed=2, cohort=4)
    federation.run(4)
    clients = [node.state.committed for node in federation.nodes.values()]
    broadcast = algorithm.broadcast(federation.state)
    together = algorithm.contribute_together(clients, broadcast, [np.random.default_rng(k) for k in range(6)])
    for k, (client, (state, sent)) in enumerate(zip(clients, together, strict=True)):
        alone, expected = algorithm.contribute(client, broadcast, np.random.default_rng(k))
        for name, value in expected.items():
            np.testing.assert_allclose(sent[name], value, atol=1e-10)
        for ours, theirs in zip(state.pending, alone.pending, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_everybody_starts_from_the_same_model(method) -> None:
    data = make_clients(3)
    starts = [Loop(method(problem=PROBLEM, initial_seed=s), data, seed=k) for s, k in ((1, 0), (1, 9), (2, 0))]
    x = [loop.server.vectors["x"] for loop in starts]
    np.testing.assert_array_equal(x[0], x[1])
    assert np.abs(x[0] - x[2]).max() > 0.01
    for loop, start in zip(starts, x, strict=True):
        np.testing.assert_array_equal(loop.clients[1].memory[0], start)


def test_a_personal_model_that_blows_up_is_refused_though_it_is_not_sent() -> None:
    data = make_clients(2)
    loop = Loop(Ditto(problem=PROBLEM, learning_rate=1.0, attraction=1e4, local_steps=5), data)
    with pytest.raises(DivergenceError, match="'personal'"):
        loop.round()


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (PFedMe, {"attraction": 0.0}, r"attraction \(lambda\) must be a positive"),
        (PFedMe, {"model_rate": 0.0}, "model_rate must be a positive"),
        (PFedMe, {"server_step": -0.5}, r"server_step \(beta\) must be a positive"),
        (PFedMe, {"inner_steps": 0}, "inner_steps must be an integer of at least 1"),
        (FedADMM, {"penalty": 0.0}, r"penalty \(rho\) must be a positive"),
        (FedADMM, {"begin": "server"}, "begin must be one of 'global', 'local'"),
        (FedADMM, {"weighting": "none"}, "weighting must be one of 'uniform', 'rows'"),
        (Ditto, {"attraction": -1.0}, r"attraction \(lambda\) must be a finite number of at least 0"),
        (Ditto, {"weighting": "none"}, "weighting must be one of 'rows', 'uniform'"),
        (Ditto, {"local_steps": 0}, "local_steps must be an integer of at least 1"),
        (FedAvg, {"local_epochs": 0}, "local_epochs must be an integer of at least 1"),
    ],
)
def test_settings_outside_their_domain_are_refused(method, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        method(**settings)


@pytest.mark.parametrize("method", METHODS)
def test_steps_too_long_for_the_curvature_are_refused_with_the_largest_that_is_not(method) -> None:
    data = make_clients(3)
    settings = {"penalty": 4.0} if method is FedADMM else {"attraction": 4.0}
    steepest = max(known_smoothness(ZERO, d, 3) for d in data)
    largest = 2 / (steepest + 4.0)  # m a_i = 1 where all clients weigh the same
    Loop(method(problem=ZERO, learning_rate=0.999 * largest, **settings), data)
    with pytest.raises(ConfigError, match=rf"learning_rate \* curvature > 2.*take learning_rate <= {largest:.4g}"):
        Loop(method(problem=ZERO, learning_rate=1.001 * largest, **settings), data)


def test_beyond_the_refused_step_flame_does_diverge() -> None:
    """The refusal is not empty. A random start, however near to zero, leaves the smoothness unknown, so it passes."""
    near = SoftmaxRegression(l2=0.1, initial_scale=1e-6)
    data = make_clients(2)
    attraction, moved = 4.0, {}
    for problem, factor in ((ZERO, 0.9), (near, 1.2)):
        rate = factor * 2 / (attraction + max(known_smoothness(ZERO, d, 3) for d in data))
        loop = Loop(FLAME(problem=problem, attraction=attraction, learning_rate=rate, local_steps=80), data)
        state, _ = loop.algorithm.contribute(loop.clients[0], loop.algorithm.broadcast(loop.server), None)
        moved[factor] = np.abs(state.pending[0]).max()
    assert moved[0.9] < 1 < moved[1.2]


@pytest.mark.parametrize("method", METHODS)
def test_a_client_without_labels_is_refused_by_name(method) -> None:
    with pytest.raises(DataError, match="needs labels"):
        Loop(method(problem=PROBLEM), [*make_clients(2), Dataset(np.ones((3, 4)))])
