"""Gradient inversion under clips and noise of known size."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from securefed import chain
from securefed.algorithms import DSGD, FLAME, CompositeFedADMM, FedAvg, FedCM, LoSAC, MimeSVRG, Scaffold
from securefed.attacks import SampleFit, Target, views
from securefed.attacks._gradient_inversion import TelescopingFit
from securefed.attacks._gradient_inversion.contribution_clipping import data_free_factors
from securefed.attacks._gradient_inversion.posterior_estimate import PosteriorEstimate
from securefed.attacks._gradient_inversion.row_fit_problem import problem_from_view
from securefed.attacks._gradient_inversion.row_posterior import (
    GaussianRowPrior,
    LinearMessages,
    likeliest_label_counts,
    whitened_equations,
)
from securefed.attacks.scores import sample_error
from securefed.defenses import clip, clip_each, gaussian
from securefed.defenses._fixed_point import Quantise
from securefed.problems import LogisticRegression, SoftmaxRegression
from tests.attacks.steady import SteadyGaussian
from tests.attacks.test_gradient_inversion import scene
from tests.combinations import first_ones

METHODS = [  # with a norm that most contributions exceed
    (DSGD(), 1.0),
    (FedAvg(learning_rate=0.4), 1.0),
    (Scaffold(), 0.5),
    (LoSAC(learning_rate=0.1, local_steps=2), 1.0),
    (FedCM(learning_rate=0.4), 0.2),
    (MimeSVRG(local_steps=2), 1.0),
    (CompositeFedADMM(learning_rate=0.05), 0.05),
    (FLAME(problem=SoftmaxRegression(), learning_rate=0.01, local_steps=3, anchor="global"), 0.05),
    (DSGD(problem=SoftmaxRegression(l2=0.1, initial_scale=0.3)), 1.0),
]
EVERY = pytest.mark.parametrize(
    ("method", "norm"), first_ones(METHODS, 4), ids=[type(method).__name__ for method, _ in METHODS]
)
KINDS = pytest.mark.parametrize("kind", [clip, clip_each])


def clipped(norm, kind=clip):
    """The server sees the sums before the noise, but its models, and so what is broadcast, hold it."""
    return chain(kind(norm), SteadyGaussian(gaussian(0.1), 0), Quantise())


def view(method, defence, see=views.sum_only, sizes=(1, 1, 2), seed=0):
    federation, clients = scene(method, sizes=sizes, seed=seed, defence=defence)
    rows, labels = np.vstack([c.x for c in clients]), np.concatenate([c.y for c in clients])
    return Target(method, federation.public), see(federation.transcript, None), rows, labels


def without(observed, **fields):
    return replace(observed, rounds=tuple(replace(o, **fields) for o in observed.rounds))


@KINDS
@EVERY
def test_true_rows_explain_clipped_sums_and_only_with_the_clip(method, norm, kind):
    target, observed, rows, labels = view(method, clipped(norm, kind))
    misfits = []
    for seen in (observed, without(observed, clips=())):
        system = problem_from_view(seen, target, rounds=6).equations
        misfits.append(system.relative_residual(rows @ system.basis.T, labels))
    assert misfits[0] < 1e-5
    assert misfits[1] > 0.1


@KINDS
@pytest.mark.parametrize(("method", "norm"), [METHODS[1], METHODS[3]], ids=["FedAvg", "LoSAC"])
def test_derivatives_pass_through_the_clip(method, norm, kind):
    target, observed, rows, labels = view(method, clipped(norm, kind))
    system = problem_from_view(observed, target, rounds=4).equations
    point = rows @ system.basis.T + np.random.default_rng(0).normal(0, 0.1, (len(rows), len(system.basis)))
    jacobian = system.linearised(point, labels)[1]
    step = 1e-6
    for k in range(point.size):
        ahead, back = point.copy().ravel(), point.copy().ravel()
        ahead[k] += step
        back[k] -= step
        ends = [system.residual(p.reshape(point.shape), labels) for p in (ahead, back)]
        np.testing.assert_allclose(jacobian[:, k], (ends[0] - ends[1]) / (2 * step), atol=1e-6)


@EVERY
def test_clipped_sums_give_the_rows_away(method, norm):
    target, observed, rows, _ = view(method, clipped(norm), sizes=(1,) * 5, seed=1)
    assert sample_error(SampleFit().run(observed, target, np.random.default_rng(0)).value, rows) < 1e-3
    blind = SampleFit().run(without(observed, clips=()), target, np.random.default_rng(0))
    assert sample_error(blind.value, rows) > 0.1


def test_stored_gradients_do_not_add_up_from_clipped_changes():
    target, observed, rows, _ = view(Scaffold(local_steps=1), clipped(0.5), sizes=(1,) * 5, seed=1)
    found = TelescopingFit().run(observed, target, np.random.default_rng(0))
    assert not found.diagnostics["known points"]
    assert sample_error(found.value, rows) < 1e-3


def test_a_clip_that_nothing_reaches_changes_nothing():
    target, observed, rows, labels = view(LoSAC(learning_rate=0.02), chain(clip(1e3), Quantise()), sizes=(1,) * 5)
    known, blind = (
        problem_from_view(seen, target, rounds=4).equations for seen in (observed, without(observed, clips=()))
    )
    point = (rows + np.random.default_rng(0).normal(0, 0.1, rows.shape)) @ known.basis.T
    turn = known.basis @ blind.basis.T
    for ours, theirs in zip(known.linearised(point, labels), blind.linearised(point @ turn, labels), strict=True):
        np.testing.assert_allclose(np.linalg.norm(ours), np.linalg.norm(theirs), rtol=1e-6)


def test_shares_are_found_where_known_and_unknown_lie_in_the_same_space():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(8, 10, 3)) @ rng.normal(size=(3, 64))
    known, true = rng.normal(size=(8, 10, 64)), rng.uniform(0.2, 1.0, 4)
    groups = np.repeat(np.arange(4), 2)
    known[:2] = 0.0  # the first round, before anything was broadcast
    true[0] = 1.0  # of which nothing tells
    np.testing.assert_allclose(
        data_free_factors(data + true[groups][:, None, None] * known, known, groups, 3), true, atol=1e-12
    )
    groups[4:] = -1
    true[2:] = 1.0
    scale = np.append(true, 1.0)[groups][:, None, None]
    np.testing.assert_allclose(data_free_factors(data + scale * known, known, groups, 3), true[:2], atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- noise


def noised(multiplier, norm=1.0, seed=0):
    return chain(clip(norm), SteadyGaussian(gaussian(multiplier), seed), Quantise())


def normal_messages(prior, each, rng, features=5):
    """Messages that count rows so much, of one federation, and the covariance of all their entries."""
    counts, bias = rng.normal(size=(7, len(each))), rng.normal(size=(7, 1))
    turn = np.linalg.qr(np.column_stack([np.ones(features), rng.normal(size=(features, features - 1))]))[0]
    level = prior.level * np.ones((features, features)) + prior.mean * np.eye(features)
    cov = np.kron(np.outer(each, each), level) + np.kron(np.diag(each), prior.own * np.eye(features))
    messages = rng.normal(size=(7, features))
    return LinearMessages(features, counts, messages @ turn, bias), cov, messages, turn


def test_the_posterior_mean_is_that_of_the_joint_normal_law():
    rng, prior, each = np.random.default_rng(0), GaussianRowPrior(0.3, 0.2, 0.1), np.ones(3)
    linear, cov, messages, turn = normal_messages(prior, each, rng)
    forward = np.kron(linear.coefficients, np.eye(5))
    gain = cov @ forward.T @ np.linalg.inv(forward @ cov @ forward.T + np.eye(35))
    found = linear.rows(prior)
    np.testing.assert_allclose(found[:, :-1] @ turn.T, (gain @ messages.ravel()).reshape(3, 5), atol=1e-12)
    spread = np.diag(cov - gain @ forward @ cov).reshape(3, 5).sum(axis=1)
    np.testing.assert_allclose(found[:, -1] ** 2, spread, atol=1e-12)


def test_messages_are_as_probable_as_the_joint_normal_law_has_it():
    values = []
    each = np.array([2.0, 1.0, 0.0])
    for prior in (GaussianRowPrior(0.3, 0.2, 0.1), GaussianRowPrior(0.01, 0.5, 0.3)):
        linear, cov, messages, _ = normal_messages(prior, each, np.random.default_rng(2))
        forward = np.kron(linear.coefficients, np.eye(5))
        law = multivariate_normal(np.zeros(35), forward @ cov @ forward.T + np.eye(35))
        off = np.sum((linear.bias[:, 0] - linear.coefficients @ each) ** 2) / 2
        values.append(linear.likelihoods([prior], each[None])[0, 0] - law.logpdf(messages.ravel()) + off)
    assert values[0] == pytest.approx(values[1], abs=1e-9)  # up to a constant


@pytest.mark.parametrize("index", first_ones([0, 3, 5]), ids=["DSGD", "LoSAC", "MimeSVRG"])
def test_errors_fall_with_the_noise_and_are_never_far_above_those_of_saying_nothing(index):
    method, norm = METHODS[index]
    errors = []
    for multiplier in (5.0, 0.2, 0.01):
        target, observed, rows, _ = view(method, noised(multiplier, norm), views.released, sizes=(1,) * 5, seed=1)
        found = SampleFit().run(observed, target, np.random.default_rng(0))
        errors.append(sample_error(found.value, rows))
        assert found.diagnostics["explained"]
    assert max(errors) < 1.15  # rows of zeros: 1
    assert errors[2] < min(errors[:2])
    assert errors[2] < 0.45
    blind = SampleFit().run(without(observed, noise={}), target, np.random.default_rng(0))
    assert sample_error(blind.value, rows) > errors[2]


def over_noises(method, multiplier, change, **setting):
    """Mean error, over draws of the noise, of the attack on a changed view of what was released."""
    errors = []
    for seed in range(4):
        target, observed, rows, _ = view(method, noised(multiplier, seed=seed), views.released, seed=1, **setting)
        errors.append(sample_error(SampleFit().run(change(observed), target, np.random.default_rng(0)).value, rows))
    return np.mean(errors)


@pytest.mark.exhaustive
def test_an_attack_blind_to_strong_noise_amplifies_it():
    assert over_noises(FedAvg(), 1.0, lambda seen: seen, sizes=(1,) * 5) < 1.15
    assert over_noises(FedAvg(), 1.0, lambda seen: without(seen, noise={}), sizes=(1,) * 5) > 1.5


def test_labels_are_counted_under_noise_and_are_sure_where_it_is_weak():
    certain = []
    for multiplier in (0.05, 5.0):
        target, observed, _, labels = view(DSGD(), noised(multiplier), views.released, sizes=(1,) * 5, seed=1)
        system = whitened_equations(problem_from_view(observed, target, rounds=6).simulation)
        counts, sure = likeliest_label_counts(system)
        if multiplier < 1:
            np.testing.assert_array_equal(counts, np.bincount(labels, minlength=10))
        certain.append(float(sure @ counts) / 5)
    assert certain[0] > 0.99
    assert certain[1] < 0.5


def test_shuffled_messages_under_weak_noise_are_not_explained():
    target, observed, _, _ = view(DSGD(), noised(0.01), views.released, sizes=(1,) * 5, seed=1)
    nothing = views.shuffled(observed, np.random.default_rng(0))
    assert not SampleFit().run(nothing, target, np.random.default_rng(0)).diagnostics["explained"]


def test_several_rows_each_and_no_bias():
    method = DSGD(problem=SoftmaxRegression(bias=False))
    assert over_noises(method, 0.02, lambda seen: seen, sizes=(2, 1, 2)) < 0.75


def test_a_fit_under_noise_has_as_many_unknowns_as_its_rows_have_directions():
    """One round of one output shows one direction, so that 60 rows are 60 unknowns, not 60 x 64."""
    method = DSGD(problem=LogisticRegression(bias=False))
    federation, clients = scene(method, sizes=(20,) * 3, rounds=1, defence=noised(0.01))
    seen, target = views.released(federation.transcript, None), Target(method, federation.public)
    problem = problem_from_view(seen, target, rounds=4)
    assert problem.equations.shape == (60, 1)
    rows, labels = np.vstack([c.x for c in clients]), np.concatenate([c.y for c in clients])
    searched = rows @ problem.equations.basis.T @ problem.equations.basis
    estimate = PosteriorEstimate.of(problem.simulation)
    tracemalloc.start()
    try:
        fitted = estimate.fitted(searched, labels)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fitted.objective < replace(estimate, rows=searched, labels=labels).objective
    assert most < 1e7  # a root of the prior of all 60 x 60 coordinates takes 1e8 bytes


def test_the_root_of_the_prior_is_that_of_its_covariance() -> None:
    prior = GaussianRowPrior(0.3, 0.2, 0.1)
    root = prior.root(4)
    np.testing.assert_allclose(np.linalg.inv(root.T @ root), 0.1 * np.eye(4) + 0.5, atol=1e-12)
