"""A private run draws and accounts for exactly what its defence does, and views undo the public rotation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation, RunOptions, Transcript, chain
from securefed._messages import ROTATED
from securefed.algorithms import DSGD, SSI, FedAvg, LoSAC, Scaffold
from securefed.attacks import views
from securefed.defenses import (
    Budget,
    FixedSizeSampling,
    PoissonSampling,
    clip,
    gaussian,
    poisson,
    secure_aggregation,
    skellam,
)
from securefed.errors import ConfigError, PlanError


def data(clients: int = 6) -> list[Dataset]:
    rng = np.random.default_rng(3)
    return [Dataset(rng.uniform(-1, 1, (6, 5)), np.arange(6) % 3) for _ in range(clients)]


def ddp(noise: float = 2.0):
    return chain(clip(1.0), skellam(noise), secure_aggregation())


def test_a_gaussian_budget_does_not_pass_for_distributed_noise() -> None:
    """Skellam noise of the same multiplier costs more: counting it as Gaussian would understate."""
    with pytest.raises(ConfigError, match=r"own budget"):
        Federation(DSGD(), data(), ddp(), options=RunOptions(budget=Budget(5.0, 2.0)))
    plan = Federation(DSGD(), data(), ddp()).plan
    right = skellam(2.0).budget(5.0, plan)
    assert Federation(DSGD(), data(), ddp(), options=RunOptions(budget=right)).run(1).history
    assert right.after(100) > Budget(5.0, 2.0).after(100)


def test_a_fixed_size_cohort_is_drawn_unpredictably_and_accounted_for() -> None:
    mechanism = gaussian(2.0, sampler=FixedSizeSampling(3, 6))
    defense = chain(clip(1.0), mechanism, secure_aggregation())
    runs = [
        Federation(DSGD(), data(), defense, cohort=3, seed=0, options=RunOptions(budget=mechanism.budget(1e3))).run(8)
        for _ in range(2)
    ]
    drawn = [[entry.survivors for entry in run.history] for run in runs]
    assert all(len(survivors) == 3 for run in drawn for survivors in run)
    assert drawn[0] != drawn[1]  # chance of equality 20^-8: a seed must not let anybody repeat the draw
    with pytest.raises(ConfigError, match=r"FixedSizeSampling"):
        Federation(DSGD(), data(), defense, cohort=4)
    with pytest.raises(ConfigError, match=r"own budget"):
        Federation(DSGD(), data(), defense, cohort=3, options=RunOptions(budget=gaussian(2.0).budget(1e3)))


def poisson_run(rounds: int) -> tuple[Any, np.ndarray]:
    """A run whose clients toss coins, and (rounds, clients) which of them joined."""
    mechanism = gaussian(1e-3, sampler=PoissonSampling(0.4))
    defense = chain(clip(0.5), poisson(0.4), mechanism, secure_aggregation())
    federation = Federation(
        DSGD(),
        data(),
        defense,
        seed=0,
        options=RunOptions(budget=gaussian(1e-3, sampler=PoissonSampling(0.4)).budget(1e9)),
    )
    result = federation.run(rounds)
    # DSGD's contributions all have norm .5 here (6 rows, far from the optimum): joined ones are told by their size.
    kept = result.transcript.contributions
    joined = np.array([[any(v.any() for v in kept[e.exchange, c].values()) for c in range(6)] for e in result.history])
    return result, joined


def test_what_a_poisson_cohort_releases_is_the_sum_of_those_that_joined_over_the_rate() -> None:
    result, joined = poisson_run(20)
    assert 0 < joined.mean() < 1
    assert all(entry.survivors == tuple(range(6)) for entry in result.history)  # all upload, whatever their coin
    for record, who in zip(result.transcript.records, joined, strict=True):
        kept = result.transcript.contributions
        alone = [sum(v for c in range(6) if who[c] for v in [kept[record.round, c][n]]) for n in record.total]
        for name, exact in zip(record.total, alone, strict=True):
            step = record.step[name]
            np.testing.assert_allclose(record.released[name], np.asarray(exact) * step / 0.4, atol=0.02)


@pytest.mark.parametrize(("rounds", "wrong"), [(60, 0.71), pytest.param(270, 0.55, marks=pytest.mark.exhaustive)])
def test_poisson_cohorts_are_tossed_by_the_clients(rounds: int, wrong: float) -> None:
    """As many join as the rate says, independently; a wrong rate twelve standard errors away is rejected."""
    _, joined = poisson_run(rounds)
    # The coins are the system's. Standard error of the share that joins: .0258 and .0122.
    error = np.sqrt(0.4 * 0.6 / joined.size)
    assert abs(joined.mean() - 0.4) < 6 * error
    assert abs(joined.mean() - wrong) > 6 * error
    assert len({tuple(row) for row in joined.tolist()}) > 20, "coins are fresh in every exchange"
    correlation = np.corrcoef(joined.T) - np.eye(6)
    assert np.abs(correlation).max() < 6.7 / np.sqrt(rounds)  # standard errors; 15 pairs


def test_poisson_epsilon_is_below_that_of_every_round_in_full() -> None:
    mechanism = gaussian(2.0, sampler=PoissonSampling(0.1))
    plan = Federation(DSGD(), data(), chain(clip(0.5), poisson(0.1), mechanism)).plan
    full = Federation(DSGD(), data(), chain(clip(0.5), poisson(0.1), gaussian(2.0))).plan
    assert all(few < 0.5 * all_ for (_, few), (_, all_) in zip(plan.epsilon, full.epsilon, strict=True))
    assert any("tosses a coin" in sentence for sentence in plan.assumptions)


@pytest.mark.parametrize(
    ("arguments", "rate"),
    [({"cohort": 3}, 0.1), ({"options": RunOptions(schedule=lambda round: range(6))}, 0.1), ({}, 0.2)],
)
def test_a_federation_that_does_not_toss_the_coins_accounted_for_is_refused(arguments: Any, rate: float) -> None:
    mechanism = gaussian(2.0, sampler=PoissonSampling(0.1))
    with pytest.raises(ConfigError, match="poisson"):
        Federation(DSGD(), data(), chain(clip(0.5), poisson(rate), mechanism), **arguments)
    with pytest.raises(ConfigError, match=r"put poisson\(0.1\) behind the clip"):
        Federation(DSGD(), data(), chain(clip(0.5), mechanism))


def test_clients_that_remember_what_they_sent_are_not_left_out_behind_their_backs() -> None:
    defense = chain(clip(0.5), poisson(0.1), gaussian(2.0))
    for algorithm in (Scaffold(), LoSAC()):
        with pytest.raises(ConfigError, match="remember"):
            Federation(algorithm, data(), defense)
    for algorithm in (FedAvg(), SSI(rank=2)):
        assert Federation(algorithm, data(), defense).run(1).history
    with pytest.raises(PlanError, match="put a clip"):
        Federation(FedAvg(), data(), chain(poisson(0.1)))


def test_an_exchange_that_nobody_joined_is_noise_like_any_other() -> None:
    defense = chain(clip(0.5), poisson(1e-9), gaussian(1.0), secure_aggregation())
    result = Federation(DSGD(), data(), defense).run(3)
    for record in result.transcript.records:
        assert not any(value.any() for value in record.total.values())
        assert all(value.any() for value in record.released.values())


def test_views_of_rotated_sums_are_in_the_contributions_own_coordinates(tmp_path) -> None:
    algorithm = SSI(rank=2, tolerance=0.0)
    noiseless = chain(clip(100.0), skellam(1e-4), secure_aggregation())
    result = Federation(algorithm, data(4), noiseless, seed=1).run(2)
    assert result.transcript.meta[ROTATED]
    path = tmp_path / "transcript"
    result.transcript.save(path)
    for transcript in (result.transcript, Transcript.load(path)):
        seen = views.sum_only(transcript, None)
        for own, record in zip(seen.rounds, transcript.records, strict=True):
            for name, value in record.total.items():
                np.testing.assert_allclose(own.message[name], value, atol=1e-6)
        victim = views.collusion(transcript, 0, [1, 2, 3]).rounds[0].message["product"]
        x = data(4)[0].x
        exact = x.T @ (x @ transcript.records[0].broadcast["basis"])
        # Ten entries, and noise of .43 % of the largest in each: 5 % is 11 standard deviations.
        assert np.abs(victim - exact).max() < 0.05 * np.abs(exact).max()
    plain = Federation(algorithm, data(4), chain(secure_aggregation()), seed=1).run(1)
    assert not plain.transcript.meta[ROTATED]
