"""Membership: rates of known laws, adversaries of known strength, and the audit's rows under every noise."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import numpy as np
import pytest
from scipy.special import ndtr

from securefed import Dataset, Federation, Public, audit, chain
from securefed._auditing.cases import case
from securefed._auditing.cases.audit_settings import Settings
from securefed._auditing.differential_privacy import membership_audit as members
from securefed._auditing.differential_privacy.membership_audit import (
    INFORMED,
    NOISES,
    PLAIN,
    POISSON,
    POPULATION,
    client_canaries,
    gather_plays,
    play,
    record_canaries,
)
from securefed._auditing.report.audit_page import render
from securefed.attacks import Target, views
from securefed.attacks._generic import Replay
from securefed.attacks._membership import CanaryGame, plant, pooled_rates
from securefed.defenses import Plain, adaptive_clip, calibrate, clip, gaussian
from securefed.defenses._differential_privacy import CentralGaussian
from securefed.defenses._fixed_point import Quantise
from securefed.errors import ConfigError, DataError
from tests.attacks.test_generic import DATA, Z, product, replay

POPULATION_ROWS = Dataset(np.random.default_rng(9).uniform(-1, 1, (80, 5)))


def test_pooled_rates_have_intervals_that_hold_the_truth_and_nulls_that_hold_a_half() -> None:
    """Unit normals one apart: AUC = Phi(1 / sqrt 2) = .760; of 40 seeds x 16 scores the standard error is .019."""
    rng = np.random.default_rng(1)
    bits = [np.arange(16) % 2 == 0 for _ in range(40)]
    scores = [rng.normal(size=16) + own for own in bits]
    found = pooled_rates(scores, bits)
    assert found.auc[0] < ndtr(2**-0.5) < found.auc[1]
    assert found.auc[1] - found.auc[0] < 0.12
    assert found.null[0] < 0.5 < found.null[1] < found.auc[0]
    assert found.tpr[0] <= found.rates.tpr <= found.tpr[1]
    with pytest.raises(DataError, match="members and non-members"):
        pooled_rates([np.zeros(3)], [np.ones(3, bool)])


def game(noise: float, seed: int) -> CanaryGame:
    """A client whose message is X^T X z: own rows against stand-ins, seen through Gaussian noise."""
    rng = np.random.default_rng(seed)
    canaries = plant(DATA[1], POPULATION_ROWS, (rng.permutation(4) < 2).tolist(), rng)
    base: Replay = replay(product, Z, rounds=1)
    data = canaries.planted(DATA[1])
    seen = base.alone(0, data)
    return CanaryGame(base, 0, seen + noise * rng.normal(size=seen.size), noise, data, canaries)


def test_the_informed_adversary_reaches_the_rate_of_the_likelihood_ratio() -> None:
    """AUC of N(d^2/2s^2, d^2/s^2) against its mirror image: Phi(d / (s sqrt 2)), averaged over the shifts d."""
    noise, scores, bits, wanted = 2.0, [], [], []
    for seed in range(60):
        played = game(noise, seed)
        scores.append(played.informed())
        bits.append(played.canaries.inside)
        for place, (own, other) in enumerate(zip(played.canaries.own, played.canaries.stand_ins, strict=True)):
            ends = [played.replay.alone(0, Dataset(played._with(played.data.x, place, row))) for row in (own, other)]
            wanted.append(ndtr(np.linalg.norm(ends[0] - ends[1]) / (noise * 2**0.5)))
    found = pooled_rates(scores, bits)
    assert found.auc[0] - 0.03 < np.mean(wanted) < found.auc[1] + 0.03
    assert 0.55 < found.rates.auc < 0.95


def test_exact_messages_give_every_bit_and_drowned_ones_none() -> None:
    exact = game(0.0, 0)
    for scores in (exact.informed(), exact.population(POPULATION_ROWS, 6, np.random.default_rng(0))):
        assert scores.shape == (4,)
    assert ((exact.informed() > 0) == exact.canaries.inside).all()
    drowned = [game(1e4, seed) for seed in range(25)]
    found = pooled_rates([item.informed() for item in drowned], [item.canaries.inside for item in drowned])
    assert found.auc[0] < 0.5 < found.auc[1]


def test_stand_ins_have_the_canarys_label_and_are_used_once() -> None:
    rng = np.random.default_rng(0)
    data, pool = (
        Dataset(rng.normal(size=(4, 2)), np.array([0, 1, 0, 1])),
        Dataset(rng.normal(size=(6, 2)), np.arange(6) % 2),
    )
    found = plant(data, pool, [True, False, False, True], rng)
    own = [int(np.flatnonzero((pool.x == row).all(axis=1))[0]) for row in found.stand_ins]
    assert [pool.y[k] for k in own] == [0, 1, 0, 1]  # type: ignore[index]
    assert len(set(own)) == 4
    np.testing.assert_array_equal(found.planted(data).x[[0, 3]], data.x[[0, 3]])
    np.testing.assert_array_equal(found.planted(data).x[[1, 2]], found.stand_ins[[1, 2]])
    with pytest.raises(DataError, match="label of a canary"):
        plant(data, pool.take(np.array([0, 2])), [True, True], rng)


def settings(epsilon: float, algorithm: str) -> Settings:
    noise = {(epsilon, case(algorithm).rounds): calibrate(epsilon, 1e-5, case(algorithm).rounds)}
    return Settings(clients=4, defenses=("plain",), attacks=(), epsilon=epsilon, noise=noise)


@pytest.mark.exhaustive
def test_rows_of_ssi_are_told_apart_in_the_clear_and_not_under_noise() -> None:
    plays, skipped = zip(*(play("pca/ssi", seed, settings(0.5, "pca/ssi")) for seed in range(3)), strict=True)
    assert not any(skipped)
    rows = {(row.defense, row.adversary): row for row in gather_plays([item for seed in plays for item in seed])}
    assert {defense for defense, _ in rows} == {PLAIN, *NOISES}
    assert {adversary for _, adversary in rows} == {INFORMED, POPULATION}
    assert rows[PLAIN, INFORMED].auc[0] == 1.0
    assert rows[PLAIN, INFORMED].tpr[0] == 1.0
    assert (rows[PLAIN, INFORMED].epsilon, rows[PLAIN, INFORMED].members) == (None, 12)
    # Of 12 and 12 scores the AUC of chance has a deviation of .12 to .16, the mean of seven noises .06.
    assert np.mean([rows[name, INFORMED].auc[0] for name in NOISES]) < 0.9
    assert all(rows[name, INFORMED].epsilon is not None for name in NOISES)


class Weak(CentralGaussian):
    """A five-hundredth of the noise that it plans."""

    def release(self, total, plan):
        from dataclasses import replace  # noqa: PLC0415 - one test's

        assert plan.privacy is not None
        quieter = replace(plan.privacy, noise_multiplier=plan.privacy.noise_multiplier / 500)
        return super().release(total, replace(plan, privacy=quieter))


@pytest.mark.exhaustive
def test_noise_that_is_missing_shows(monkeypatch) -> None:
    def right(norm, noise):
        return chain(clip(norm), gaussian(noise), Quantise(), Plain())

    def weak(norm, noise):
        return chain(clip(norm), Weak(noise), Quantise(), Plain())

    rights = ("first", "second", "third")
    monkeypatch.setattr(members, "NOISES", {"weak": weak, **dict.fromkeys(rights, right)})
    plays = [item for seed in range(3) for item in play("pca/ssi", seed, settings(8.0, "pca/ssi"))[0]]
    rows = {row.defense: row for row in gather_plays(plays) if row.adversary == INFORMED}
    # Of 12 and 12 scores the AUC of chance has a deviation of .12, the mean of three noises .07.
    assert rows["weak"].auc[0] > 0.97 > np.mean([rows[name].auc[0] for name in rights])


@pytest.mark.exhaustive
def test_a_contribution_that_joins_by_its_coin_is_seen_one_time_in_ten(monkeypatch) -> None:
    """AUC of a tenth of .76: .526; 508 scores each way have a deviation of .018, and of .015 where nobody tosses."""
    monkeypatch.setattr(import_module("securefed.defenses._differential_privacy.gaussian"), "PLANNED_ROUNDS", (1,))
    monkeypatch.setattr(members, "NOISES", {})
    monkeypatch.setattr(members, "_CANARY_RUNS", 500)
    (row,) = client_canaries(1e-5, 1.0, 2)
    assert row.defense in POISSON
    assert row.auc[0] < 0.65
    assert 1 < row.epsilon < 3  # 4.4 without coins


CANARY_RUNS = 100
"""108 scores each way: the AUC of chance has a deviation of .039, that of shifts thrice the noise (.99) one of .006."""


@pytest.mark.exhaustive
def test_one_whole_contribution_is_seen_through_little_noise_only(monkeypatch) -> None:
    monkeypatch.setattr(members, "_CANARY_RUNS", CANARY_RUNS)
    monkeypatch.setattr(members, "POISSON", {})
    little, much = ({row.defense: row for row in client_canaries(1e-5, noise, 2)} for noise in (0.3, 30.0))
    assert set(little) == set(much) == set(NOISES)
    for name in NOISES:
        assert little[name].auc[0] > 0.9, name
        assert much[name].auc[0] < 0.75, name
        assert little[name].epsilon > much[name].epsilon


@pytest.mark.exhaustive
def test_one_record_is_seen_through_little_noise_only(monkeypatch) -> None:
    monkeypatch.setattr(members, "_CANARY_RUNS", CANARY_RUNS)
    little, much = ({row.defense: row for row in record_canaries(1e-5, noise, 2)} for noise in (0.3, 30.0))
    assert set(little) == set(much) == {"gaussian, records", "skellam, records", "DP-SGD"}
    for name, row in little.items():
        assert row.auc[0] > 0.9, name
        assert much[name].auc[0] < 0.75, name
        assert row.epsilon > much[name].epsilon


def test_a_clip_that_moves_is_followed_by_the_adversary() -> None:
    """What is left of the sum without the others is the target's own part, where every exchange's clip is known."""
    what, clients, defense = (
        case("pca/ssi"),
        list(DATA),
        chain(adaptive_clip(0.5, initial=1e-3, rate=3.0), gaussian(1e-4)),
    )
    public, nobody = Public.of(clients), np.random.default_rng(0)
    result = Federation(what.build(), clients, defense, seed=1, public=public).run(5)
    observed, plans = views.released(result.transcript, 0), members._plans(defense, result)
    canaries = plant(clients[0], POPULATION_ROWS, [True], nobody)

    def left(known) -> float:
        through = partial(members._clipped, defense, known)
        game = members._game(observed, Target(what.build(), public), clients, canaries, 0.0, through)
        own = game.replay.alone(game.member, clients[0])
        return float(np.linalg.norm(game.messages - own) / np.linalg.norm(own))

    assert max(plan.learned[0] for plan in plans.values()) > 5 * plans[0].learned[0]
    assert left(plans) < 0.02
    assert left(dict.fromkeys(plans, plans[0])) > 0.2  # who takes the clip to stand still is left with a rest


@pytest.mark.exhaustive
def test_the_audit_has_the_rows_only_where_they_are_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(members, "_CANARY_RUNS", 10)
    small = {"algorithms": ["optimization/dsgd"], "defenses": ["plain"], "attacks": ["gradient_inversion/fit"]}
    small |= {"clients": 4, "seeds": 2, "workers": 1}
    with_it = audit(**small, membership=True)
    assert {row["adversary"] for row in with_it.membership} == {
        INFORMED,
        POPULATION,
        members.CLIENT_CANARY,
        members.RECORD_CANARY,
    }
    assert "--membership" in with_it.command
    page = render(with_it)
    assert "Which rows were in the data" in page
    without = audit(**small)
    assert without.membership == ()
    assert "Which rows were in the data" not in render(without)
    assert "--membership" not in without.command


def test_too_few_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="two seeds"):
        audit(["optimization/dsgd"], seeds=1, membership=True)
