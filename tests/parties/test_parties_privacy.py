"""Sums with noise: divisor, epsilon, budgets, clips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from securefed import Ledger, Limits, chain
from securefed.defenses import (
    FixedSizeSampling,
    PoissonSampling,
    Transform,
    adaptive_clip,
    clip,
    gaussian,
    poisson,
    quantise,
    secure_aggregation,
    skellam,
)
from securefed.errors import BudgetSpent, ConfigError, RoundVoid
from securefed.parties import SumClient, SumResult, SumServer, SumTerms
from securefed.statistics import Mean
from tests.combinations import each_value
from tests.parties.helpers import play
from tests.parties.sums import (
    BASE,
    CLIENTS,
    UPDATES,
    parties,
    private_terms,
)


def test_under_noise_the_mean_difference_has_a_fixed_divisor_and_both_sides_count_epsilon() -> None:
    terms = private_terms(rounds=3)
    members, server = parties(terms), SumServer(terms)
    mine = {i: {"update": UPDATES[i], "base": BASE} for i in range(CLIENTS)}
    result = play(server, members, mine, base=BASE, lost=lambda stage, party: stage == 0 and party == 0)
    assert result.survivors == (1, 2, 3, 4)
    assert result.weight == CLIENTS
    assert np.abs(result.mean["w"] - BASE["w"]).max() < 3  # a mean of differences of norm 1 at most, and noise
    assert server.epsilon == pytest.approx(dict(terms.plan.epsilon)[1])
    twice = play(server, members, mine, base=BASE)
    assert twice.round == 1
    assert server.epsilon > dict(terms.plan.epsilon)[1]


def test_a_budget_stops_the_run_on_both_sides_and_survives_a_restart(tmp_path) -> None:
    once = dict(private_terms().plan.epsilon)[1]
    terms = private_terms(epsilon=1.8 * once)
    members, server = parties(terms), SumServer(terms, file=tmp_path / "server")
    mine = {i: {"update": UPDATES[i], "base": BASE} for i in range(CLIENTS)}
    rounds = 0
    while True:
        try:
            play(server, members, mine, base=BASE)
        except BudgetSpent:
            break
        rounds += 1
        members = {i: SumClient.thaw(terms, i, client.freeze()) for i, client in members.items()}
        server = SumServer(terms, file=tmp_path / "server")
    assert rounds >= 1
    assert server.epsilon <= 1.8 * once < terms.epsilon_after(rounds + 1)
    fresh = SumServer(replace(terms, epsilon=None), run=server.run)  # a server without the budget's scruples
    assert fresh.terms.digest != terms.digest  # and clients refuse its terms
    assert members[0].spent.epsilon == pytest.approx(terms.epsilon_after(rounds))


@pytest.mark.exhaustive
def test_epsilon_is_that_of_an_independent_accountant() -> None:
    """dp_accounting's privacy loss distributions, within .01."""
    defense = chain(clip(1.0), gaussian(1.1), secure_aggregation())
    terms = SumTerms.like(BASE, clients=CLIENTS, defense=defense, local=("seen",))
    for rounds in (1, 10, 100):
        accountant = pld.PLDAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(1.1), rounds)
        assert terms.epsilon_after(rounds) == pytest.approx(accountant.get_epsilon(1e-5), abs=0.01)


def test_an_adaptive_clip_learns_from_round_to_round_and_both_sides_plan_alike() -> None:
    defense = chain(adaptive_clip(0.5, initial=0.01), gaussian(0.1), secure_aggregation())
    terms = SumTerms.like(BASE, clients=CLIENTS, defense=defense, local=("seen",))
    members, server = parties(terms), SumServer(terms)
    mine = {i: {"update": UPDATES[i], "base": BASE} for i in range(CLIENTS)}
    norms = [play(server, members, mine, base=BASE).plan.learned[0] for _ in range(3)]
    assert norms[0] < norms[1] < norms[2]


@pytest.mark.parametrize("weight", [500, 1, 1.0, lambda: 1.0])
def test_a_weight_under_noise_is_refused_whatever_it_is(weight: Any) -> None:
    """A client that refused a weight of 500 and answered with a weight of 1 would show the server which it has."""
    terms = private_terms(epsilon=1000.0)
    mine = {i: {"update": UPDATES[i], "base": BASE, "weight": weight} for i in range(CLIENTS)}
    server, members = SumServer(terms), parties(terms)
    with pytest.raises(ConfigError, match="every client weighs the same: leave weight out"):
        play(server, members, mine, base=BASE)
    replies = {i: members[i].receive(request, UPDATES[i], base=BASE) for i, request in server.outgoing.items()}
    assert server.receive(replies) is None  # nothing was used up
    with pytest.raises(ConfigError, match="leave largest_weight and metrics out"):
        private_terms(largest_weight=500)


SAMPLED_CLIENTS, RATE = 200, 0.25


def sampled_sum(*rest: Transform) -> SumResult:
    """One round of clients that all have an update of ones, of which a quarter contribute, with little noise."""
    base = {"w": np.zeros(3)}
    defense = chain(clip(10.0), poisson(RATE), gaussian(1e-4, sampler=PoissonSampling(RATE)), *rest)
    terms = SumTerms.like(base, clients=SAMPLED_CLIENTS, defense=defense)
    mine = {i: {"update": {"w": np.ones(3)}, "base": base} for i in range(SAMPLED_CLIENTS)}
    return play(SumServer(terms), parties(terms), mine, base=base)


