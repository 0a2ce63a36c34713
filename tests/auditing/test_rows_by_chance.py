"""Plausible rows that know nothing of any client are no leak, and true rows are one however many stand beside them."""

from __future__ import annotations

import numpy as np
import pytest

from securefed._auditing.cases.case import Prepared
from securefed._auditing.engine.results import CLIENT
from securefed._auditing.own.client_secrets import SecretData
from securefed._auditing.registered.scoring import assess
from securefed._public import Public
from securefed.attacks._base import Reconstruction
from securefed.attacks.scores import leakage
from securefed.datasets._base import Dataset

CLIENTS, ROWS = 5, 12
EVERYONE = frozenset(range(CLIENTS))


def leaks(seed: int, *, own: bool, known: bool, members: frozenset[int]) -> float:
    """Score an estimate that holds rows of all members: true ones where `known`, else others of the same kind."""
    rng = np.random.default_rng(seed)
    data = np.clip(rng.normal(size=(300, 3)) @ rng.normal(size=(3, 8)), -5, 5)
    clients = [Dataset(part) for part in np.split(data[: CLIENTS * ROWS], CLIENTS)]
    plausible = data[100 : 100 + ROWS * len(members)]
    value = np.concatenate([clients[i].x for i in sorted(members)]) if known else plausible
    estimate, public = Reconstruction("samples", value, members=members), Public.of(clients)
    if own:
        judged = SecretData(clients, public, 0, seed).judge(estimate)[0]
    else:
        prepared = Prepared(tuple(clients), Dataset(data[200:]), public, None)
        judged = assess(prepared, None, estimate, None, 0)[0]  # type: ignore[arg-type] # rows need neither view nor run
        assert judged.secret == CLIENT
    return leakage(judged.error, judged.baseline)


@pytest.mark.parametrize("members", [EVERYONE, frozenset({0}), frozenset({0, 2, 3})], ids=["all", "one", "three"])
@pytest.mark.parametrize("own", [False, True], ids=["registered", "own"])
def test_plausible_rows_do_not_leak_and_true_ones_do(own: bool, members: frozenset[int]) -> None:
    nothing = [leaks(seed, own=own, known=False, members=members) for seed in range(20)]
    assert np.mean(nothing) < 0.05  # more than .2 beside the mean row alone
    assert leaks(0, own=own, known=True, members=members) == 1
