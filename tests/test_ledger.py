"""The client's ledger: it counts every exchange once, whatever run it belongs to, on disk before it is answered."""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from securefed._persistence import container
from securefed._persistence.sealing import Seal
from securefed._public import Public
from securefed._runtime.ledger import Ledger, Limits
from securefed._runtime.ledger_entries import DataUsage, LedgerEntries, _added, _holds
from securefed._runtime.privacy_cost import (
    DPSGDLoss,
    GaussianLoss,
    PrivacyCost,
    PrivacyMechanism,
    cost_of,
    epsilon_of_all,
)
from securefed._tensors import Layout, TensorSpec
from securefed.algorithms._pca.ssi import SSI
from securefed.defenses._base import Defense, Plan
from securefed.defenses._chain import chain
from securefed.defenses._differential_privacy import (
    FixedSizeSampling,
    InsecureGaussian,
    PoissonSampling,
    SkellamLoss,
    clip,
    discrete_gaussian,
    gaussian,
    local_gaussian,
    local_laplace,
    poisson,
    skellam,
)
from securefed.defenses._secure_aggregation import secure_aggregation
from securefed.errors import BudgetSpent, ConfigError, ContradictionError, LedgerLost, RolledBackError, StorageError
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


@pytest.mark.parametrize("exchanges", first_ones([1, 7, 40], 2))
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
    assert planned(seeded)[1] == PrivacyCost()  # whoever knows the seed takes that noise off
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


@pytest.mark.parametrize("cost", [PrivacyCost(), GAUSSIAN, SKELLAM, DP_SGD, *(planned(d)[1] for d in NOISY.values())])
def test_costs_go_into_json_and_back_exactly(cost: PrivacyCost) -> None:
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


def test_an_exchange_counts_once_in_each_run(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path / "ledger")
    assert [ledger.charge("one", number, GAUSSIAN) for number in (0, 1, 1, 0, 5)] == [True, True, False, False, True]
    assert [ledger.charge("two", number, GAUSSIAN) for number in (1, 1)] == [True, False]
    assert ledger.spent == DataUsage(4, GAUSSIAN.epsilon(4), DELTA)
    with pytest.raises(ContradictionError, match="another cost"):
        ledger.charge("one", 5, SKELLAM)
    assert ledger.charge("one", 6, SKELLAM)
    with pytest.raises(ConfigError, match="from 0"):
        ledger.charge("one", -1, GAUSSIAN)
    assert Ledger.open(tmp_path / "ledger", Limits()).book == ledger.book
    assert ledger.book.counts == {GAUSSIAN: 4, SKELLAM: 1}


def test_ranges_hold_what_was_added_in_any_order() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        numbers = [int(n) for n in rng.integers(0, 30, 25)]
        ranges: Any = ()
        for number in numbers:
            if not _holds(ranges, number):
                ranges = _added(ranges, number)
        assert [n for start, stop in ranges for n in range(start, stop)] == sorted(set(numbers))
        assert all(first[1] < second[0] for first, second in pairwise(ranges))
        assert [_holds(ranges, n) for n in range(-1, 31)] == [n in numbers for n in range(-1, 31)]


def test_limits_end_it_before_anything_is_charged(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path / "ledger", Limits(exchanges=3, epsilon=GAUSSIAN.epsilon(2) + 1e-6))
    for number in range(2):
        ledger.charge("run", number, GAUSSIAN)
    before = (tmp_path / "ledger").read_bytes()
    with pytest.raises(BudgetSpent, match="limit is"):
        ledger.charge("run", 2, GAUSSIAN)
    assert (tmp_path / "ledger").read_bytes() == before
    assert ledger.spent.exchanges == 2
    assert not ledger.charge("run", 1, GAUSSIAN)  # counted before: nothing new is asked for
    raised = Ledger.open(tmp_path / "ledger", Limits(exchanges=3))
    assert raised.charge("run", 2, GAUSSIAN)
    with pytest.raises(BudgetSpent, match="allows 3 exchanges"):
        raised.charge("run", 3, GAUSSIAN)
    with pytest.raises(BudgetSpent, match="allows 3 exchanges"):
        Ledger.open(tmp_path / "ledger", Limits(exchanges=3)).charge("another run", 0, GAUSSIAN)


