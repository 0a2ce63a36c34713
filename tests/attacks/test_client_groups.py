"""Rows of a sum are grouped by client from what their local steps do together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from securefed import Dataset, DeviatingServer, Federation, chain
from securefed.algorithms import DSGD, SSI, FedAvg
from securefed.attacks import ClassThresholds, Target, group_by_client, views
from securefed.defenses import clip, local_gaussian, quantise, secure_aggregation
from securefed.errors import TranscriptError
from securefed.problems import SoftmaxRegression

METHOD = FedAvg(problem=SoftmaxRegression(), learning_rate=0.2, local_steps=4)


def clients(sizes: tuple[int, ...] = (3, 3, 3)) -> list[Dataset]:
    rng = np.random.default_rng(0)
    return [Dataset(rng.uniform(size=(size, 8)), rng.integers(0, 3, size)) for size in sizes]


def summed(data: list[Dataset], method: Any = METHOD, defense: Any = None) -> tuple[Any, Any]:
    federation = Federation(method, data, chain(quantise()) if defense is None else defense)
    view = views.sum_only(federation.run(1).transcript, None)
    return view, Target(method, federation.public)


def mixed(data: list[Dataset]) -> tuple[Any, Any, Any]:
    """All rows in random order, their labels and their clients."""
    order = np.random.default_rng(1).permutation(sum(own.rows for own in data))
    owner = np.repeat(np.arange(len(data)), [own.rows for own in data])
    return np.concatenate([own.x for own in data])[order], np.concatenate([own.y for own in data])[order], owner[order]  # type: ignore[misc]


def test_one_sum_under_secure_aggregation_tells_which_rows_share_a_client() -> None:
    data = clients()
    rows, labels, owner = mixed(data)
    found = group_by_client(rows, labels, *summed(data, defense=chain(secure_aggregation())))
    assert found.solved
    assert adjusted_rand_score(found.groups, owner) == 1.0


def test_a_client_of_another_size_is_named() -> None:
    data = clients((2, 4, 2))
    rows, labels, owner = mixed(data)
    found = group_by_client(rows, labels, *summed(data))
    assert found.solved
    assert found.clients == ((0, 2), (1,), (0, 2))
    assert set(owner[found.groups == 1]) == {1}


@pytest.mark.parametrize("sizes", [(4,), (2, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_few_groupings_are_solved_from_every_start(sizes: tuple[int, ...], seed: int) -> None:
    """The residual's unit is not the distance of two random groupings that happen to be the same one."""
    data = clients(sizes)
    rows, labels, owner = mixed(data)
    found = group_by_client(rows, labels, *summed(data), restarts=1, seed=seed)
    assert found.solved
    assert adjusted_rand_score(found.groups, owner) == 1.0


def test_rows_that_are_not_the_sums_are_seen_by_the_residual() -> None:
    data = clients()
    rows, labels, _ = mixed(data)
    wrong = rows.copy()
    wrong[0] += 0.1
    assert not group_by_client(wrong, labels, *summed(data), restarts=2).solved


def test_noise_hides_who_shares_a_client() -> None:
    data = clients((4, 4, 4))
    rows, labels, owner = mixed(data)
    noised = chain(clip(1.0), local_gaussian(1.0), secure_aggregation())
    found = group_by_client(rows, labels, *summed(data, defense=noised), restarts=2)
    assert not found.solved
    assert adjusted_rand_score(found.groups, owner) < 1.0


def test_rows_of_an_active_server_and_their_clients() -> None:
    """From sums to people: rows first, by chosen broadcasts, then whose they are, by an honest round."""
    data = clients()
    _, labels, owner = mixed(data)
    run = DeviatingServer(METHOD, data, chain(quantise()), ClassThresholds(rounds=40)).deceive()
    assert run.estimate is not None
    rows, truth = run.estimate.value, mixed(data)[0]
    nearest = [int(np.argmin(np.linalg.norm(truth - row, axis=1))) for row in rows]
    found = group_by_client(rows, labels[nearest], *summed(data))
    assert adjusted_rand_score(found.groups, owner[nearest]) == 1.0


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (DSGD(learning_rate=0.1), "acts by itself"),
        (FedAvg(learning_rate=0.1, local_steps=1), "acts by itself"),
        (FedAvg(learning_rate=0.1, batch_size=2), "draw batches"),
        (SSI(rank=2), "makes none"),
    ],
)
def test_it_says_why_not(method: Any, reason: str) -> None:
    data = clients()
    rows, labels, _ = mixed(data)
    with pytest.raises(TranscriptError, match=reason):
        group_by_client(rows, labels, *summed(data, method))


def test_it_needs_all_rows() -> None:
    data = clients()
    rows, labels, _ = mixed(data)
    with pytest.raises(TranscriptError, match="all 9 rows"):
        group_by_client(rows[1:], labels[1:], *summed(data))
