"""Guarded FAPS: what its rounds are, when it tries a block, and what it does with the result."""

from dataclasses import replace

import numpy as np
import pytest

from securefed._persistence.packing import pack, restore
from securefed.algorithms._pca import FAPS, SSI, GuardedFAPS
from securefed.algorithms._pca.operators import off, orth
from securefed.datasets._base import Dataset
from securefed.datasets._spectral_matrices import geometric, spectral
from securefed.errors import ConfigError
from tests.algorithms.rounds import Loop, digits


def slow(sizes=(400,) * 4, ratio=1.01, seed=3):
    return list(spectral(geometric(60, ratio), sizes, np.random.default_rng(seed)).clients)


def by_label(clients=10):
    data = digits(1)[0]
    from sklearn.datasets import load_digits  # noqa: PLC0415

    order = np.argsort(load_digits().target, kind="stable")
    rows = load_digits().data / 16
    assert rows.shape == data.x.shape
    return [Dataset(rows[part]) for part in np.array_split(order, clients)]


def blocks_of(loop, rounds):
    """The flag of each round."""
    return [int(loop.round()["block"]) for _ in range(rounds)]


def test_it_begins_as_ssi_and_sends_what_ssi_sends():
    guarded, plain = Loop(GuardedFAPS(3), digits()), Loop(SSI(3), digits())
    for _ in range(3):  # too few rounds for a rate, so nothing is relaxed yet
        guarded.round(), plain.round()
        np.testing.assert_array_equal(guarded.sent[1]["product"], plain.sent[1]["product"])
        np.testing.assert_array_equal(guarded.server.basis, plain.server.basis)


def test_a_relaxed_step_shrinks_each_pair_as_documented():
    """Near the solution the part of column j along eigenvector l shrinks by 1 - (1 - lambda_l / lambda_j) / .6."""
    values = np.array([1.0, 0.95, 0.9, 0.5, 0.1])
    clients = [Dataset(np.diag(np.sqrt(values)))]
    loop = Loop(GuardedFAPS(2), clients)
    Z = orth(np.eye(5)[:, :2] + 1e-6 * np.array([[0, 0]] * 2 + [[1, 1]] * 3))
    loop.server = replace(loop.server, basis=Z, relaxed=True)
    loop.round()
    after, before = loop.server.basis[2:], Z[2:]
    np.testing.assert_allclose(after / before, 1 - (1 - values[2:, None] / values[None, :2]) / 0.6, rtol=1e-5)


def test_blocks_are_faps_begun_anew_at_the_basis():
    loop = Loop(GuardedFAPS(3, tolerance=0.0, patience=4), slow())
    flags = []
    while not flags or flags[-1] == 0:
        start = loop.server.basis
        flags += blocks_of(loop, 1)
    assert flags[:4] == [0] * 4
    assert flags[-1] == 1
    Z, data = start, slow()[2]
    S = data.x.T @ data.x
    expected = 0.15 * np.linalg.eigvalsh(S)[-1] * Z + off(Z, S @ Z)  # the first message of FAPS
    np.testing.assert_allclose(loop.sent[2]["product"], expected, atol=1e-12)
    reference = Loop(FAPS(3, inner_rule="reach", tolerance=0.0), slow())
    reference.server = replace(reference.server, basis=start)
    reference.round()
    for _ in range(3):
        if blocks_of(loop, 1) == [0]:
            break
        reference.round()
        np.testing.assert_allclose(loop.sent[0]["product"], reference.sent[0]["product"], atol=1e-10)


@pytest.mark.parametrize("clients", [slow(), slow(sizes=(100, 300, 500, 700)), slow(ratio=1.1), by_label()])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_takes_no_more_rounds_than_ssi(clients, seed):
    energy = sum(float(np.vdot(data.x, data.x)) for data in clients)
    rounds = []
    for kind in (SSI, GuardedFAPS):
        loop = Loop(kind(3, stop="kkt", tolerance=2e-6 * energy), clients, seed=seed)
        while loop.algorithm.finished(loop.server) is None:
            loop.round()
        assert "KKT" in loop.algorithm.finished(loop.server)
        rounds.append(loop.server.round)
    assert rounds[1] <= rounds[0]


def test_a_failed_block_is_taken_back_and_the_wait_doubles():
    loop = Loop(GuardedFAPS(3, tolerance=0.0, patience=4), slow())
    entered = replace(
        loop.run(6).server, entry=1e-30, entry_rate=0.9, entry_basis=np.eye(60, 3), block=0, length=4, done=4
    )
    loop.server = entered
    loop.round()
    np.testing.assert_array_equal(loop.server.basis, np.eye(60, 3))
    assert (loop.server.wait, loop.server.entry, loop.server.block) == (8, None, 0)
    loop.server = replace(entered, entry=1e30)  # positive control: a residual far below goes on with a longer block
    loop.round()
    assert (loop.server.block, loop.server.length) == (entered.blocks, 8)


def test_residuals_of_different_survivors_are_not_compared():
    loop = Loop(GuardedFAPS(3, tolerance=0.0, patience=1), slow())
    for k in range(20):
        assert int(loop.round(tuple(i for i in range(4) if i != k % 4))["block"]) == 0
    loop = Loop(GuardedFAPS(3, tolerance=0.0, patience=4), slow())
    while loop.server.block == 0:
        loop.round()
    loop.round((0, 1))
    assert loop.server.block == 0
    loop.round((0, 1))
    assert loop.server.wait == 8


def test_states_pack_in_the_middle_of_a_block():
    algorithm = GuardedFAPS(3, tolerance=0.0, patience=4)
    straight, left, fresh = (Loop(algorithm, slow()) for _ in range(3))
    while left.server.block == 0:
        left.round(), straight.round()
    left.round(), straight.round()
    fresh.server = restore(fresh.server, pack(left.server))
    fresh.clients = [restore(new, pack(old)) for new, old in zip(fresh.clients, left.clients, strict=True)]
    for _ in range(6):
        fresh.round(), straight.round()
    np.testing.assert_array_equal(fresh.server.basis, straight.server.basis)


def test_patience_below_one_is_refused():
    with pytest.raises(ConfigError, match="patience"):
        GuardedFAPS(2, patience=0)