def test_other_terms_do_not_reset_it(tmp_path: Path) -> None:
    """As many exchanges of a smaller rank would be allowed again, were the ledger that of its terms."""
    public = Public(clients=6, cohort=6, features=10, rows=(40,) * 6, classes=0, feature_bound=1.0)
    costs = []
    for rank in (3, 4):
        layout = SSI(rank=rank).layout(public)
        costs.append(planned(NOISY["skellam"], layout)[1])
    assert costs[0] != costs[1]
    limit = costs[0].epsilon(10) * 1.001
    alone = ledger_at(tmp_path / "alone", Limits(epsilon=limit))
    for number in range(10):
        alone.charge("run", number, costs[1])  # ten of the other rank alone are within the limit
    path = tmp_path / "ledger"
    ledger = ledger_at(path, Limits(epsilon=limit))
    for number in range(10):
        ledger.charge("first", number, costs[0])
    with pytest.raises(BudgetSpent, match="in all runs"):
        Ledger.open(path, Limits(epsilon=limit)).charge("second", 0, costs[1])


@pytest.mark.parametrize("key", [None, bytes(range(32))])
def test_a_lost_ledger_is_refused_until_the_operator_says_what_is_spent(tmp_path: Path, key: bytes | None) -> None:
    seal = None if key is None else Seal(key, tmp_path / "elsewhere" / "anchor")
    path, limits = tmp_path / "client" / "ledger", Limits(exchanges=10, epsilon=GAUSSIAN.epsilon(8))
    with pytest.raises(LedgerLost, match=r"Ledger\.create"):
        Ledger.open(path, limits, seal)
    ledger = ledger_at(path, limits, seal=seal)
    for number in range(3):
        ledger.charge("run", number, GAUSSIAN)
    with pytest.raises(StorageError, match="there already"):
        Ledger.create(path, limits, spent=DataUsage(), seal=seal)
    assert Ledger.open(path, limits, seal).spent.exchanges == 3
    path.unlink()
    with pytest.raises(LedgerLost):
        ledger.charge("run", 3, GAUSSIAN)
    with pytest.raises(LedgerLost):
        Ledger.open(path, limits, seal)
    again = Ledger.create(path, limits, spent=DataUsage(exchanges=9, epsilon=0.5, delta=DELTA / 2), seal=seal)
    again.charge("run", 3, GAUSSIAN)
    with pytest.raises(BudgetSpent, match="allows 10"):
        again.charge("run", 4, GAUSSIAN)
    spent = Ledger.open(path, limits, seal).spent
    assert spent == DataUsage(10, 0.5 + GAUSSIAN.epsilon(1, DELTA / 2), DELTA)
    path.unlink()
    with pytest.raises(ConfigError, match="leaves nothing"):
        Ledger.create(path, limits, spent=DataUsage(1, 1.0, DELTA), seal=seal)
    unknown = Ledger.create(path, limits, spent=DataUsage(1, math.inf), seal=seal)
    with pytest.raises(BudgetSpent, match="epsilon inf"):
        Ledger.open(path, limits, seal).charge("run", 9, GAUSSIAN)
    assert unknown.spent.epsilon == math.inf


def test_a_sealed_ledger_is_neither_read_nor_altered_nor_set_back(tmp_path: Path) -> None:
    path, seal = tmp_path / "ledger", Seal(bytes(range(32)), tmp_path / "anchor")
    ledger = ledger_at(path, seal=seal)
    ledger.charge("a run's identifier", 0, GAUSSIAN)
    older = path.read_bytes()
    assert b"identifier" not in older
    ledger.charge("a run's identifier", 1, GAUSSIAN)
    newest = path.read_bytes()
    with pytest.raises(StorageError, match="sealed"):
        Ledger.open(path, Limits())
    path.write_bytes(older)
    with pytest.raises(RolledBackError):
        ledger.charge("a run's identifier", 2, GAUSSIAN)
    with pytest.raises(RolledBackError):
        Ledger.open(path, Limits(), seal)
    path.write_bytes(newest[:-1] + bytes([newest[-1] ^ 1]))
    with pytest.raises(StorageError, match="altered"):
        Ledger.open(path, Limits(), seal)
    path.write_bytes(newest)
    assert Ledger.open(path, Limits(), seal).spent.exchanges == 2


def test_a_file_in_clear_that_was_altered_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = ledger_at(path)
    ledger.charge("run", 0, GAUSSIAN)
    data = path.read_bytes()
    assert b"gaussian" in data
    path.write_bytes(data.replace(b"gaussian", b"gaussiam"))
    with pytest.raises(StorageError, match="altered"):
        ledger.charge("run", 1, GAUSSIAN)
    container.save(path, "ledger", {"book": json.dumps({"declared": {}, "charged": []})}, {})
    with pytest.raises(StorageError, match="lacks a field"):
        Ledger.open(path, Limits())
    path.write_bytes(data)
    assert ledger.charge("run", 1, GAUSSIAN)


