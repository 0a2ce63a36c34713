"""A server that chooses the consensus of PPGL: every client's distances out of sums, and what it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, DeviatingServer, chain
from securefed.algorithms import PPGL, FedAvg
from securefed.algorithms._graph.method import edges_of
from securefed.attacks import ChosenConsensus
from securefed.defenses import quantise, secure_aggregation
from securefed.errors import TranscriptError
from securefed.problems import SoftmaxRegression
from tests.combinations import first_ones

FEATURES, METHOD = 5, PPGL()


def signals(count: int, seed: int = 0) -> list[Dataset]:
    """Clients whose columns have nearly the same correlations."""
    rng = np.random.default_rng(seed)
    mix = np.eye(FEATURES) + 0.3 * rng.normal(size=(FEATURES, FEATURES))
    return [Dataset(np.clip(rng.normal(size=(60, FEATURES)) @ mix, -4, 4)) for _ in range(count)]


def distances(data: list[Dataset]) -> Any:
    edges = edges_of(FEATURES)
    return np.stack([edges.adjacency(edges.distances(own.x) / own.rows) for own in data])


def leakage(estimate: Any, data: list[Dataset]) -> float:
    """Smallest over the clients of 1 - error / error of the mean, for the matrix nearest to the client's."""
    truth, mean = distances(data), distances(data).mean(axis=0)
    blocks = estimate.value.reshape(-1, FEATURES, FEATURES)
    errors = np.linalg.norm(truth[:, None] - blocks[None], axis=(2, 3)).min(axis=1)
    return float((1 - errors / np.linalg.norm(truth - mean, axis=(1, 2))).min())


def deceive(data: list[Dataset], attack: ChosenConsensus, method: Any = METHOD, **options: Any) -> Any:
    return DeviatingServer(method, data, options.pop("defense", chain(quantise())), attack, **options).deceive()


@pytest.mark.parametrize("steps", first_ones([1, 5]))
def test_every_clients_distances_come_out_of_secure_sums(steps: int) -> None:
    data = signals(3)
    run = deceive(data, ChosenConsensus(), PPGL(local_steps=steps), defense=chain(secure_aggregation(verify=True)))
    assert run.estimate.residual < 1e-5
    assert leakage(run.estimate, data) > 0.999
    assert len(run.broadcasts) in (9, 17, 25)  # 1 + 8 a frame


def test_moments_alone_tell_clients_apart_and_the_fit_makes_them_exact() -> None:
    data = signals(2)
    rough, exact = (deceive(data, ChosenConsensus(steps=steps, passes=1)).estimate for steps in (1, 150))
    assert 0.5 < leakage(rough, data) < leakage(exact, data)
    assert leakage(exact, data) > 0.9999


def test_one_clients_own_message_gives_its_distances_in_one_round() -> None:
    data = signals(3)
    run = deceive(data, ChosenConsensus(), alone=True, victim=1)
    assert len(run.broadcasts) == 1
    assert run.estimate.residual < 1e-8  # of what the message shows, not of rounding
    np.testing.assert_allclose(run.estimate.value, distances(data)[1], atol=1e-6)


def test_a_frame_whose_fit_has_no_residual_is_replaced_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, seen = ChosenConsensus._fitted, []

    def first_without(*arguments: Any) -> Any:
        seen.append(fitted(*arguments))
        return seen[-1] if len(seen) > 1 else replace(seen[-1], residual=np.nan)

    monkeypatch.setattr(ChosenConsensus, "_fitted", first_without)
    data = signals(2)
    run = deceive(data, ChosenConsensus())
    assert len(run.broadcasts) > 5
    assert run.estimate.residual < 1e-5


def test_permuted_messages_give_no_distances() -> None:
    data = signals(2)
    assert leakage(deceive(data, ChosenConsensus(passes=1), shuffled=True).estimate, data) < 0.0


def test_it_needs_clients_that_weigh_themselves_by_the_consensus() -> None:
    data, attack = signals(2), ChosenConsensus()
    assert deceive(data, attack).estimate is not None
    with pytest.raises(TranscriptError, match="equal weights"):
        deceive(data, attack, PPGL(weights="equal"))
    with pytest.raises(TranscriptError, match="raise `limit`"):
        deceive(data, replace(attack, limit=19))
    with pytest.raises(TranscriptError, match="as many clients as there are edges"):
        deceive(signals(11), replace(attack, limit=10**6))
    labelled = [Dataset(own.x, np.arange(own.rows) % 2) for own in data]
    with pytest.raises(TranscriptError, match="PPGL's clients"):
        deceive(labelled, attack, FedAvg(problem=SoftmaxRegression(), learning_rate=0.01))
