"""FLAME's rows behind a network: exact where units tell rows apart, and the misfit says where they do not."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, Public
from securefed.algorithms import FLAME, FedAvg
from securefed.attacks import Target, views
from securefed.attacks._networks.row_separation import FirstLayerGradient, separate
from securefed.attacks._personal import FLAMENetworkInversion
from securefed.attacks.scores import sample_error
from securefed.errors import TranscriptError
from securefed.problems import DenseNetwork, SoftmaxRegression
from tests.combinations import first_ones

NETWORK = DenseNetwork(hidden=(24,), precision="float64")


def scene(method, rows=3, rounds=8, seed=0):
    """(what the server sees of client 1, target, client 1) on random rows in [-1, 1], three classes."""
    rng = np.random.default_rng(seed)
    clients = [Dataset(rng.uniform(-1, 1, (rows, 12)), rng.integers(0, 3, rows)) for _ in range(3)]
    federation = Federation(method, clients, seed=seed, public=Public(3, 3, 12, (rows,) * 3, 3, 1.0))
    federation.run(rounds)
    return views.server(federation.transcript, 1), Target(method, federation.public), clients[1]


def attack(method, **scenery):
    observed, target, client = scene(method, **scenery)
    return FLAMENetworkInversion().run(observed, target, np.random.default_rng(0)), client


def separated(weight, bias, rows):
    """The rows behind the gradients (rounds, units, features) and (rounds, units) of a first layer."""
    together = FirstLayerGradient(weight.reshape(-1, weight.shape[-1]), bias.reshape(-1))
    return separate(together, rows, np.random.default_rng(0))


def slopes(rng, rounds, units, cut):
    """(rounds, units, rows) random ones, 0 where `cut` (units, rows)."""
    return rng.normal(size=(rounds, units, cut.shape[1])) * ~cut


def test_rows_are_told_apart_exactly_by_the_units_that_cut_them_off() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 10))
    d = slopes(rng, 6, 20, rng.random((20, 4)) < 0.5)
    found = separated(d @ x, d.sum(axis=2), 4)
    assert found is not None
    assert sample_error(found, x) < 1e-11


def test_rows_that_no_unit_tells_apart_are_not_guessed() -> None:
    rng = np.random.default_rng(0)
    x, cut = rng.normal(size=(4, 10)), rng.random((20, 4)) < 0.5
    cut[:, 1] = cut[:, 0]  # every unit that row 0 reaches, row 1 reaches
    d = slopes(rng, 6, 20, cut)
    assert separated(d @ x, d.sum(axis=2), 4) is None
    d = slopes(rng, 1, 20, rng.random((20, 4)) < 0.5)  # one round: a unit shows one combination, of how many rows?
    assert separated(d @ x, d.sum(axis=2), 4) is None


def test_a_unit_that_one_round_alone_shows_is_no_evidence() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 10))
    d = slopes(rng, 6, 20, rng.random((20, 3)) < 0.5)
    d[:, 0], d[2, 0] = 0.0, 1.0  # all three rows, in round 2 only: one direction, and no row's
    found = separated(d @ x, d.sum(axis=2), 3)
    assert found is not None
    assert sample_error(found, x) < 1e-11


@pytest.mark.parametrize(
    "method",
    [FLAME(problem=NETWORK, learning_rate=0.05), FLAME(problem=NETWORK, anchor="global", weighting="rows")],
    ids=["local", "global"],
)
def test_rows_and_labels_are_exact_though_labels_are_unknown(method) -> None:
    found, client = attack(method)
    assert found.diagnostics["stage"] == "separation"
    assert sample_error(found.value, client.x) < 1e-12
    assert sorted(found.labels) == sorted(client.labels())
    assert found.residual < 1e-11


def test_one_row_is_a_ratio() -> None:
    found, client = attack(FLAME(problem=NETWORK), rows=1, rounds=2)
    assert found.diagnostics["stage"] == "ratio"
    assert sample_error(found.value, client.x) < 1e-12


def test_a_penalty_costs_digits() -> None:
    found, client = attack(FLAME(problem=replace(NETWORK, l2=0.01)))
    assert found.diagnostics["stage"] == "separation"
    assert 1e-10 < sample_error(found.value, client.x) < 1e-3


def test_rows_that_no_unit_separates_are_refused_in_words() -> None:
    observed, target, _ = scene(FLAME(problem=replace(NETWORK, hidden=(2,))))
    with pytest.raises(TranscriptError, match="do not separate"):
        FLAMENetworkInversion().run(observed, target, np.random.default_rng(0))


def test_batches_need_not_be_known() -> None:
    found, client = attack(FLAME(problem=NETWORK, batch_size=1, learning_rate=0.05))
    assert found.diagnostics["batches assumed"]
    assert sample_error(found.value, client.x) < 1e-11
    assert found.residual > 1e-3  # of simulated steps whose batches are guessed


@pytest.mark.parametrize("wrong", first_ones([{"local_epochs": 6}, {"penalty": 0.011}, {"attraction": 5.5}]))
def test_wrong_hyper_parameters_show_in_the_residual(wrong) -> None:
    method = FLAME(problem=NETWORK, learning_rate=0.05)
    observed, target, _ = scene(method, rows=2, rounds=5)
    short = FLAMENetworkInversion()
    assert short.run(observed, target, np.random.default_rng(0)).residual < 1e-11
    mistaken = replace(target, algorithm=replace(method, **wrong))
    assert short.run(observed, mistaken, np.random.default_rng(0)).residual > 1e-5


def test_what_it_is_not_for_is_refused_in_words() -> None:
    observed, target, _ = scene(FLAME(problem=NETWORK), rounds=2)
    behind = FLAMENetworkInversion()
    for method, word in ((FedAvg(problem=NETWORK), "FLAME"), (FLAME(problem=SoftmaxRegression()), "networks")):
        assert word in str(behind.applies(replace(target, algorithm=method), observed))
    assert "largest" in str(replace(behind, largest=2).applies(target, observed))
    several = replace(observed, rounds=tuple(replace(o, members=frozenset({0, 1})) for o in observed.rounds))
    assert "sum" in str(behind.applies(target, several))
    huge = replace(target, public=replace(target.public, features=10**10))
    assert "limit" in str(behind.applies(huge, observed))
    silent = replace(observed, rounds=tuple(replace(o, broadcast={}) for o in observed.rounds))
    with pytest.raises(TranscriptError, match="no broadcast"):
        behind.run(silent, target, np.random.default_rng(0))
