"""Distributed noise under secure aggregation: its size, its epsilon with dropouts and colluders, its refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from scipy.stats import kstest, norm

from securefed import Layout, TensorSpec, chain
from securefed._sampling.discrete_distributions import discrete_gaussian_tail, skellam_tail
from securefed.defenses import (
    Plain,
    Session,
    Transform,
    clip,
    discrete_gaussian,
    gaussian,
    local_gaussian,
    local_laplace,
    paillier,
    secure_aggregation,
    skellam,
    sum_once,
)
from securefed.defenses._differential_privacy.rotation import Rotation
from securefed.defenses._fixed_point import Quantise
from securefed.errors import BudgetSpent, ConfigError, PlanError, TooFewSurvivors

LAYOUT = Layout((TensorSpec("w", (30, 7)), TensorSpec("b", (), 0.25), TensorSpec("c", (2,), 50.0, 64)))
BOTH = pytest.mark.parametrize("make", [skellam, discrete_gaussian])


def vector(entries):
    return Layout((TensorSpec("x", (entries,)),))


def composed(noise, *, norm_bound=1.0, threshold=None):
    return chain(clip(norm_bound), noise, secure_aggregation(threshold))


def values(clients, seed=0):
    rng = np.random.default_rng(seed)
    return {i: {s.name: rng.normal(size=s.shape) for s in LAYOUT} for i in range(clients)}


# The sum


@BOTH
@pytest.mark.parametrize("lost", [(), (1, 4)])
def test_with_little_noise_the_sum_is_that_of_the_clipped_contributions(make, lost):
    defense, plain = composed(make(1e-4), norm_bound=2.0), chain(clip(2.0))
    plan, contributions = defense.plan(LAYOUT, 6), values(6)
    found = sum_once(defense, LAYOUT, contributions, drop=lambda stage, party: stage == "upload" and party in lost)
    assert found.survivors == tuple(i for i in range(6) if i not in lost)
    clipped = [plain.encode(contributions[i], plain.plan(LAYOUT, 6)) for i in found.survivors]
    for tensor in plan.tensors:
        exact = sum(c[tensor.name] for c in clipped)
        assert found.total[tensor.name].shape == tensor.shape
        # noise of the sum: 2e-4 sqrt(6 / 4); 8 deviations
        assert np.abs(found.total[tensor.name] - exact).max() < tensor.error + 8 * 2.5e-4
        assert np.abs(exact).max() > 0.05


@BOTH
def test_noise_of_the_decoded_sum_is_as_planned_within_one_percent_at_a_million_draws(make):
    # Relative standard error sqrt(2 / n) = .14 %.
    entries, clients = 1_000_000, 3
    defense, zero = composed(make(1.5), norm_bound=0.7), {"x": np.zeros(entries)}
    plan = Session("ab" * 16, 0, (0, 1, 2), defense.plan(vector(entries), clients)).plan
    total = sum(defense.encode(zero, plan)["x"] for _ in range(clients))
    noise = defense.decode({"x": total}, plan, clients)["x"]
    planned = (1.5 * 0.7) ** 2 * 3 / 2  # sized for 2 of 3
    assert noise.var() == pytest.approx(planned, rel=0.01)
    for wrong in (0.98, 1.02):
        assert noise.var() != pytest.approx(wrong * planned, rel=0.01)
    z = noise[:50_000] / math.sqrt(planned)
    assert kstest(z, "norm").pvalue > 1e-9
    assert kstest(z * 1.1, "norm").pvalue < 1e-9


def noise_of(defense, entries, clients, survivors):
    """Noise of the decoded sum, in units of the clip, where `survivors` upload zeros."""
    zero = {"x": np.zeros(entries)}
    contributions = dict.fromkeys(range(clients), zero)
    found = sum_once(
        defense, vector(entries), contributions, drop=lambda stage, party: stage == "upload" and party not in survivors
    )
    assert found.survivors == tuple(survivors)
    return found.total["x"]


def epsilon_of_noise(deviation, delta=1e-5):
    """Of one release with sensitivity 1, by another accountant (Renyi, which is what is claimed)."""
    accountant = RdpAccountant(1 + np.geomspace(1e-2, 1e4, 2000), NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(GaussianDpEvent(deviation))
    return accountant.get_epsilon(delta)


@BOTH
def test_with_thirty_percent_dropouts_and_a_colluder_the_noise_still_meets_the_claimed_epsilon(make):
    clients, survivors, colluding, entries = 10, range(3, 10), 1, 100_000
    defense = composed(make(4.0, survivors=7, colluding=colluding), threshold=7)
    plan = defense.plan(vector(entries), clients)
    claimed = dict(plan.epsilon)[1]
    seen = noise_of(defense, entries, clients, survivors)
    # The colluder's share is one of seven alike, and can be taken off: what protects is 6/7 of the variance.
    deviation = math.sqrt(seen.var() * 6 / 7)
    error = deviation * 6 / math.sqrt(2 * entries)
    assert epsilon_of_noise(deviation + error) <= claimed + 0.01
    assert epsilon_of_noise(deviation) == pytest.approx(claimed, abs=0.06)  # nor is there more noise than need be
    # Positive control: shares sized for all ten do not meet it.
    careless = composed(make(4.0, survivors=10), threshold=10).transforms[1].sizes(plan)
    assert epsilon_of_noise(math.sqrt(6 * careless.share) * careless.step) > claimed + 0.3


@BOTH
def test_with_one_survivor_fewer_the_exchange_ends_before_anything_is_unmasked(make):
    stages = []

    def drop(stage, party):
        stages.append(stage)
        return stage == "upload" and party < 4

    defense = composed(make(4.0, survivors=7), threshold=7)
    with pytest.raises(TooFewSurvivors):
        sum_once(defense, vector(5), {i: {"x": np.zeros(5)} for i in range(10)}, drop=drop)
    assert stages[-1] == "upload"
    assert "unmask" not in stages


def test_more_survivors_than_sized_for_only_add_noise():
    defense = composed(skellam(1.0))
    few, all_ = (noise_of(defense, 20_000, 10, s).var() for s in (range(6), range(10)))
    assert few == pytest.approx(1.0, rel=0.07)  # standard error 1 %
    assert all_ == pytest.approx(10 / 6, rel=0.07)


@pytest.mark.exhaustive
def test_one_clients_presence_is_as_hard_to_tell_as_planned():
    # Two survivors of three, sized for two: the best test is right with Phi(1 / (2 z)). 9000 trials: standard error
    # .0049; six of them are allowed, 2/3 and 3/2 of the noise are off by .082 and .061, six more.
    defense = composed(skellam(1.0))
    direction = np.random.default_rng(1).normal(size=24)
    direction /= np.linalg.norm(direction)
    zero, full, right = {"x": np.zeros(24)}, {"x": 5 * direction}, 0
    plan = defense.plan(vector(24), 3)
    for trial in range(9000):
        session = Session("cd" * 16, trial, (0, 1, 2), plan)
        present = trial % 2 == 0
        both = (defense.encode(x, session.plan)["x"] for x in (full if present else zero, zero))
        statistic = defense.decode({"x": sum(both)}, session.plan, 2)["x"] @ direction
        right += (statistic > 0.5) == present
    assert right / 9000 == pytest.approx(norm.cdf(0.5), abs=0.03)
    for wrong in (2 / 3, 3 / 2):
        assert abs(right / 9000 - norm.cdf(0.5 / wrong)) > 0.03


# The plan


@BOTH
def test_the_plan_says_what_the_loss_says_and_what_is_assumed(make):
    noise = make(3.0, colluding=2, delta=1e-6)
    plan = composed(noise).plan(LAYOUT, 20)
    assert plan.defense == f"clip(1) + {make.__name__}(z=3, colluding=2) + secure_aggregation"
    assert plan.privacy.noise_survivors == plan.threshold == 11
    loss = noise.loss(plan)
    assert plan.epsilon == tuple((k, loss.epsilon(k, 1e-6)) for k in (1, 10, 30, 100))
    assert loss == replace(noise, survivors=11).loss(plan)
    words = " ".join(plan.assumptions)
    for part in (
        "delta 1e-06",
        "2 survivors that share",
        "for 9 honest survivors out of 11",
        "2^-40",
        "2^20 exchanges",
    ):
        assert part in words
    assert isinstance(noise, Transform)
    assert composed(noise).plan(LAYOUT, 20, range_doublings=3) == plan


@BOTH
@pytest.mark.parametrize("multiplier", [0.05, 1.0, 30.0])
@pytest.mark.parametrize(("clients", "entries"), [(3, 7), (100, 1_000_000), (10_000, 1000)])
def test_sizes_hold_what_they_promise(make, multiplier, clients, entries):
    noise = make(multiplier)
    plan = composed(noise).plan(vector(entries), clients)
    sizes, (tensor,) = noise.sizes(plan), plan.tensors
    assert clients * sizes.upload <= 2**31 - 1  # no sum of uploads inside their range wraps
    assert 2 * clients * (sizes.upload + 2) > 2**31 - 1 or sizes.share > 2**42  # and no bit is given away
    assert sizes.honest * sizes.share >= multiplier**2 * sizes.squares
    assert sizes.honest * sizes.share <= multiplier**2 * sizes.squares * (1 + 1e-12)
    assert (tensor.bound, tensor.step, tensor.ring) == (sizes.upload * sizes.step, sizes.step, 32)
    assert tensor.max_clients >= clients
    # 2^-41 a run for the noise of all uploads: the tail of a single draw, times all draws of 2^20 exchanges
    tail = (skellam_tail if make is skellam else discrete_gaussian_tail)(sizes.share, sizes.upload - sizes.signal)
    assert tail + math.log(clients * entries) + 20 * math.log(2) <= -41 * math.log(2) * (1 - 1e-12)


def test_uploads_stay_in_their_planned_range_and_the_colluders_see_no_more_than_integers():
    defense = composed(skellam(2.0))
    plan = defense.plan(LAYOUT, 5)
    for contribution in values(20, seed=3).values():
        encoded = defense.encode(contribution, plan)
        for tensor in plan.tensors:
            assert encoded[tensor.name].dtype == np.int64
            assert np.abs(encoded[tensor.name]).max() * tensor.step <= tensor.bound


def test_noise_is_fresh_in_every_encoding():
    defense = composed(skellam(1.0))
    plan, zero = defense.plan(vector(50), 3), {"x": np.zeros(50)}
    assert not np.array_equal(defense.encode(zero, plan)["x"], defense.encode(zero, plan)["x"])


def test_the_rotation_belongs_to_the_exchange():
    defense = composed(skellam(1e-4))
    plan, x = defense.plan(vector(300), 3), {"x": np.eye(300)[0]}
    here, there = (Session("ab" * 16, number, (0, 1, 2), plan).plan for number in (1, 2))
    encoded = defense.encode(x, here)
    np.testing.assert_allclose(defense.decode(encoded, here, 1)["x"], x["x"], atol=2e-3)
    assert np.abs(defense.decode(encoded, there, 1)["x"] - x["x"]).max() > 0.5


# Local noise


def test_a_local_upload_carries_all_of_the_noise_and_needs_no_aggregation_that_hides_it():
    entries, clients = 60_000, 4
    defense = chain(clip(0.5), local_gaussian(2.0), Plain())
    plan = defense.plan(vector(entries), clients)
    assert plan.defense == "clip(0.5) + local_discrete_gaussian(z=2) + plain"
    assert (plan.privacy.noise_survivors, plan.privacy.noise_multiplier) == (1, 2.0)
    assert dict(plan.epsilon)[1] == pytest.approx(epsilon_of_noise(2.0), abs=0.01)
    assert "any party that sees the upload" in " ".join(plan.assumptions)
    upload = defense.encode({"x": np.zeros(entries)}, plan)
    assert defense.decode(upload, plan, 1)["x"].var() == pytest.approx(1.0, rel=0.05)
    unit = {"x": 1.0 * (np.arange(entries) == 7)}
    found = sum_once(defense, vector(entries), {i: unit for i in range(clients)}).total["x"]  # noqa: C420 - read only
    assert found.var() == pytest.approx(4.0, rel=0.05)  # noise of four uploads: what a sum pays for trusting nobody


def test_local_laplace_noise_is_laplaces_and_for_single_uploads_only():
    noise = local_laplace(3.0)
    defense = chain(clip(0.5), noise)
    plan = defense.plan(vector(160_000), 4)
    # So many draws that a scale a tenth off is always rejected: p is about 1e-42, at 40,000 draws only 1e-10.
    upload = defense.encode({"x": np.zeros(160_000)}, plan)["x"] * plan.tensors[0].step  # before the rotation is undone
    for scale, fits in ((1.5, True), (1.65, False), (1.35, False)):
        assert bool(kstest(upload, "laplace", (0, scale / math.sqrt(2))).pvalue > 1e-9) is fits
    assert kstest(upload, "norm", (0, 1.5)).pvalue < 1e-9
    assert dict(chain(clip(1.0), noise).plan(vector(1), 4).epsilon)[1] == pytest.approx(math.sqrt(2) / 3, rel=1e-4)
    assert dict(chain(clip(1.0), noise).plan(vector(9), 4).epsilon)[1] == pytest.approx(math.sqrt(2), rel=1e-4)
    with pytest.raises(ConfigError, match="sums of Laplace shares"):
        replace(noise, survivors=None)


# Refusals


def test_rotated_values_beyond_their_range_are_cut_to_it_before_the_noise_and_refuse_nothing():
    entries = 2**14
    defense = composed(skellam(0.01))
    session = Session("ab" * 16, 5, (0, 1, 2), defense.plan(vector(entries), 3))
    # Whoever knows the signs beforehand can aim at them; the next exchange has others.
    aimed = {"x": Rotation(entries, session.plan.exchange).inverse(np.arange(entries) == 3)}
    sizes = defense.transforms[1].sizes(session.plan)
    within = 12 * math.sqrt(sizes.share)
    assert abs(int(defense.encode(aimed, session.plan)["x"][3]) - sizes.signal) < within
    assert 1 / sizes.step > sizes.signal + 2 * within  # where it would be without the cut
    assert "and are cut to it" in " ".join(session.plan.assumptions)
    later = defense.encode(aimed, replace(session, round=6).plan)
    assert np.abs(later["x"]).max() < sizes.signal


@pytest.mark.parametrize("value", [1.0, 1e200, math.nan, math.inf])
def test_a_contribution_that_was_not_clipped_is_sent_as_zeros_under_the_noise(value):
    noise = skellam(0.01)
    plan = composed(noise).plan(vector(9), 3)
    sizes = noise.sizes(plan)
    sent = noise.encode({"x": np.full(9, value)}, plan)["x"]
    assert np.abs(sent).max() < 12 * math.sqrt(sizes.share) < 1 / sizes.step


@BOTH
def test_wrong_orders_are_refused_by_name(make):
    noise = make(1.0)
    with pytest.raises(ConfigError, match="in the order SPARSIFY -> CLIP"):
        chain(noise, clip(1.0), secure_aggregation())
    with pytest.raises(ConfigError, match="in the order SPARSIFY -> CLIP"):
        chain(noise, gaussian(1.0))
    with pytest.raises(ConfigError, match="both turn a contribution into integers"):
        chain(clip(1.0), Quantise(), noise, secure_aggregation())
    with pytest.raises(ConfigError, match="must be the last link"):
        chain(clip(1.0), secure_aggregation(), noise)
    with pytest.raises(PlanError, match=r"put clip\(\.\.\.\) before it"):
        chain(noise, secure_aggregation()).plan(LAYOUT, 5)
    with pytest.raises(PlanError, match="adds noise already"):
        chain(clip(1.0), gaussian(1.0), noise, secure_aggregation()).plan(LAYOUT, 5)


@BOTH
def test_an_aggregation_that_opens_smaller_sums_than_the_noise_is_for_is_refused(make):
    with pytest.raises(PlanError, match="sized for 3 survivors, and plain opens sums of 1"):
        chain(clip(1.0), make(1.0), Plain()).plan(LAYOUT, 5)
    with pytest.raises(PlanError, match="sized for 5 survivors, and secure_aggregation opens sums of 3"):
        composed(make(1.0, survivors=5)).plan(LAYOUT, 5)
    with pytest.raises(PlanError, match="sized for 3 survivors, and paillier"):
        chain(clip(1.0), make(1.0), paillier(threshold=2)).plan(LAYOUT, 5)
    assert composed(make(1.0, survivors=4), threshold=5).plan(LAYOUT, 5).threshold == 5


@BOTH
def test_plans_that_cannot_be_kept_are_refused(make):
    with pytest.raises(PlanError, match="no honest one is left"):
        composed(make(1.0, colluding=3)).plan(LAYOUT, 5)
    with pytest.raises(PlanError, match="cannot leave 9 survivors"):
        composed(make(1.0, survivors=9)).plan(LAYOUT, 5)
    with pytest.raises(PlanError, match="does not fit 32 bits"):
        composed(make(1e-8)).plan(vector(1000), 100)
    with pytest.raises(PlanError, match="does not fit 32 bits"):
        composed(make(1.0)).plan(vector(10), 2**31)
    with pytest.raises(PlanError, match="at least one entry"):
        composed(make(1.0)).plan(vector(0), 5)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError):
            make(bad)
    for arguments in ({"colluding": -1}, {"survivors": 0}, {"delta": 0.0}):
        with pytest.raises(ConfigError):
            make(1.0, **arguments)
    with pytest.raises(ConfigError, match="distribution"):
        replace(make(1.0), distribution="cauchy")
    for bad in (0, 7, 22, 31, 33, 63, 128, 32.0, None):
        with pytest.raises(ConfigError, match="ring must be 32 or 64, or 8 to 21 bits"):
            make(1.0, ring=bad)


@BOTH
@pytest.mark.parametrize("ring", [20, 32, 64])
def test_noise_is_as_planned_in_every_ring(make, ring):
    # 20000 entries: standard error 1 %.
    layout, zero = vector(20_000), {i: {"x": np.zeros(20_000)} for i in range(3)}
    defense = composed(make(1.5, ring=ring), norm_bound=0.7)
    plan = defense.plan(layout, 3)
    assert plan.tensors[0].ring == ring
    noise = sum_once(defense, layout, zero).total["x"]
    sizes = defense.transforms[1].sizes(plan)
    assert noise.var() == pytest.approx(3 * sizes.share * sizes.step**2, rel=0.06)
    assert 3 * sizes.share * sizes.step**2 >= (1.5 * 0.7) ** 2 * 3 / 2


@BOTH
def test_a_budget_is_of_this_mechanism_under_this_plan(make):
    noise = make(10.0)
    plan = composed(noise).plan(vector(1000), 20)
    budget = noise.budget(4.8, plan)
    for rounds, epsilon in plan.epsilon:
        assert budget.after(rounds) == epsilon
    assert budget.spend(100).spent == dict(plan.epsilon)[100] <= 4.8
    with pytest.raises(BudgetSpent):
        budget.spend(110)


@BOTH
@pytest.mark.parametrize("setting", ["survivors", "colluding"])
@pytest.mark.parametrize("value", [True, 2.5, "2", -1])
def test_numbers_of_clients_that_are_no_whole_numbers_are_refused(make, setting, value):
    with pytest.raises(ConfigError, match=f"{setting} must be an integer of at least"):
        make(1.0, **{setting: value})
