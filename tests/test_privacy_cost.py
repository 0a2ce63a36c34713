"""The privacy cost of an exchange, and of many together: the plan's own, other accountants', and through JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from securefed import DataUsage, Layout, Ledger, Limits, TensorSpec, chain
from securefed._runtime.ledger_entries import LedgerEntries
from securefed._runtime.privacy_cost import (
    DPSGDLoss,
    GaussianLoss,
    PrivacyCost,
    PrivacyMechanism,
    cost_of,
    epsilon_of_all,
)
from securefed.defenses import (
    Defense,
    FixedSizeSampling,
    Plan,
    PoissonSampling,
    clip,
    discrete_gaussian,
    gaussian,
    local_gaussian,
    local_laplace,
    poisson,
    secure_aggregation,
    skellam,
)
from securefed.defenses._differential_privacy import InsecureGaussian, SkellamLoss
from securefed.errors import BudgetSpent, ConfigError
from tests.combinations import first_ones

DELTA = 1e-5
LAYOUT = Layout((TensorSpec("x", (30,), 4.0, 32),))
NOISY: dict[str, Defense] = {
    "central": chain(clip(1.0), gaussian(4.0), secure_aggregation()),
    "fixed size": chain(clip(1.0), gaussian(4.0, sampler=FixedSizeSampling(6, 60)), secure_aggregation()),
    "skellam": chain(clip(1.0), skellam(4.0), secure_aggregation()),
    "discrete gaussian": chain(clip(1.0), discrete_gaussian(4.0), secure_aggregation()),
    "local gaussian": chain(clip(1.0), local_gaussian(4.0)),
    "local laplace": chain(clip(1.0), local_laplace(4.0)),
}
GAUSSIAN = PrivacyCost((PrivacyMechanism(GaussianLoss(4.0)),))
SKELLAM = PrivacyCost((PrivacyMechanism(SkellamLoss(64**2, 30, 256.0**2)),))
DP_SGD = PrivacyCost((PrivacyMechanism(DPSGDLoss(1.0, 0.25, 4), "record"),))


def planned(defense: Defense, layout: Layout = LAYOUT, clients: int = 6) -> tuple[Plan, PrivacyCost]:
    plan = defense.plan(layout, clients)
    return plan, cost_of(defense, plan)


def ledger_at(path: Path, limits: Limits | None = None, **settings: Any) -> Ledger:
    return Ledger.create(path, limits or Limits(), spent=DataUsage(), **settings)


@pytest.mark.parametrize("name", NOISY)
def test_epsilon_is_the_plans_own(name: str) -> None:
    plan, cost = planned(NOISY[name])
    assert len(plan.epsilon) == 4
    for exchanges, epsilon in plan.epsilon:
        assert cost.epsilon(exchanges) == pytest.approx(epsilon, rel=1e-9)
        assert abs(cost.epsilon(exchanges + 1) - epsilon) > 1e-3  # one exchange more is told apart
        counted = LedgerEntries()
        for number in range(exchanges):
            counted = counted.with_charge("run", number, cost)
        assert counted.spent(DELTA, "client") == DataUsage(exchanges, cost.epsilon(exchanges), DELTA)


def test_epsilon_of_a_poisson_cohort_is_the_plans_own() -> None:
    defense = chain(clip(1.0), poisson(0.2), gaussian(2.0, sampler=PoissonSampling(0.2)), secure_aggregation())
    plan, cost = planned(defense)
    assert [cost.epsilon(rounds) for rounds, _ in plan.epsilon] == pytest.approx([e for _, e in plan.epsilon])
    assert cost.epsilon(10) < 0.7 * GaussianLoss(2.0).epsilon(10)


@pytest.mark.parametrize("exchanges", first_ones([1, 7, 40]))
def test_epsilon_agrees_with_another_accountant(exchanges: int) -> None:
    exact = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    exact.compose(dp_accounting.GaussianDpEvent(4.0), exchanges)
    assert GAUSSIAN.epsilon(exchanges) == pytest.approx(exact.get_epsilon(DELTA), abs=0.01)
    assert abs(PrivacyCost((PrivacyMechanism(GaussianLoss(3.6)),)).epsilon(exchanges) - exact.get_epsilon(DELTA)) > 0.02
    # Noise in the ring is nearly Gaussian where a unit is small beside it: the same Renyi divergences.
    close = RdpAccountant([*range(2, 512)], dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    close.compose(dp_accounting.GaussianDpEvent(4.0), exchanges)
    assert SKELLAM.epsilon(exchanges) == pytest.approx(close.get_epsilon(DELTA), abs=0.01)
    steps = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for _ in range(exchanges):
        event = dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(1.0))
        steps.compose(dp_accounting.SelfComposedDpEvent(event, 4))
    assert DP_SGD.epsilon(exchanges, unit="record") == pytest.approx(steps.get_epsilon(DELTA), abs=0.01)


def test_noises_of_one_family_compose_tightly_and_families_add_up() -> None:
    both = {GAUSSIAN: 5, PrivacyCost((PrivacyMechanism(GaussianLoss(8.0)),)): 20}
    exact = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    exact.compose(dp_accounting.GaussianDpEvent(4.0), 5).compose(dp_accounting.GaussianDpEvent(8.0), 20)
    assert epsilon_of_all(both) == pytest.approx(exact.get_epsilon(DELTA), abs=0.01)
    assert epsilon_of_all(both) < sum(cost.epsilon(k, DELTA / 2) for cost, k in both.items()) - 0.5
    # Other terms, so another number of entries and another sensitivity, but noise in the ring all the same.
    ring = {SKELLAM: 5, PrivacyCost((PrivacyMechanism(SkellamLoss(32**2, 40, 256.0**2)),)): 20}
    assert epsilon_of_all(ring) == pytest.approx(SKELLAM.epsilon(10), rel=1e-3)
    different = {GAUSSIAN: 5, SKELLAM: 7}
    assert epsilon_of_all(different) == pytest.approx(GAUSSIAN.epsilon(5, DELTA / 2) + SKELLAM.epsilon(7, DELTA / 2))
    assert epsilon_of_all(different) > GAUSSIAN.epsilon(5) + SKELLAM.epsilon(7)  # deltas add up as well
    assert epsilon_of_all({GAUSSIAN: 5, SKELLAM: 0}) == GAUSSIAN.epsilon(5)
    assert epsilon_of_all({}) == 0


def test_the_unit_of_privacy() -> None:
    """A client's noise hides its records at twice the distance; a record's noise does not hide the client."""
    assert DP_SGD.epsilon(3) == math.inf
    assert DP_SGD.epsilon(0) == 0
    assert GAUSSIAN.epsilon(3, unit="record") == pytest.approx(GaussianLoss(2.0).epsilon(3))
    assert SKELLAM.epsilon(3, unit="record") == SkellamLoss(128**2, 30, 256.0**2).epsilon(3)
    drawn = PrivacyCost((PrivacyMechanism(GaussianLoss(4.0, FixedSizeSampling(6, 60))),))
    assert drawn.epsilon(3, unit="record") == drawn.epsilon(3)  # for neighbours by replacement already
    # DP-SGD, noised once more on the way: each of the two protects the upload, so none is added to the other.
    twice = PrivacyCost((*DP_SGD.mechanisms, *SKELLAM.mechanisms))
    assert twice.epsilon(3) == SKELLAM.epsilon(3)
    cheaper = min(DP_SGD.epsilon(3, unit="record"), SKELLAM.epsilon(3, unit="record"))
    assert twice.epsilon(3, unit="record") == cheaper


def test_exchanges_without_noise_have_no_finite_epsilon(tmp_path: Path) -> None:
    plan, cost = planned(chain(secure_aggregation()))
    assert cost == PrivacyCost() and plan.epsilon == ()
    seeded = chain(clip(1.0), InsecureGaussian(gaussian(4.0), 1), secure_aggregation())
    assert planned(seeded)[1] == PrivacyCost()  # a party that knows the seed can subtract that noise
    assert planned(chain(clip(1.0), gaussian(4.0), secure_aggregation()))[1] == GAUSSIAN
    free = ledger_at(tmp_path / "free")
    free.charge("run", 0, cost)
    assert free.spent == DataUsage(1, math.inf, DELTA)
    limited = ledger_at(tmp_path / "limited", Limits(epsilon=1000.0))
    with pytest.raises(BudgetSpent, match="the exchange has no noise"):
        limited.charge("run", 0, cost)
    with pytest.raises(BudgetSpent, match="noise that hides single records only"):
        limited.charge("run", 0, DP_SGD)
    limited.charge("run", 0, GAUSSIAN)
    assert limited.spent.exchanges == 1


def test_noise_that_is_not_known_is_refused() -> None:
    class Homemade:
        name, order = "homemade", 20

        def plan(self, plan: Plan) -> Plan:
            return gaussian(4.0).plan(plan)

    defense = Defense((clip(1.0), Homemade()), chain().aggregation)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot account for"):
        planned(defense)


@pytest.mark.parametrize("known", [PrivacyCost(), GAUSSIAN, SKELLAM, DP_SGD, *NOISY])
def test_costs_go_into_json_and_back_exactly(known: PrivacyCost | str) -> None:
    cost = planned(NOISY[known])[1] if isinstance(known, str) else known
    assert PrivacyCost.from_json(json.loads(json.dumps(cost.to_json()))) == cost


def test_what_is_no_cost_is_refused() -> None:
    good = GAUSSIAN.mechanisms[0].to_json()
    assert PrivacyMechanism.from_json(good) == GAUSSIAN.mechanisms[0]
    for change in (
        {"kind": "homemade"},
        {"unit": "galaxy"},
        {"parameters": {}},
        {"parameters": {"noise_multiplier": -1}},
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            PrivacyMechanism.from_json(good | change)


def test_steps_of_dp_sgd_hide_records_and_no_client() -> None:
    steps = DP_SGD.mechanisms[0]
    with pytest.raises(ConfigError, match="DP-SGD hides a 'record' of a client, not a 'client'"):
        PrivacyMechanism.from_json(steps.to_json() | {"unit": "client"})
    with pytest.raises(ConfigError, match="unit='record'"):
        PrivacyMechanism(steps.loss)