def test_a_client_that_dies_between_charge_and_answer_has_spent(tmp_path: Path) -> None:
    path, limits = tmp_path / "ledger", Limits(exchanges=1)
    ledger_at(path, limits).charge("run", 0, GAUSSIAN)  # and the process is gone, its answer never made
    with pytest.raises(BudgetSpent):
        Ledger.open(path, limits).charge("run", 1, GAUSSIAN)
    assert not Ledger.open(path, limits).charge("run", 0, GAUSSIAN)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_charge_is_on_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool) -> None:
    """Every file that is renamed was flushed before, and its folder after: nothing else survives a power cut."""
    seal = Seal(bytes(32), tmp_path / "elsewhere" / "anchor") if sealed else None
    ledger = ledger_at(tmp_path / "ledger", seal=seal)
    events: list[tuple[str, int]] = []
    fsync, rename = os.fsync, Path.replace

    def flushed(descriptor: int) -> None:
        events.append(("flushed", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        events.append((f"renamed to {target.name}", self.stat().st_ino))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    ledger.charge("run", 0, GAUSSIAN)
    files = [tmp_path / "ledger", *([tmp_path / "elsewhere" / "anchor"] if sealed else [])]
    expected = []
    for file in files:
        new, folder = file.stat().st_ino, file.parent.stat().st_ino
        expected += [("flushed", new), (f"renamed to {file.name}", new), ("flushed", folder)]
    assert events == expected


@pytest.mark.parametrize("sealed", [False, True])
def test_a_disk_that_fails_charges_nothing_and_lets_nothing_be_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    path, seal = tmp_path / "ledger", Seal(bytes(32)) if sealed else None
    ledger = ledger_at(path, seal=seal)
    ledger.charge("run", 0, GAUSSIAN)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(28, "no space left")))
        with pytest.raises(StorageError, match="no space left"):
            ledger.charge("run", 1, GAUSSIAN)
    assert ledger.spent.exchanges == Ledger.open(path, Limits(), seal).spent.exchanges == 1
    assert ledger.charge("run", 1, GAUSSIAN)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".ledger.lock", "ledger"]


def test_two_runs_at_once_share_one_ledger(tmp_path: Path) -> None:
    """Objects in two processes see each other's charges; a stale one does not write over the other's."""
    limits = Limits(exchanges=3)
    one = ledger_at(tmp_path / "ledger", limits)
    two = Ledger.open(tmp_path / "ledger", limits)
    one.charge("one", 0, GAUSSIAN)
    two.charge("two", 0, GAUSSIAN)
    one.charge("one", 1, SKELLAM)
    for ledger in (one, two):
        with pytest.raises(BudgetSpent):
            ledger.charge("late", 0, GAUSSIAN)
        assert ledger.spent.exchanges == 3


def test_in_memory_it_counts_the_same(tmp_path: Path) -> None:
    disk, memory = ledger_at(tmp_path / "ledger"), Ledger.in_memory()
    for number, cost in enumerate((GAUSSIAN, SKELLAM, DP_SGD, GAUSSIAN)):
        disk.charge("run", number, cost)
        memory.charge("run", number, cost)
    assert disk.book == memory.book
    kept = LedgerEntries.from_json(json.loads(json.dumps(memory.book.to_json())))
    resumed = Ledger.in_memory(Limits(exchanges=5), kept)
    assert resumed.spent == memory.spent
    resumed.charge("run", 4, GAUSSIAN)
    with pytest.raises(BudgetSpent):
        resumed.charge("run", 5, GAUSSIAN)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"exchanges": -1}, "exchanges"),
        ({"exchanges": 1.5}, "exchanges"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"unit": "row"}, "unit"),
    ],
)
def test_limits_outside_their_domain(settings: Any, says: str) -> None:
    Limits(exchanges=0, epsilon=1.0, delta=0.5, unit="record")
    with pytest.raises(ConfigError, match=f"^{says}"):
        Limits(**settings)


@pytest.mark.parametrize(("values", "says"), [((-1,), "exchanges"), ((0, -1.0), "epsilon"), ((0, 0.0, 1.0), "delta")])
def test_spending_outside_its_domain(values: Any, says: str) -> None:
    DataUsage(0, math.inf, 0.0)
    with pytest.raises(ConfigError, match=f"^{says}"):
        DataUsage(*values)
