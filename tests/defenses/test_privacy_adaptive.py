"""Adaptive clipping: one sensitivity for contributions and bits, the quantile reached, both releases accounted for."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from securefed import SERVER, Dataset, Federation, Layout, Message, RunOptions, TensorSpec, chain
from securefed._catalogue import defenses
from securefed._runtime.exchange_header import ExchangeHeader
from securefed.algorithms import DSGD
from securefed.defenses import (
    AdaptiveTransform,
    Transform,
    adaptive_clip,
    clip,
    epsilon_of,
    gaussian,
    secure_aggregation,
    sensitivity,
    skellam,
    sum_once,
)
from securefed.defenses._differential_privacy.adaptive import BELOW
from securefed.errors import ConfigError, MalformedError, PlanError
from tests.combinations import first_ones

LAYOUT = Layout((TensorSpec("w", (3, 4)), TensorSpec("b", (), 0.25), TensorSpec("c", (2,), 50.0, 64)))
WHOLE_AND_EACH = pytest.mark.parametrize("each", [False, True])


def draws(scale, seed=0):
    rng = np.random.default_rng(seed)
    return {spec.name: rng.normal(0, scale, spec.shape) for spec in LAYOUT}


@WHOLE_AND_EACH
@given(st.floats(1e-12, 1e12), st.integers(0, 1000), st.floats(0.001, 0.9), st.floats(1e-3, 1e3))
def test_what_is_summed_stays_within_the_planned_clip_bits_included(each, scale, seed, share, start):
    defense = chain(adaptive_clip(0.5, initial=start, share=share, each=each))
    plan = defense.plan(LAYOUT, 4)
    encoded = defense.encode(draws(scale, seed), plan)
    squares = sum(Fraction(float(x)) ** 2 for value in encoded.values() for x in np.ravel(value))
    assert squares <= Fraction(plan.privacy.clip) ** 2
    groups = 3 if each else 1
    assert plan.privacy.clip == pytest.approx(math.sqrt(groups / (1 - share)))
    assert encoded[BELOW].shape == (groups,)


@WHOLE_AND_EACH
@pytest.mark.parametrize("links", [(), (secure_aggregation(),)], ids=["plain", "secure_aggregation"])
def test_the_sum_is_that_of_the_clipped_contributions_and_the_bits_are_counted(links, each):
    defense = chain(adaptive_clip(0.5, initial=2.0, each=each), *links)
    values = {i: draws(0.3 + 0.4 * i, i) for i in range(6)}
    found = sum_once(defense, LAYOUT, values)
    groups = [[name] for name in LAYOUT.names] if each else [list(LAYOUT.names)]
    expected = {name: 0.0 for name in LAYOUT.names}  # noqa: C420
    below = np.zeros(len(groups))
    for value in values.values():
        for index, names in enumerate(groups):
            norm = math.sqrt(sum(float(np.square(value[name]).sum()) for name in names))
            below[index] += norm <= 2.0
            for name in names:
                expected[name] = expected[name] + value[name] * min(1, 2.0 / norm)
    for name in LAYOUT.names:
        np.testing.assert_allclose(found.total[name], expected[name], atol=1e-7)
    weight = adaptive_clip(0.5).weight
    np.testing.assert_allclose(found.total[BELOW] / weight + 3, below, atol=1e-7)
    assert 0 < below[0] < 6


def clips(transform, norms, rounds, noise=None):
    """The clip after each exchange, where client i's contributions have norm `norms[i]` in every round."""
    layout = Layout((TensorSpec("x", (2,)),))
    defense = chain(transform, *(() if noise is None else (noise,)))
    learned, seen = defense.start(layout), []
    for _ in range(rounds):
        plan = defense.plan(layout, len(norms), learned=learned)
        encoded = [defense.encode({"x": np.array([norm, 0.0])}, plan) for norm in norms]
        total = {name: sum(one[name] for one in encoded) for name in encoded[0]}
        released = defense.release(defense.decode(total, plan, len(norms)), plan)
        learned = defense.learn(released, plan, len(norms))
        seen.append(learned[0])
    return np.array(seen)


