"""Attacks on sums over changing members."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, Layout, RunOptions, TensorSpec, chain
from securefed.algorithms import SSI, algorithms
from securefed.attacks import ParticipationMatrix, RoundView, View, disaggregate, isolate, views
from securefed.defenses import secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.errors import ConfigError, TranscriptError

CLIENTS = 6


def synthetic(present, *, drift=0.0, seed=0, target=0):
    """Sums of messages m_i(k) = a_i + drift * z_k[0] * b_i."""
    rng = np.random.default_rng(seed)
    present = np.asarray(present)
    z = rng.normal(size=(len(present), 2))
    a, b = rng.normal(size=(2, present.shape[1], 5))
    own = a[None] + drift * z[:, :1, None] * b[None]
    rounds = []
    for k, row in enumerate(present):
        who = frozenset(np.flatnonzero(row).tolist())
        rounds.append(RoundView(k, {"z": z[k]}, {"m": np.einsum("i,ij->j", row, own[k])}, who, who))
    return View("sum only", target, tuple(rounds), {}), own


def away(absences, rounds=30):
    present = np.ones((rounds, CLIENTS))
    present[:absences, 0] = 0
    return np.random.default_rng(1).permutation(present)


def test_one_absence_gives_a_message_away_that_stays_the_same() -> None:
    observed, own = synthetic(away(1))
    found = disaggregate(observed)
    assert found.members == {0}
    assert (found.absences, found.components) == (1, 0)
    np.testing.assert_allclose(found.messages, own[list(found.rounds), 0], atol=1e-9)


def test_a_drift_with_the_broadcast_is_fitted_along() -> None:
    observed, own = synthetic(away(8), drift=1.0)
    found = disaggregate(observed)
    assert found.components == 2
    np.testing.assert_allclose(found.messages, own[list(found.rounds), 0], atol=1e-8)
    flat = disaggregate(observed, components=0)
    assert np.abs(flat.messages - own[list(flat.rounds), 0]).max() > 0.1


def test_without_an_absence_there_is_nothing_to_subtract_and_a_group_stays_one() -> None:
    observed, _ = synthetic(away(0))
    with pytest.raises(TranscriptError, match="nothing to subtract"):
        disaggregate(observed)
    together = away(4)
    together[:, 1] = together[:, 0]
    observed, own = synthetic(together)
    found = disaggregate(observed)
    assert found.members == {0, 1}
    np.testing.assert_allclose(found.messages[0], own[found.rounds[0], :2].sum(axis=0), atol=1e-9)


def test_a_target_that_an_early_round_separates_is_not_merged_with_another_client() -> None:
    """Later rounds, in which clients 0 and 1 come together, would fit better alone, but show only the two's sum."""
    present = away(6, rounds=24)
    present[:, 1] = present[:, 0]
    present[:6, :2] = [[0, 1], [1, 0], [1, 1], [0, 1], [1, 0], [1, 1]]
    observed, _ = synthetic(present, drift=0.01)
    first = observed.rounds[0]
    loud = replace(first, message={"m": first.message["m"] + 1.0})
    found = disaggregate(replace(observed, rounds=(loud, *observed.rounds[1:])))
    assert found.members == {0}


def test_a_target_in_no_sum_is_refused_by_name() -> None:
    observed, _ = synthetic(away(6), target=9)
    with pytest.raises(TranscriptError, match="client 9 is in no observed sum"):
        disaggregate(observed)


def test_under_noise_of_known_size_messages_are_drawn_to_the_mean_clients() -> None:
    rng = np.random.default_rng(3)
    for size in (1e-6, 0.3, 30.0):
        mine, blind, guess = [], [], []
        for seed in range(10):
            observed, own = synthetic(away(6), seed=seed)
            loud = [
                replace(o, message={"m": o.message["m"] + size * rng.normal(size=5)}, noise={"m": size})
                for o in observed.rounds
            ]
            deaf = [replace(o, noise={}) for o in loud]
            found, plain = (disaggregate(replace(observed, rounds=tuple(rounds))) for rounds in (loud, deaf))
            sums = np.stack([o.message["m"] / len(o.members) for o in loud if o.round in found.rounds])
            mine.append(np.linalg.norm(found.messages - own[list(found.rounds), 0]))
            blind.append(np.linalg.norm(plain.messages - own[list(plain.rounds), 0]))
            guess.append(np.linalg.norm(sums - own[list(found.rounds), 0]))
        assert np.mean(mine) < 1.5 * min(np.mean(blind), np.mean(guess))  # five numbers tell little of noise's size
    assert np.mean(mine) < 0.5 * np.mean(blind)


