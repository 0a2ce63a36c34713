"""Gram matrices from messages that were clipped, or noised: the attacker knows by how much."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, Public, RunOptions, audit_transcript, chain
from securefed.algorithms import FAPS, SSI
from securefed.attacks import ConsensusGram, DifferenceGram, PowerGram, Target, views
from securefed.attacks._gram.clipped_products import clip_ratios
from securefed.attacks._gram.shrinkage import NoisyProducts, ProductLikelihood, shrunk
from securefed.attacks._gram.subspace_iteration import SCALE_OPEN
from securefed.attacks.scores import relative_error
from securefed.defenses import clip, clip_each, gaussian
from tests.attacks.steady import SteadyGaussian
from tests.combinations import first_ones

FEATURES, RANK, ROWS = 12, 3, (30, 150, 150, 150)


def clients():
    rng = np.random.default_rng(5)
    mixing = rng.uniform(0, 1, (4, FEATURES))
    rows = [
        np.clip(rng.uniform(0, 0.4, (count, 4)) @ mixing + rng.normal(0, 0.05, (count, FEATURES)), 0, 1)
        for count in ROWS
    ]
    return [Dataset(own) for own in rows]


def gram(parts):
    return sum(data.x.T @ data.x for data in parts)


def run(defense, rounds=8, parts=None):
    parts = clients() if parts is None else parts
    public = Public.of(parts, feature_bound=1.0)
    transcript = Federation(SSI(RANK, tolerance=0.0), parts, defense, seed=1, public=public).run(rounds).transcript
    return transcript, Target(SSI(RANK, tolerance=0.0), public)


def attacked(observed, target):
    return PowerGram().run(observed, target, np.random.default_rng(0))


def told_nothing(observed):
    return replace(observed, rounds=tuple(replace(o, clips=(), noise={}) for o in observed.rounds))


@pytest.mark.parametrize("norm", [clip(60.0), clip_each(60.0)])
def test_one_clipped_client_is_exact_where_a_round_was_not_clipped(norm):
    transcript, target = run(chain(norm))
    observed, truth = views.server(transcript, 0), gram(clients()[:1])
    found = attacked(observed, target)
    assert relative_error(found.value, truth) < 1e-9 and found.residual < 1e-9
    assert found.diagnostics["clipped to"] < 0.9 and found.diagnostics["explained"] and found.open == ()
    assert relative_error(attacked(told_nothing(observed), target).value, truth) > 0.05


def test_always_clipped_only_the_size_of_one_client_is_open():
    transcript, target = run(chain(clip(1.0)))
    found, truth = attacked(views.server(transcript, 0), target), gram(clients()[:1])
    best = np.vdot(found.value, truth) / np.vdot(found.value, found.value)
    assert relative_error(best * found.value, truth) < 1e-9
    assert 0.1 < best < 10
    assert found.open == (SCALE_OPEN,)
    audited = audit_transcript(transcript, target.algorithm, attacks=["gram/power"])
    (finding,) = (one for one in audited.findings if one.view == views.SERVER_VIEW)
    assert SCALE_OPEN in finding.open and f"left open: {SCALE_OPEN}" in str(audited)


def test_a_clip_that_did_nothing_changes_nothing():
    transcript, target = run(chain(clip(1e4)))
    for observed in (views.server(transcript, 0), views.sum_only(transcript, 0)):
        np.testing.assert_array_equal(attacked(observed, target).value, attacked(told_nothing(observed), target).value)


def test_a_clipped_sum_gives_the_pooled_matrix_and_its_size():
    """The small client is below the norm, the others are not: the norms of the sums grow by its own."""
    transcript, target = run(chain(clip(80.0)))
    observed, truth = views.sum_only(transcript, 0), gram(clients())
    found = attacked(observed, target)
    assert relative_error(found.value, truth) < 0.2
    assert relative_error(attacked(told_nothing(observed), target).value, truth) > 0.5


def over_noises(make, attack, multiplier, norm, truth):
    """Mean relative errors, over draws of the noise, of who knows its size and of who does not."""
    errors = []
    for seed in range(12):
        transcript, target = make(chain(clip(norm), SteadyGaussian(gaussian(multiplier), seed)))
        observed = views.released(transcript, 0)
        pair = (attack.run(view, target, np.random.default_rng(0)) for view in (observed, told_nothing(observed)))
        errors.append([relative_error(found.value, truth) for found in pair])
    return np.mean(errors, axis=0)


@pytest.mark.exhaustive
def test_noise_of_known_size_is_never_amplified():
    truth = gram(clients())
    means = [over_noises(run, PowerGram(), size, 600.0, truth) for size in (10.0, 0.3, 0.1, 1e-2, 1e-3)]
    assert all(own < 1.4 * other for own, other in means)  # the least noise costs it a fifth
    (most, _), *_, (own, other), (least, _) = means
    assert most < 1.1 and own < 0.8 * other and least < 0.01


def noisy(seed=0, rounds=4, size=0.3):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(FEATURES, 2))
    S = factor @ factor.T
    Z = np.stack([np.linalg.qr(rng.normal(size=(FEATURES, RANK)))[0] for _ in range(rounds)])
    errors = size * rng.uniform(0.5, 2, rounds)
    Y = S @ Z + errors[:, None, None] * rng.normal(size=Z.shape)
    return NoisyProducts(Z, Y, errors, np.einsum("knp,knp->k", Z, S @ Z) + errors * rng.normal(size=rounds), errors), S


def test_shrinkage_is_the_minimum():
    """First-order conditions over S >= 0: the gradient is positive semidefinite, and vanishes on the range of S."""
    seen, S = noisy()
    likelihood, got = ProductLikelihood.of(seen), shrunk(seen, steps=400).gram
    weights = seen.errors**-2
    pull = np.einsum("k,knp,kmp->nm", weights, got @ seen.bases - seen.products, seen.bases)
    projectors = seen.bases @ seen.bases.mT
    traces = np.einsum("kab,ab->k", projectors, got) - seen.traces
    slope = (pull + pull.T) / 2 + np.einsum("k,kab->ab", weights * traces, projectors)

    def violation(penalty):
        gradient = (
            slope
            + likelihood.vectors @ (penalty / np.outer(likelihood.scales, likelihood.scales)) @ likelihood.vectors.T
        )
        return max(-np.linalg.eigvalsh(gradient)[0], np.linalg.norm(gradient @ got)) / np.linalg.norm(slope)

    assert min(violation(penalty) for penalty in likelihood.penalties()) < 1e-9  # of the one that was taken
    assert 0 < np.linalg.matrix_rank(got, tol=1e-6) < FEATURES
    assert seen.mean_square_residual(got) <= seen.noise_limit and relative_error(got, S) < 0.3


def test_the_ratios_of_factors_follow_from_symmetry():
    seen, S = noisy(size=0.0 + 1e-9)
    factors = np.array([1.0, 0.5, 0.1, 0.9])
    found = clip_ratios(seen.bases, factors[:, None, None] * (S @ seen.bases))
    np.testing.assert_allclose(found / found[0], factors, rtol=1e-9)


def changing(defense, rounds=24):
    """The first client stays away in every second round."""
    parts = clients()
    public = Public.of(parts, feature_bound=1.0)
    everyone = tuple(range(len(parts)))
    federation = Federation(
        SSI(RANK, tolerance=0.0),
        parts,
        defense,
        seed=1,
        public=public,
        options=RunOptions(schedule=lambda k: everyone if k % 2 == 0 else everyone[1:]),
    )
    return federation.run(rounds).transcript, Target(SSI(RANK, tolerance=0.0), public)


def differenced(observed, target):
    return DifferenceGram().run(observed, target, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("multiplier", "close", "gain"), first_ones([(0.02, 0.2, 0.2), (3.0, 1.1, 1.05), (1e-4, 0.05, 0.8)])
)
def test_differences_shrink_to_the_share_of_the_pooled_matrix(multiplier, close, gain):
    own, other = over_noises(changing, DifferenceGram(), multiplier, 600.0, gram(clients()[:1]))
    assert own < close and own < gain * other
    transcript, target = changing(chain(clip(600.0), SteadyGaussian(gaussian(multiplier), 3)))
    assert differenced(views.released(transcript, 0), target).members == {0}


def test_differences_of_clipped_sums_stay_near_the_share():
    transcript, target = changing(chain(clip(60.0)))
    observed, truth = views.sum_only(transcript, 0), gram(clients()[:1])
    assert relative_error(differenced(observed, target).value, truth) < 0.5
    assert relative_error(differenced(told_nothing(observed), target).value, truth) > 1


def test_differences_of_sums_that_no_clip_touched_are_what_they_were():
    transcript, target = changing(chain(clip(1e4)))
    observed = views.sum_only(transcript, 0)
    found, plain = differenced(observed, target), differenced(told_nothing(observed), target)
    np.testing.assert_array_equal(found.value, plain.value)


def masked(defense, rounds=8):
    parts = clients()
    public = Public.of(parts, feature_bound=1.0)
    algorithm = FAPS(RANK, tolerance=0.0)
    transcript = Federation(algorithm, parts, defense, seed=1, public=public).run(rounds).transcript
    return transcript, Target(algorithm, public)


@pytest.mark.parametrize(("norm", "multiplier"), first_ones([(600.0, 0.02), (80.0, 0.01)]))
def test_masked_products_are_shrunk_and_the_clip_undone(norm, multiplier):
    own, other = over_noises(masked, ConsensusGram(), multiplier, norm, gram(clients()))
    assert own < 0.75 * other
    transcript, target = masked(chain(clip(norm), SteadyGaussian(gaussian(multiplier), 3)))
    found = ConsensusGram().run(views.released(transcript, 0), target, np.random.default_rng(0))
    assert found.diagnostics["method"] == "shrunk"


def test_masked_sums_that_no_clip_touched_are_read_as_ever():
    transcript, target = masked(chain(clip(1e4)))
    observed = views.sum_only(transcript, 0)
    found, plain = (
        ConsensusGram().run(view, target, np.random.default_rng(0)) for view in (observed, told_nothing(observed))
    )
    np.testing.assert_array_equal(found.value, plain.value)