@pytest.mark.parametrize(("start", "quantile"), first_ones(product([0.1, 8.0], [0.5, 0.2, 0.9])))
def test_the_quantile_of_a_stationary_stream_is_reached_and_another_one_is_told_apart(quantile, start):
    # 100 clients with log-normal norms. Noise on the share of clients within C: z / (2 sqrt(share)) / 100 = .022, so
    # with eta = .2 log C moves by .0045 in a round, and is pulled back by eta times the density of log norms: its
    # deviation is about .0045 / sqrt(2 x .2 x .2) = .016, a share of .006; .03 and the grid of .01 are allowed.
    norms = np.exp(np.random.default_rng(1).normal(0, 1, 100))
    found = np.exp(np.mean(np.log(clips(adaptive_clip(quantile, initial=start), norms, 200, gaussian(1.0))[-60:])))
    assert np.mean(norms <= found) == pytest.approx(quantile, abs=0.03)
    for wrong in (quantile - 0.1, quantile + 0.08):
        assert abs(np.mean(norms <= found) - wrong) > 0.04


def test_one_step_is_the_papers():
    # Algorithm 1: C <- C exp(-eta (b - gamma)); two of four norms are within 1.
    (after,) = clips(adaptive_clip(0.2, rate=0.3), np.array([0.5, 0.9, 2.0, 3.0]), 1)
    assert after == pytest.approx(math.exp(-0.3 * (0.5 - 0.2)))
    (far,) = clips(adaptive_clip(0.2, rate=1e9), np.array([0.5]), 1)
    assert far == pytest.approx(math.exp(-1))
    plan = chain(adaptive_clip(0.5)).plan(Layout((TensorSpec("x", (2,)),)), 3)
    assert adaptive_clip(0.5).learn({BELOW: np.zeros(1)}, plan, 0) == (1.0,)


@pytest.mark.parametrize(("noise", "share"), first_ones([(2.5, 0.05), (1.0, 0.01), (0.8, 0.5)]))
def test_epsilon_covers_both_releases_as_another_accountant_counts_them(noise, share):
    # Two mechanisms of their own: contributions with z_Delta over sensitivity 1, the centred bit with sigma_b over 1/2.
    transform = adaptive_clip(0.5, share=share)
    plan = chain(transform, gaussian(noise)).plan(LAYOUT, 10)
    contribution = noise * math.sqrt(1 + transform.weight**2 / 4)
    bit = contribution / transform.weight
    assert noise == pytest.approx((contribution**-2 + (2 * bit) ** -2) ** -0.5)
    for rounds, ours in plan.epsilon[1:2]:
        accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(dp_accounting.GaussianDpEvent(contribution), rounds)
        accountant.compose(dp_accounting.GaussianDpEvent(2 * bit), rounds)
        assert accountant.get_epsilon(1e-5) == pytest.approx(ours, abs=0.01)
        forgotten = epsilon_of(contribution, rounds)
        assert share < 0.05 or forgotten < ours - 0.01  # leaving the bits out would be seen


def test_noise_of_the_release_is_as_planned_for_contributions_and_for_the_count():
    # 20000 entries: standard error .5 %. The count's noise over 3000 releases: 1.3 %.
    layout = Layout((TensorSpec("x", (20_000,)),))
    transform = adaptive_clip(0.5, initial=3.0, share=0.2)
    defense = chain(transform, gaussian(1.5))
    plan = defense.plan(layout, 4)
    zero = {"x": np.zeros(20_000), BELOW: np.zeros(1)}
    sigma = 1.5 / math.sqrt(0.8)
    assert sensitivity(plan) == pytest.approx(1 / math.sqrt(0.8), rel=1e-6)
    found = defense.release(zero, plan)["x"].std()
    assert found == pytest.approx(3.0 * sigma, rel=0.03)
    assert found != pytest.approx(3.0 * 1.5, rel=0.03)  # what a fixed clip would have
    narrow = Layout((TensorSpec("x", (1,)),))
    small = defense.plan(narrow, 4)
    bits = np.array([defense.release({"x": np.zeros(1), BELOW: np.zeros(1)}, small)[BELOW][0] for _ in range(3000)])
    assert (bits / transform.weight).std() == pytest.approx(1.5 / (2 * math.sqrt(0.2)), rel=0.08)


def data(clients=6):
    rng = np.random.default_rng(3)
    return [Dataset(rng.uniform(-1, 1, (6, 5)), np.arange(6) % 3) for _ in range(clients)]