def test_participation_statistics() -> None:
    present = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 0], [1, 1, 1]])
    observed, _ = synthetic(present)
    found = ParticipationMatrix.of(observed)
    assert found.rates == {0: 0.75, 1: 0.75, 2: 0.75}
    assert found.absences(0) == 1
    assert set(found.groups) == {frozenset({0}), frozenset({1, 2})}
    assert found.weights(1) is None
    assert found.noise(1) == np.inf
    weights = found.weights(0)
    assert weights is not None
    np.testing.assert_allclose(weights @ present, [1, 0, 0], atol=1e-9)
    assert found.noise(0) < 1.0  # shown alone once, and in differences: better than the one sum alone
    with pytest.raises(TranscriptError, match="client 9"):
        found.absences(9)
    with pytest.raises(TranscriptError, match="no round"):
        ParticipationMatrix.of(views.output_only(Federation(SSI(rank=1), data()).run(1).transcript, 0))


def data():
    rng = np.random.default_rng(0)
    wide = rng.uniform(0.1, 1, (CLIENTS, 6))  # clients differ
    return [Dataset(rng.uniform(0, 1, (10, 6)) * wide[i], rng.integers(0, 2, 10)) for i in range(CLIENTS)]


@pytest.mark.parametrize("name", ["pca/ssi", "optimization/dsgd"])
def test_a_real_run_under_secure_aggregation_is_taken_apart(name) -> None:
    """Absent at random in half of 24 rounds: much closer to the truth than the public share of the sum.

    (In every second one, the broadcast alternates with the cohort, and only the Gram attack tells the two apart.)
    """
    setting = {"rank": 2} if name == "pca/ssi" else {"problem": "logistic", "learning_rate": 0.05}
    method = algorithms.make(name, **setting)

    def schedule(k):
        return tuple(range(int(np.random.default_rng(k).integers(2)), CLIENTS))

    defended = Federation(
        method, data(), chain(secure_aggregation()), seed=0, options=RunOptions(schedule=schedule)
    ).run(24)
    observed = views.sum_only(defended.transcript, 0)
    found = disaggregate(observed)
    step = defended.transcript.records[0].step
    errors, guesses = [], []
    for k, message in zip(found.rounds, found.messages, strict=True):
        sent = views.decode(defended.transcript.contributions[k, 0], step)
        truth = np.concatenate([np.ravel(sent[n]) for n in sorted(sent)])
        total = next(o.message for o in observed.rounds if o.round == k)
        share = np.concatenate([np.ravel(total[n]) for n in sorted(total)]) / CLIENTS
        errors.append(np.linalg.norm(message - truth) / np.linalg.norm(truth))
        guesses.append(np.linalg.norm(share - truth) / np.linalg.norm(truth))
    assert np.median(errors) < 0.25 * np.median(guesses)


LAYOUT = Layout((TensorSpec("x", (5,), 2.0),))
SENT = {i: {"x": np.random.default_rng(i).uniform(-1, 1, 5)} for i in range(CLIENTS)}


def test_a_server_that_loses_all_but_one_is_refused_and_succeeds_without_the_refusal() -> None:
    for also_kept in (0, 1, 2):
        refused = isolate(chain(secure_aggregation()), LAYOUT, SENT, 2, also_kept=also_kept)
        assert refused.refused.startswith("TooFewSurvivors")
        assert np.isnan(refused.error)
    open_door = isolate(chain(Quantise()), LAYOUT, SENT, 2)
    assert open_door.refused == ""
    assert open_door.error < 1e-5
    enough = isolate(chain(secure_aggregation()), LAYOUT, SENT, 2, also_kept=3)  # the threshold is 4 of 6
    assert enough.refused == ""
    assert enough.error > 0.5
    with pytest.raises(ConfigError, match="victim"):
        isolate(chain(Quantise()), LAYOUT, SENT, 9)
