"""The detector: scores, the threshold from the ROC curve, the seven metrics, and its edges."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score

from securefed import Dataset
from securefed.algorithms import centralised
from securefed.algorithms._pca.operators import orth
from securefed.detection import AnomalyDetector, metrics, projection, reconstruction_errors, roc_threshold
from securefed.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def plane(rows, off_plane, rng):
    """Rows near a plane of 8 dimensions' first two, and how far off it they lie."""
    x = rng.normal(size=(rows, 8)) * 0.05
    x[:, :2] += rng.normal(size=(rows, 2)) * 3
    x[:, 2:] += off_plane * rng.normal(size=(rows, 6))
    return x


def test_scores_are_distances_to_the_subspace_whatever_basis_spans_it():
    U, x = orth(RNG.normal(size=(8, 3))), RNG.normal(size=(20, 8))
    expected = np.linalg.norm(x @ (np.eye(8) - U @ U.T), axis=1)
    for basis in (U, U @ RNG.normal(size=(3, 3)), 100 * U):
        np.testing.assert_allclose(reconstruction_errors(projection(basis), x), expected, atol=1e-10)
    np.testing.assert_allclose(reconstruction_errors(projection(U), x @ U @ U.T), 0, atol=1e-12)


def test_a_detector_finds_rows_off_the_plane():
    rng = np.random.default_rng(1)
    x = np.vstack([plane(300, 0, rng), plane(200, 1, rng)])
    anomalous = np.repeat([0, 1], [300, 200])
    basis = centralised([Dataset(plane(400, 0, rng))], 2).basis
    detector = AnomalyDetector.fit(projection(basis), x, anomalous)
    found = detector.measure(np.vstack([plane(300, 0, rng), plane(200, 1, rng)]), anomalous)
    assert found.accuracy > 0.97 and found.auc_roc > 0.99 and found.f1 > 0.97
    np.testing.assert_array_equal(detector.flags(x), reconstruction_errors(projection(basis), x) >= detector.threshold)
    wrong = AnomalyDetector.fit(projection(np.eye(8)[:, 5:7]), x, anomalous).measure(x, anomalous)
    assert wrong.auc_roc < 0.8  # positive control: another plane does not


@given(seed=st.integers(0, 2**16), levels=st.integers(1, 9), rule=st.sampled_from(["rates", "accuracy"]))
@example(seed=215, levels=4, rule="rates")  # in floating point the lower of two equals is ahead by 1e-16
@settings(max_examples=60)
def test_the_threshold_is_the_best_of_all_ties_included(seed, levels, rule):
    """Against all thresholds tried one by one; few levels make many ties."""
    rng = np.random.default_rng(seed)
    labels = np.r_[0, 1, rng.integers(0, 2, 30)].astype(bool)
    scores = rng.integers(0, levels, 32).astype(float) + labels * rng.integers(0, 2)

    def gain(t):
        if rule == "accuracy":
            return np.mean((scores >= t) == labels)
        return np.mean(scores[labels] >= t) - np.mean(scores[~labels] >= t)

    candidates = [np.inf, *np.unique(scores)[::-1]]
    best = max(gain(t) for t in candidates)
    found = roc_threshold(scores, labels, rule)
    np.testing.assert_allclose(gain(found), best, atol=1e-12)
    assert not any(t > found and gain(t) > best - 1e-12 for t in candidates)


@given(seed=st.integers(0, 2**16))
@settings(max_examples=25)
def test_metrics_are_those_of_their_definitions(seed):
    rng = np.random.default_rng(seed)
    labels = np.r_[0, 1, rng.integers(0, 2, 40)]
    scores = np.round(rng.normal(size=42) + labels, 1)
    got = metrics(scores, labels)
    flagged = scores >= got.threshold
    assert got.accuracy == pytest.approx(accuracy_score(labels, flagged))
    assert got.precision == pytest.approx(precision_score(labels, flagged, zero_division=0))
    assert got.recall == pytest.approx(recall_score(labels, flagged))
    assert got.f1 == pytest.approx(f1_score(labels, flagged, zero_division=0))
    assert got.false_negative_rate == pytest.approx(1 - got.recall)
    above = scores[labels == 1][:, None] - scores[labels == 0]
    assert got.auc_roc == pytest.approx(np.mean((above > 0) + 0.5 * (above == 0)))  # Mann-Whitney
    ordered = np.unique(scores)[::-1]
    precision = [np.mean(labels[scores >= t]) for t in ordered]
    recall = np.r_[0, [np.mean(scores[labels == 1] >= t) for t in ordered]]
    assert got.average_precision == pytest.approx(np.sum(np.diff(recall) * precision))


def test_perfect_scores_reversed_scores_and_constant_scores():
    labels = np.array([0, 0, 1, 1, 1])
    perfect = metrics(np.array([0.1, 0.2, 0.7, 0.8, 0.9]), labels)
    assert astuple(perfect) == (0.7, 1, 1, 1, 1, 0, 1, 1)
    for scores, auc in ((np.full(5, 3.0), 0.5), (np.array([9.0, 8, 3, 2, 1]), 0.0)):
        found = metrics(scores, labels)  # nothing beats chance: nothing is flagged
        assert found.threshold == np.inf and found.auc_roc == auc
        assert (found.precision, found.recall, found.f1, found.false_negative_rate) == (0, 0, 0, 1)
    everything = metrics(np.full(5, 3.0), labels, threshold=3.0)  # ties are flagged
    assert everything.recall == 1 and everything.accuracy == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("scores", "labels", "words"),
    [
        ([1.0, 2.0], [0, 0], "all 2 rows are normal"),
        ([1.0, 2.0], [1, 1], "all 2 rows are anomalous"),
        ([1.0, 2.0], [0, 2], "encode attacks as 1"),
        ([1.0, np.nan], [0, 1], "1 scores are NaN"),
        ([1.0, 2.0, 3.0], [0, 1], "of one length"),
        ([], [], "of one length"),
    ],
)
def test_rows_that_cannot_be_judged_are_refused_by_name(scores, labels, words):
    for judge in (metrics, roc_threshold):
        with pytest.raises(DataError, match=words):
            judge(np.array(scores), np.array(labels))


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match="rule must be 'rates' or 'accuracy'"):
        roc_threshold(np.array([1.0, 2.0]), np.array([0, 1]), "f1")


def test_reconstructions_that_are_none_are_refused():
    x = RNG.normal(size=(4, 3))
    with pytest.raises(DataError, match="decode"):
        reconstruction_errors(lambda rows: rows[:, :2], x)
    with pytest.raises(DataError, match="first: row 2"):
        reconstruction_errors(lambda rows: np.where(np.arange(4)[:, None] == 2, np.inf, rows), x)