@pytest.mark.parametrize(
    "links",
    [
        (),
        pytest.param((gaussian(0.001), secure_aggregation()), marks=pytest.mark.exhaustive),
        pytest.param((skellam(0.001), secure_aggregation()), marks=pytest.mark.exhaustive),
    ],
    ids=["plain", "gaussian", "skellam"],
)
def test_a_run_moves_the_clip_to_the_clients_norms_and_a_resumed_one_goes_on(tmp_path, links):
    adaptive = adaptive_clip(0.5, initial=1e-3, rate=0.5)
    clipped = Federation(DSGD(), data(), chain(clip(1e-3))).run(30).output
    defense = chain(adaptive, *links)
    arguments = {"options": RunOptions(checkpoint=tmp_path / "run", checkpoint_every=1)}
    Federation(DSGD(), data(), defense, **arguments).run(20)
    resumed = Federation(DSGD(), data(), defense, **arguments)
    assert resumed._learned[0] > 0.1, "what was learned is in the checkpoint"
    result = resumed.run(30)
    assert result.plan.learned[0] > 1.0
    assert BELOW not in result.output
    assert BELOW in result.transcript.records[-1].released
    moved = {name: float(np.abs(value).max()) for name, value in result.output.items()}
    assert any(moved[name] > 10 * float(np.abs(clipped[name]).max()) for name in moved)
    assert f"at {result.plan.learned[0]:.4g} in this exchange" in " ".join(result.plan.assumptions)


def test_a_server_cannot_send_a_client_other_than_positive_clips():
    federation = Federation(DSGD(), data(3), chain(adaptive_clip(0.5)))
    node, run = federation.nodes[0], federation.transcript.run
    good = ExchangeHeader((0, 1, 2), "train", 0, (2.0,)).body()
    for index, wrong in enumerate([(), (1.0, 1.0), (0.0,), (-1.0,), (math.nan,), (math.inf,)]):
        body = ExchangeHeader((0, 1, 2), "train", 0, wrong).body()
        with pytest.raises(MalformedError, match="positive numbers"):
            node._open(node.state, Message(run, index, "upload", SERVER, 0, body))
    assert node._open(node.state, Message(run, 9, "upload", SERVER, 0, good)).session.plan.learned == (2.0,)


@WHOLE_AND_EACH
@pytest.mark.parametrize("learned", [5e-324, 1e-323, 9e-151, 1e-150, 1e150, 2e150, 1.7e308])
def test_a_clip_that_no_server_learns_is_refused_as_what_is_clipped_at_it_may_exceed_it(each, learned):
    """At 5e-324, the smallest float, every entry is a multiple of the clip: norms come out up to 2.6 times too long."""
    defense = chain(adaptive_clip(0.5, each=each))
    clips = (learned,) * (3 if each else 1)
    if not 1e-150 <= learned <= 1e150:
        with pytest.raises(PlanError, match=r"a learned clip lies in 1e-150\.\.1e\+150"):
            defense.plan(LAYOUT, 4, learned=clips)
        return
    plan = defense.plan(LAYOUT, 4, learned=clips)  # the control
    for seed, scale in enumerate((1e-3, 0.3, 1.0, learned)):
        encoded = defense.encode(draws(scale, seed), plan)
        squares = sum(Fraction(float(x)) ** 2 for value in encoded.values() for x in np.ravel(value))
        assert squares <= Fraction(plan.privacy.clip) ** 2


def test_it_is_a_link_like_the_others_and_refuses_what_is_no_quantile():
    transform = adaptive_clip(0.5)
    assert isinstance(transform, Transform)
    assert isinstance(transform, AdaptiveTransform)
    assert not isinstance(clip(1.0), AdaptiveTransform)
    for name in ("dp", "ddp"):
        by_name = defenses.make(name, clip_norm=3.0, quantile=0.4)
        assert by_name.transforms[0] == adaptive_clip(0.4, initial=3.0)
    with pytest.raises(ConfigError, match="same stage, CLIP"):
        chain(clip(1.0), transform)
    for name, bad in (("quantile", 0.0), ("quantile", 1.0), ("share", 0.0), ("share", 1.0), ("initial", 0.0)):
        with pytest.raises(ConfigError, match=name):
            replace(transform, **{name: bad})
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="rate"):
            replace(transform, rate=bad)