def test_a_mean_over_sampled_clients_is_divided_by_the_rate_once() -> None:
    """The mean estimates 1; divided by the rate twice it would be about 4.

    The clients' coins are the system's. Of 200 between 21 and 99 show heads, but for a chance of 8e-8, so that the mean
    lies between .42 and 1.98.
    """
    result = sampled_sum()
    assert (result.mean["w"] > 0.4).all() and (result.mean["w"] < 2.0).all()
    np.testing.assert_allclose(result.total["w"], result.mean["w"] * SAMPLED_CLIENTS)


def test_the_noise_and_the_error_of_a_sampled_sum_are_divided_by_the_rate_too() -> None:
    result = sampled_sum()
    assert result.noise["w"] == pytest.approx(1e-4 * 10.0 / RATE)
    coarse = sampled_sum(quantise(16))
    (tensor,) = coarse.plan.tensors
    assert coarse.error["w"] == pytest.approx(tensor.error / RATE / SAMPLED_CLIENTS)


def test_the_error_of_a_sum_under_an_adaptive_clip_is_in_the_units_of_the_update() -> None:
    """Sums are made in multiples of the clip, 50 here, and so are the plan's errors."""
    base, step = {"w": np.zeros(3)}, 50.0 * 2.0**-12
    defense = chain(adaptive_clip(0.5, initial=50.0), gaussian(1e-5), quantise(16))
    terms = SumTerms.like(base, clients=CLIENTS, defense=defense)
    mine = {i: {"update": {"w": np.full(3, 200.45 * step)}, "base": base} for i in range(CLIENTS)}
    result = play(SumServer(terms), parties(terms), mine, base=base)
    off = float(np.abs(result.mean["w"] - 200.45 * step).max())
    assert off == pytest.approx(0.45 * step, rel=0.2)
    assert off <= result.error["w"] + 6 * result.noise["w"] / CLIENTS < 0.7 * step


NOISES = {
    "gaussian": lambda delta: chain(clip(1.0), gaussian(4.0, delta=delta), secure_aggregation()),
    "skellam": lambda delta: chain(clip(1.0), skellam(4.0, delta=delta), secure_aggregation()),
}


@pytest.mark.parametrize(("noise", "delta"), each_value(NOISES, [1e-3, 1e-9]))
def test_a_client_counts_epsilon_at_the_delta_of_the_noise(noise: str, delta: float) -> None:
    """A server that keeps no budget gets as many answers as the stated delta allows, and no more."""
    terms = SumTerms.like({"w": np.zeros(4)}, clients=3, base=False, defense=NOISES[noise](delta), epsilon=3.0)
    assert terms.epsilon_after(10) == pytest.approx(dict(terms.plan.epsilon)[10])
    allowed = next(count for count in range(100) if terms.budget().after(count + 1) > 3.0)
    server, members = SumServer(terms), parties(terms)
    server._sums._budget = None
    mine = {i: {"update": {"w": np.zeros(4)}} for i in range(3)}
    for _ in range(allowed):
        play(server, members, mine)
    assert members[0].spent.epsilon == pytest.approx(terms.epsilon_after(allowed))
    assert members[0].spent.delta == delta
    with pytest.raises(RoundVoid, match="epsilon that the terms allow this run is spent"):
        play(server, members, mine)


def test_what_the_ledger_refuses_is_not_counted_in_the_run_s_own_budget() -> None:
    terms = SumTerms.like({"w": np.zeros(4)}, clients=3, base=False, defense=NOISES["gaussian"](1e-5), epsilon=9.0)
    ledgers = [Ledger.in_memory(Limits(exchanges=1)) for _ in range(3)]
    members = {i: SumClient(terms, i, ledger=ledgers[i]) for i in range(3)}
    server, mine = SumServer(terms), {i: {"update": {"w": np.zeros(4)}} for i in range(3)}
    play(server, members, mine)
    with pytest.raises(RoundVoid, match="ledger allows no further exchange"):
        play(server, members, mine)
    assert {member._budget.spent.exchanges for member in members.values()} == {1}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sampler", "cohort", "says"),
    [
        (PoissonSampling(0.1), None, r"put poisson\(0.1\) behind the clip"),
        (FixedSizeSampling(1, 30), None, "is not this federation's draw of 5 of 5 clients"),
    ],
)
def test_no_plan_counts_a_draw_that_no_party_makes(sampler: Any, cohort: int | None, says: str) -> None:
    defense = chain(clip(1.0), gaussian(1.0, sampler=sampler), secure_aggregation())
    with pytest.raises(ConfigError, match=says):
        SumTerms.like({"w": np.zeros(4)}, clients=CLIENTS, cohort=cohort, defense=defense)
    with pytest.raises(ConfigError, match=says):
        Mean(features=1, bound=1.0, rows=10).terms(clients=CLIENTS, defense=defense)
    drawn = chain(clip(1.0), gaussian(1.0, sampler=FixedSizeSampling(3, CLIENTS)), secure_aggregation())
    assert SumTerms.like({"w": np.zeros(4)}, clients=CLIENTS, cohort=3, defense=drawn).plan.epsilon
