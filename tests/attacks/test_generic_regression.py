"""Regression of rows on messages of simulated clients: where no fit can follow, and never worse than the guess."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from securefed import Dataset, Federation, Public
from securefed._auditing.own.function_algorithm import as_algorithm
from securefed.attacks import FitRows, Target, views
from securefed.attacks._generic import ClearRows, ProbeGram, RegressCounts, RegressRows, Replay
from securefed.attacks._generic.moment_map import ScaledClientStep
from securefed.attacks._generic.row_regression import KernelRidge, _best_ridge, _rows
from securefed.attacks.scores import match, relative_error
from securefed.errors import ConfigError, TranscriptError

NOTHING_SENT = {"round": np.zeros(1)}


def drawn(seed, clients=4, rows=5, features=3):
    return [Dataset(x) for x in np.random.default_rng(seed).uniform(0, 1, (clients, rows, features))]


def replay(function, data, rounds=1, view=views.server):
    method = as_algorithm(function, data[0], NOTHING_SENT, None, "numpy")
    transcript = Federation(method, data, seed=3).run(rounds).transcript
    pooled = np.concatenate([own.x for own in data])
    return Replay(view(transcript, 1), Target(method, Public.of(data)), prior=pooled)


def run(attack, observed):
    return attack.run(observed, observed.target, np.random.default_rng(0))


def errors(function, seed=0, rounds=1):
    """Of the attack, matched to the truth, and of the prior's mean."""
    data = drawn(seed)
    again = replay(function, data, rounds)
    found = RegressRows(fewest=400).run(again, again.target, np.random.default_rng(0))
    truth = data[1].x
    guess = np.broadcast_to(again.prior.mean(axis=0), truth.shape)
    return relative_error(match(found.value, truth), truth), relative_error(guess, truth), found


def pad(rows, broadcast, rng):
    """A one-time pad, and its key."""
    key = 10 * rng.normal(size=rows.shape)
    return {"key": key, "sum": rows + key}


def noisy(rows, broadcast, rng):
    return {"rows": rows + 0.3 * rng.normal(size=rows.shape)}


def noise(rows, broadcast, rng):
    return {"noise": rng.normal(size=rows.shape)}


def bits(rows, broadcast):
    return {"above": rows > 0.5}


def steps(rows, broadcast):
    return {"steps": np.round(255 * rows).astype(np.int64)}


def test_rows_behind_draws_that_are_sent_as_well_are_read_off() -> None:
    error, guess, found = errors(pad)
    assert error < 1e-6 * guess
    assert found.residual < 1e-6


def test_steps_of_rows_are_found_to_their_width_and_bits_to_their_conditional_mean() -> None:
    error, guess, found = errors(steps)
    assert error < 0.01 * guess
    error, guess, found = errors(bits)
    # rows uniform in (0, 1): half the spread is left given the bit
    assert 0.4 * guess < error < 0.65 * guess
    assert found.residual == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize("rounds", [1, 4])
def test_noisy_rows_are_weighed_as_the_best_linear_estimate_does(rounds) -> None:
    """For rows of variance v and noise of variance s over the rounds, what is left is v s / (v + s)."""
    found = errors(noisy, rounds=rounds)[2]
    v, s = 1 / 12, 0.09 / rounds
    assert found.residual == pytest.approx(np.sqrt(s / (v + s)), rel=0.08)


def test_independent_noise_says_nothing_and_leaves_the_guess() -> None:
    """And it is the attack whose silence counts there: a fit would call any rows an explanation, and refuses."""
    error, guess, found = errors(noise, rounds=3)
    assert error < guess * 1.01
    assert 0.97 < found.residual < 1.03
    assert found.diagnostics["explained"]
    with pytest.raises(TranscriptError, match="any rows would explain"):
        run(FitRows(), replay(noise, drawn(0)))
    assert "explained" not in errors(steps)[2].diagnostics


def test_draws_that_are_not_added_leave_its_silence_without_meaning() -> None:
    def sketch(rows, broadcast, rng):
        direction = rng.normal(size=rows.shape[1])
        return {"direction": direction, "along": rows @ direction}

    found = errors(sketch, rounds=6)[2]
    assert found.residual > 0.9  # it finds nothing, though six equations a row stand in the clear
    assert found.diagnostics["explained"] is False


def test_errors_left_out_are_those_of_models_without_that_client() -> None:
    rng = np.random.default_rng(0)
    sent, values = rng.normal(size=(60, 4)), rng.normal(size=(60, 3))
    values += sent[:, :3]
    known = (sent - sent.mean(0)) / sent.std(0) / 2
    values -= values.mean(0)
    for quadratic in (False, True):
        kernel = (1 + known @ known.T) ** 2 if quadratic else known @ known.T
        error, weights = _best_ridge(kernel, values)
        # the ridge that was chosen: (K + ridge) weights = values
        ridge = np.linalg.lstsq(weights.reshape(-1, 1), (values - kernel @ weights).reshape(-1, 1))[0].item()
        left = []
        for i in range(60):
            others = np.arange(60) != i
            alone = np.linalg.solve(kernel[np.ix_(others, others)] + ridge * np.eye(59), values[others])
            left.append(np.mean((values[i] - kernel[i, others] @ alone) ** 2))
        assert error == pytest.approx(np.mean(left), rel=1e-6)


