"""RecoveredMoments of rows by class, where the client step knows the labels."""

from __future__ import annotations

import numpy as np
import pytest

from securefed import Dataset, Federation, Public
from securefed._auditing.own.function_algorithm import as_algorithm
from securefed.attacks import Target, views
from securefed.attacks._generic import LowDigits, ProbeGram, Replay, uses_labels
from securefed.attacks._generic.label_regression import NearestClient
from securefed.attacks._generic.message_units import grid
from securefed.attacks._generic.moment_map import ScaledClientStep
from securefed.attacks.scores import relative_error
from securefed.errors import TranscriptError

START = {"round": np.zeros(1)}
ROWS = [np.random.default_rng(i).uniform(-1, 1, (6, 3)) for i in range(3)]
CLASSES = [Dataset(x, np.array([0, 1, 2, 2, i % 3, 1])) for i, x in enumerate(ROWS)]
RESPONSES = [Dataset(x, x @ np.arange(3.0) + 1) for x in ROWS]


def replay(function, data, view="server"):
    method = as_algorithm(function, data[0], START, None, "numpy")
    transcript = Federation(method, data).run(1).transcript
    seen = views.server(transcript, 1) if view == "server" else views.sum_only(transcript, 1)
    labels = np.concatenate([data[i].y for i in sorted(seen.members)])
    return Replay(seen, Target(method, Public.of(data)), labels)


def classwise(rows, broadcast, labels):
    return {"y": np.stack([rows[labels == c].T @ rows[labels == c] for c in range(3)])}


def products(rows, broadcast, labels):
    return {"gram": rows.T @ rows, "y": rows.T @ labels, "labels": labels @ labels}


def plain(rows, broadcast, labels):
    return {"gram": rows.T @ rows}


@pytest.mark.parametrize("view", ["server", "sum only"])
@pytest.mark.parametrize(
    ("function", "data"), [(classwise, CLASSES), (products, CLASSES), (products, RESPONSES), (plain, CLASSES)]
)
def test_the_gram_matrix_is_exact_behind_labels(function, data, view) -> None:
    again = replay(function, data, view)
    rows = np.concatenate([data[i].x for i in again.members])
    found = ProbeGram().solve(again, np.random.default_rng(0)).gram()
    assert relative_error(found.value, rows.T @ rows) < 1e-7
    assert found.diagnostics["explained"]


@pytest.mark.parametrize(
    "function",
    [
        lambda rows, b, labels: {"y": np.tanh(rows).T @ labels},
        lambda rows, b, labels: {"y": rows.T @ (labels - labels.mean())},  # a row's part hangs on the others' labels
        lambda rows, b, labels: {"y": rows.T @ rows, "n": np.array([len(set(labels.tolist()))])},
    ],
    ids=["not quadratic", "other rows' labels", "not a sum over labels"],
)
def test_what_is_no_sum_over_rows_of_each_class_is_refused(function) -> None:
    with pytest.raises(TranscriptError, match="not linear in the rows' moments"):
        ProbeGram().solve(replay(function, CLASSES), np.random.default_rng(0)).gram()


def test_numbers_of_labels_are_exact_where_the_messages_tell_them() -> None:
    def counted(rows, broadcast, labels):
        return {"y": rows.T @ rows, "n": np.bincount(labels, minlength=3) @ [1.0, 2.5, 7.0]}

    def told(rows, broadcast, labels):
        return {"y": rows.T @ rows, "n": np.bincount(labels, minlength=3)}

    labels = np.concatenate([data.y for data in CLASSES])
    prior = np.concatenate([data.x for data in CLASSES])
    for function, exact in ((told, True), (counted, False)):
        again = replay(function, CLASSES)
        found = ProbeGram().solve(again, np.random.default_rng(0), prior, labels, counted=False).counts()
        truth = np.bincount(CLASSES[1].y, minlength=3)
        assert found.value.sum() == pytest.approx(6)
        assert bool(np.allclose(found.value, truth, atol=1e-6)) == exact


def test_whether_messages_use_labels_is_found_out() -> None:
    rng = np.random.default_rng(0)
    assert uses_labels(replay(products, CLASSES), rng) and not uses_labels(replay(plain, CLASSES), rng)
    assert ScaledClientStep.of(replay(products, CLASSES), rng).classes == (0, 1, 2)
    assert ScaledClientStep.of(replay(products, RESPONSES), rng).response > 0


def test_one_row_is_its_own_mean_and_several_are_their_classes() -> None:
    single = [Dataset(data.x[:1] + 2, data.y[:1]) for data in CLASSES]
    prior = np.concatenate([data.x for data in single])
    found = ProbeGram().solve(replay(plain, single), np.random.default_rng(0), prior).rows(prior)
    assert relative_error(found.value, single[1].x) < 1e-6  # its sign follows from the prior
    sums = replay(lambda rows, b, labels: {"y": np.eye(3)[labels].T @ rows}, CLASSES)
    means = ProbeGram().solve(sums, np.random.default_rng(0), prior).rows(prior).value
    for label in range(3):
        mine = CLASSES[1].y == label
        np.testing.assert_allclose(means[mine], np.tile(CLASSES[1].x[mine].mean(0), (mine.sum(), 1)), atol=1e-7)


def test_last_digits_that_say_nothing_are_refused() -> None:
    rng = np.random.default_rng(0)
    rows, noise = rng.normal(size=(200, 6)), rng.normal(size=(200, 6))
    assert LowDigits.learn(rows, np.round(noise, 3) + 1e-6 * rows).cut.place >= 3
    for nothing in (noise, np.round(noise, 3), rows + 0.1 * noise):  # the last one's whole numbers say it already
        with pytest.raises(TranscriptError, match="no last digits"):
            LowDigits.learn(rows, nothing)


def test_the_nearest_client_knows_what_one_number_codes() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(4, [0.5, 0.3, 0.2], size=200).astype(float)
    noise = rng.normal(size=(200, 2))
    sent = np.column_stack([noise, counts @ [1.0, 1e-2, 1e-4]])
    found = NearestClient.of(sent, counts, [slice(0, 2), slice(2, 3)])
    assert found is not None and found.place == slice(2, 3) and found.expected < 0.2
    np.testing.assert_array_equal(found(sent[7]), counts[7])
    blind = NearestClient.of(noise, counts, [slice(0, 2)])
    assert blind is not None and blind.expected > 1
    assert NearestClient.of(np.zeros((200, 99)), counts, [slice(0, 99)]) is None


@pytest.mark.parametrize("step", [0.02, 0.5, 2.0**-7, 1e-3])
def test_the_step_of_rounded_numbers_is_inferred(step) -> None:
    values = np.random.default_rng(0).normal(size=50) * 5
    assert grid(np.round(values / step) * step) == pytest.approx(step)
    assert grid(values) == 0  # numbers of all digits
    assert grid(np.round(values)) == 0  # counts are exact
    assert grid(np.full(50, 0.25)) == 0  # one number is a multiple of anything
