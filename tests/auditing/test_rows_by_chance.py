"""Plausible rows that know nothing of any client are no leak, and true rows are one however many stand beside them."""

from __future__ import annotations

import numpy as np
import pytest

from securefed import Dataset, Public
from securefed._auditing.cases.prepared_data import Prepared
from securefed._auditing.engine.results import CLIENT
from securefed._auditing.own.client_secrets import SecretData
from securefed._auditing.registered import scoring
from securefed._auditing.registered.scoring import assess
from securefed.attacks import Reconstruction
from securefed.attacks.scores import leakage

CLIENTS, ROWS = 5, 12
EVERYONE = frozenset(range(CLIENTS))


def leaks(seed: int, *, own: bool, known: bool, members: frozenset[int], held_out: bool = True) -> float:
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
        test = data[200:] if held_out else data[: CLIENTS * ROWS]
        prepared = Prepared(tuple(clients), Dataset(test), public, None)
        judged = assess(prepared, None, estimate, None, 0)[0]  # type: ignore[arg-type] # rows need neither view nor run
        assert judged.secret == CLIENT
    return leakage(judged.error, judged.baseline)


def test_rows_of_a_recording_are_all_of_clients_so_that_others_are_made_up() -> None:
    nothing = [leaks(seed, own=False, known=False, members=EVERYONE, held_out=False) for seed in range(20)]
    assert -0.3 < np.mean(nothing) < 0.05
    assert leaks(0, own=False, known=True, members=EVERYONE, held_out=False) == 1


@pytest.mark.parametrize("members", [EVERYONE, frozenset({0}), frozenset({0, 2, 3})], ids=["all", "one", "three"])
@pytest.mark.parametrize("own", [False, True], ids=["registered", "own"])
def test_plausible_rows_do_not_leak_and_true_ones_do(own: bool, members: frozenset[int]) -> None:
    nothing = [leaks(seed, own=own, known=False, members=members) for seed in range(20)]
    assert np.mean(nothing) < 0.05  # more than .2 beside the mean row alone
    assert leaks(0, own=own, known=True, members=members) == 1


@pytest.mark.parametrize("copies", [1, 3])
def test_what_follows_from_read_rows_is_of_as_many_rows_as_the_members_have(copies: int) -> None:
    """A tensor that holds each row of a client several times gives its Gram matrix and counts of labels away."""
    rng = np.random.default_rng(0)
    labels = [np.repeat([0, 1], [client + 1, ROWS - client - 1]) for client in range(CLIENTS)]
    clients = [Dataset(rng.normal(size=(ROWS, 4)) * 0.1 + np.eye(4)[y], y) for y in labels]
    secret = SecretData(clients, Public.of(clients), 0, 0)
    rows = np.tile(clients[0].x, (copies, 1))
    estimates = secret.derive(Reconstruction("samples", rows, members=frozenset({0})), labels=True)
    assert [each.secret for each in estimates] == ["samples", "gram", "labels"]
    for each in estimates:
        judged = secret.judge(each)[0]
        assert leakage(judged.error, judged.baseline) > 0.9, each.secret


@pytest.mark.parametrize("members", [EVERYONE, frozenset({0})], ids=["all", "one"])
def test_a_random_part_of_many_rows_is_scored_alike(members: frozenset[int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, match = [], scoring.match
    monkeypatch.setattr(scoring, "match", lambda value, truth: sizes.append(len(truth)) or match(value, truth))
    leaks(0, own=False, known=True, members=members)
    assert max(sizes) == ROWS * len(members)  # the control: all rows
    sizes.clear()
    monkeypatch.setattr(scoring, "_MOST_SCORED", 5)
    nothing = [leaks(seed, own=False, known=False, members=members) for seed in range(20)]
    assert -0.5 < np.mean(nothing) < 0.05
    assert leaks(0, own=False, known=True, members=members) == 1
    assert set(sizes) == {5}