def test_a_product_of_what_is_sent_takes_the_quadratic_kernel() -> None:
    rng = np.random.default_rng(0)
    sent = rng.normal(size=(300, 3))
    product, total = sent[:, :1] * sent[:, 1:2], sent[:, :1] + sent[:, 1:2]
    assert KernelRidge.of(sent, product).quadratic and not KernelRidge.of(sent, total).quadratic
    here = np.array([0.5, -2.0, 1.0])
    assert KernelRidge.of(sent, product)(here)[0] == pytest.approx(-1.0, abs=1e-5)
    assert KernelRidge.of(sent, total)(here)[0] == pytest.approx(-1.5, abs=1e-9)
    constant = np.column_stack([sent, np.full(300, 7.0)])  # says nothing, whatever it is
    assert KernelRidge.of(constant, total)(np.append(here, 8.0))[0] == pytest.approx(-1.5, abs=1e-9)


def test_simulated_rows_have_the_priors_mean_and_covariance_and_are_none_of_its_rows() -> None:
    again = replay(bits, drawn(0))
    again = replace(again, target=Target(again.target.algorithm, replace(again.target.public, feature_bound=50.0)))
    rows = np.concatenate([_rows(again, np.random.default_rng(i))[0] for i in range(4000)])
    np.testing.assert_allclose(rows.mean(axis=0), again.prior.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(np.cov(rows.T), np.cov(again.prior.T, bias=True), atol=0.003)
    assert min(np.linalg.norm(rows - own, axis=1).min() for own in again.prior) > 0


def test_too_few_client_steps_are_refused_with_their_number() -> None:
    with pytest.raises(TranscriptError, match="50 simulated federations take 200 client steps, more than 100"):
        run(RegressRows(calls=100), replay(bits, drawn(0), rounds=4))
    with pytest.raises(ConfigError, match="fewest"):
        RegressRows(fewest=10)


def test_a_step_that_tells_real_rows_from_tried_ones_is_not_called_linear() -> None:
    """RecoveredMoments, and the rows themselves where all entries are positive, as real ones are."""

    def positive(rows, broadcast):
        return {"m": rows.T @ rows, "u": rows * (rows >= 0).all()}

    again = replay(positive, drawn(0))
    assert ScaledClientStep(replace(again, prior=None)).departure(np.random.default_rng(0)) < 1e-12  # the trap
    assert ScaledClientStep(again).departure(np.random.default_rng(0)) > 0.1
    blind = ProbeGram().solve(replace(again, prior=None), np.random.default_rng(0)).gram()
    assert not blind.diagnostics["explained"]


def test_rows_that_a_message_lacks_are_the_priors_mean() -> None:
    def first(rows, broadcast):
        return {"u": rows[:1]}

    data = drawn(0)
    again = replay(first, data)
    found = run(ClearRows(), again).value
    np.testing.assert_array_equal(found[0], data[1].x[0])
    np.testing.assert_allclose(found[1:], np.broadcast_to(again.prior.mean(axis=0), (4, 3)))


# Labels


def labelled(seed):
    """Three classes whose rows differ in their mean."""
    rng = np.random.default_rng(seed)
    labels = [rng.integers(0, 3, 8) for _ in range(4)]
    return [Dataset(rng.uniform(0, 1, (8, 3)) + 0.3 * np.eye(3)[y], y) for y in labels]


def counted(function, data, view=views.server):
    again = replay(function, data, view=view)
    again = replace(again, labels=np.concatenate([data[i].y for i in sorted(again.observed.members)]))
    labels = np.concatenate([own.y for own in data])
    learned = RegressCounts().learn(again, labels, np.random.default_rng(0))
    truth = sum(np.bincount(data[i].y, minlength=3) for i in sorted(again.observed.members))
    return run(learned, again), truth


def gradient(rows, broadcast, labels):
    """Of softmax at zero weights, with a bias: the bias tells the counts."""
    wrong = np.full((len(rows), 3), 1 / 3) - np.eye(3)[labels]
    return {"w": rows.T @ wrong, "b": wrong.sum(0)}


@pytest.mark.parametrize("view", [views.server, views.sum_only])
def test_a_bias_tells_how_many_rows_each_class_has(view) -> None:
    found, truth = counted(gradient, labelled(0), view)
    np.testing.assert_allclose(found.value, truth, atol=1e-5)
    assert found.residual < 1e-5


def test_messages_without_labels_say_of_them_what_the_rows_say() -> None:
    found, truth = counted(lambda rows, broadcast, labels: {"none": np.ones(2)}, labelled(0))
    assert found.residual == pytest.approx(1, abs=0.05)
    assert found.value.sum() == pytest.approx(truth.sum())
    half = counted(lambda rows, broadcast, labels: {"sum": rows.sum(0)}, labelled(0))[0]
    assert 0.2 < half.residual < 0.95


def test_responses_and_very_many_classes_are_not_counted() -> None:
    again = replay(bits, drawn(0))
    for labels, words in ((np.zeros(20), "responses"), (np.arange(20) * 10, "got 191")):
        with pytest.raises(TranscriptError, match=words):
            RegressCounts().learn(again, labels, np.random.default_rng(0))
