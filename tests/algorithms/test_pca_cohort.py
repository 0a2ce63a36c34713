"""Clients that compute side by side get what each gets alone."""

import numpy as np
import pytest

from securefed import Dataset
from securefed.algorithms import FAPS, SupportsBatches
from securefed.algorithms._pca import cohort as pca_cohort
from securefed.algorithms._pca.cohort import StackedGrams
from securefed.algorithms._pca.operators import Gram
from securefed.errors import DivergenceError
from tests.algorithms.rounds import Loop

RNG = np.random.default_rng(0)


def uneven():
    """More rows than features (S formed), fewer, one, and none of a kind alone."""
    return [Dataset(RNG.normal(size=(rows, 12))) for rows in (30, 5, 40, 7, 1, 6, 13)]


@pytest.mark.parametrize(
    "method",
    [
        FAPS(3, tolerance=0.0),
        FAPS(3, tolerance=0.0, inner_rule="bases"),
        FAPS(3, tolerance=0.0, inner_rule="reach", stop="kkt"),
        FAPS(3, tolerance=0.0, inner_steps=4),
    ],
    ids=repr,
)
def test_a_cohort_gives_what_its_clients_give(method):
    assert isinstance(method, SupportsBatches)
    loop = Loop(method, uneven())
    for k in range(14):
        broadcast = method.broadcast(loop.server)
        alone = [method.contribute(client, broadcast, RNG) for client in loop.clients]
        together = method.contribute_together(loop.clients, broadcast, [RNG] * len(loop.clients))
        for (state, sent), (batched_state, batched) in zip(alone, together, strict=True):
            for name, value in sent.items():
                np.testing.assert_allclose(batched[name], value, rtol=1e-10, atol=1e-10 * np.abs(value).max())
            assert batched_state.round == state.round
            assert batched_state.beta == state.beta
            assert batched_state.gram is state.gram
        loop.round(tuple(i for i in range(7) if i != k % 7) if k < 4 else None)  # some begin later than others


def test_groups_keep_within_a_stack(monkeypatch):
    grams = [Gram.of(data.x) for data in uneven()]
    found = list(pca_cohort.groups(grams, [0] * 7))
    assert sorted(client for group in found for client in group) == list(range(7))
    assert any(len(group) > 1 for group in found)
    monkeypatch.setattr(pca_cohort, "STACK_BYTES", 1)
    assert [len(group) for group in pca_cohort.groups(grams, [0] * 7)] == [1] * 7


def test_padding_leaves_the_products_alone():
    grams = [Gram.of(RNG.normal(size=(rows, 12))) for rows in (5, 7, 1)]
    V = RNG.normal(size=(3, 12, 2))
    for got, gram, v in zip(StackedGrams.of(grams).times(V), grams, V, strict=True):
        np.testing.assert_allclose(got, gram.times(v), atol=1e-12)


def test_one_client_that_diverges_leaves_the_others_alone():
    method = FAPS(3, tolerance=0.0)
    loop = Loop(method, [Dataset(RNG.normal(size=(30, 12))) for _ in range(4)])
    loop.round()
    bad = loop.clients[1]
    loop.clients[1] = type(bad)(bad.beta, np.full((12, 3), np.nan), bad.mask, bad.round, bad.distance, bad.gram)
    together = method.contribute_together(loop.clients, method.broadcast(loop.server), [RNG] * 4)
    assert [isinstance(result, DivergenceError) for result in together] == [False, True, False, False]
