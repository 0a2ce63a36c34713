"""Attacks that know only how to run the client step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from securefed import Dataset, Federation, Public
from securefed._auditing.own.function_algorithm import as_algorithm
from securefed.algorithms import SSI
from securefed.attacks import FitRows, PowerGram, Target, View, views
from securefed.attacks._engine.unknowns import RowEntries
from securefed.attacks._generic import ClearRows, ProbeGram, Replay
from securefed.attacks._generic.moment_map import ScaledClientStep, pack, unpack
from securefed.attacks._generic.replayed_member import ReplayedMember
from securefed.attacks.scores import match, relative_error
from securefed.errors import ConfigError, TranscriptError

RNG = np.random.default_rng(0)
DATA = [Dataset(np.random.default_rng(i).uniform(-1, 1, (4, 5))) for i in range(3)]


def product(rows, broadcast):
    return {"y": rows.T @ (rows @ broadcast["z"])}


def shifted(rows, broadcast):
    """Linear in the moments of both degrees."""
    return {"y": rows.T @ (rows @ broadcast["z"]), "sum": rows.sum(0)}


def layer(rows, broadcast, labels):
    """The gradient of a linear model with bias under the logistic loss, in torch."""
    wrong = torch.sigmoid(rows @ broadcast["w"] + broadcast["b"]) - labels
    return {"w": rows.T @ wrong, "b": wrong.sum()[None]}


def rotate(broadcast, total, clients):
    return {"z": np.linalg.qr(total["y"])[0]}


def replay(function, start, combine=None, *, rounds=4, backend="numpy", data=DATA, view="server"):
    method = as_algorithm(function, data[0], start, combine, backend)
    transcript = Federation(method, data).run(rounds).transcript
    seen = views.server(transcript, 1) if view == "server" else views.sum_only(transcript, 1)
    labels = None if data[0].y is None else np.concatenate([data[i].y for i in sorted(seen.members)])
    return Replay(seen, Target(method, Public.of(data)), labels)


Z = {"z": np.linalg.qr(RNG.normal(size=(5, 2)))[0]}


@pytest.mark.parametrize("view", ["server", "sum only"])
@pytest.mark.parametrize("function", [product, shifted])
def test_a_replay_of_the_truth_is_what_was_sent(function, view) -> None:
    again = replay(function, Z, rotate, view=view)
    truth = np.concatenate([DATA[i].x for i in again.members])
    np.testing.assert_allclose(again(truth), again.messages, atol=1e-12)
    assert again.residual(truth) < 1e-14
    assert again.residual(-truth[::-1] / 2) > 0.1
    assert again.deterministic


@pytest.mark.parametrize("view", ["server", "sum only"])
@pytest.mark.parametrize("function", [product, shifted])
def test_moments_are_recovered_exactly_where_the_rounds_span_the_features(function, view) -> None:
    again = replay(function, Z, rotate, view=view)
    rows = np.concatenate([DATA[i].x for i in again.members])
    found = ProbeGram().solve(again, RNG).gram()
    assert relative_error(found.value, rows.T @ rows) < 1e-7
    assert found.residual < 1e-9
    assert found.members == frozenset(again.members)
    assert found.unknowns == (15 if function is product else 21)


def test_the_probe_works_on_a_registered_algorithm_and_agrees_with_its_own_attack() -> None:
    transcript = Federation(SSI(rank=2), DATA).run(5).transcript
    seen, target = views.server(transcript, 0), Target(SSI(rank=2), Public.of(DATA))
    ours, theirs = ProbeGram().run(seen, target, RNG), PowerGram().run(seen, target, RNG)
    truth = DATA[0].x.T @ DATA[0].x
    assert relative_error(ours.value, truth) < 1e-5
    assert relative_error(theirs.value, truth) < 1e-5


def test_a_prior_fills_in_what_the_rounds_leave_open() -> None:
    short = replay(product, Z, rotate, rounds=1)
    rows = DATA[1].x
    truth = rows.T @ rows
    bare, helped = ProbeGram().solve(short, RNG).gram(), ProbeGram().solve(short, RNG, rows[:3]).gram()
    assert relative_error(helped.value, truth) < relative_error(bare.value, truth)
    assert bare.rank < bare.unknowns


@pytest.mark.parametrize(
    "function",
    [
        lambda rows, b: {"y": np.tanh(rows).sum(0)},
        lambda rows, b: {"y": (rows - rows.mean(0)).T @ rows},
        lambda rows, b: {"y": rows[: len(rows) // 2].sum(0)},
        lambda rows, b, rng: {"y": rows.sum(0) + rng.normal(size=5)},
        lambda rows, b: {"y": np.ones(3)},
    ],
)
def test_what_is_no_sum_of_quadratic_functions_is_refused(function) -> None:
    again = replay(function, Z)
    with pytest.raises(TranscriptError, match=r"not linear|at random"):
        ProbeGram().solve(again, RNG).gram()


def test_the_departure_is_round_off_for_a_linear_step_only() -> None:
    assert ScaledClientStep(replay(shifted, Z)).departure(RNG) < 1e-12
    assert ScaledClientStep(replay(lambda rows, b: {"y": (rows**2 + 1e-3 * rows**3).sum(0)}, Z)).departure(RNG) > 1e-5


def test_packing_keeps_norms_and_is_inverted() -> None:
    matrix = RNG.normal(size=(4, 4))
    matrix = matrix + matrix.T
    assert np.linalg.norm(pack(matrix)) == pytest.approx(np.linalg.norm(matrix))
    np.testing.assert_allclose(unpack(pack(matrix), 4), matrix)


def test_rows_in_the_clear_and_the_ratio_of_a_layer_are_read_off() -> None:
    clear = replay(lambda rows, b: {"a": rows[::-1].copy(), "noise": np.ones((4, 5))}, Z)
    found = ClearRows().run(clear, clear.target, RNG)
    assert relative_error(match(found.value, DATA[1].x), DATA[1].x) == 0
    one = [Dataset(d.x[:1], np.array([i % 2])) for i, d in enumerate(DATA)]
    start = {"w": RNG.normal(size=5), "b": np.zeros(1)}
    quotient = replay(layer, start, data=one, backend="torch", rounds=1)
    ratio = ClearRows().run(quotient, quotient.target, RNG)
    assert relative_error(ratio.value, one[1].x) < 1e-12
    assert ratio.residual < 1e-12


@pytest.mark.exhaustive
def test_derivatives_through_torch_and_by_differences_agree() -> None:
    data = [Dataset(d.x, np.array([0, 1, 1, 0])) for d in DATA]
    start = {"w": RNG.normal(size=5), "b": np.zeros(1)}

    def in_numpy(rows, broadcast, labels):
        wrong = 1 / (1 + np.exp(-rows @ broadcast["w"] - broadcast["b"])) - labels
        return {"w": rows.T @ wrong, "b": wrong.sum()[None]}

    for view in ("server", "sum only"):
        a = replay(layer, start, data=data, backend="torch", rounds=2, view=view)
        b = replay(in_numpy, start, data=data, rounds=2, view=view)
        rows = a.sample(RNG)
        np.testing.assert_allclose(a(rows), b(rows), atol=1e-12)
        for index, x in enumerate(np.split(rows, len(a.sizes))):
            pair = (
                ReplayedMember(one, index, RowEntries(*x.shape, 1.0)).sent_and_tangents(x.ravel())[1] for one in (a, b)
            )
            np.testing.assert_allclose(*pair, atol=1e-8)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_nonlinear_step_is_fitted_to_round_off(backend) -> None:
    data = [Dataset(d.x[:2, :3], np.array([1, 1])) for d in DATA]
    points = iter(np.random.default_rng(3).normal(size=(20, 3)))

    def in_numpy(rows, broadcast, labels):
        wrong = 1 / (1 + np.exp(-rows @ broadcast["w"])) - labels
        return {"w": rows.T @ wrong}

    def in_torch(rows, broadcast, labels):
        return {"w": rows.T @ (torch.sigmoid(rows @ broadcast["w"]) - labels)}

    again = replay(
        in_torch if backend == "torch" else in_numpy,
        {"w": np.zeros(3)},
        lambda b, total, n: {"w": next(points)},
        data=data,
        backend=backend,
        rounds=6,
    )
    found = FitRows(starts=6).run(again, again.target, RNG)
    assert found.residual < 1e-9
    assert found.rank == found.unknowns == 6
    assert relative_error(match(found.value, data[1].x), data[1].x) < 1e-6


def test_what_cannot_be_attacked_is_refused_with_its_size() -> None:
    again = replay(product, Z, rotate)
    big = FitRows(most=3).applies(again.target, again.observed)
    assert big is not None
    assert "20 unknowns" in big
    moved = replay(shifted, Z)
    with pytest.raises(TranscriptError, match="client steps"):
        FitRows(calls=10).run(moved, moved.target, RNG)
    with pytest.raises(TranscriptError, match="no round"):
        Replay(View("output only", 0, (), {}), again.target)
    for bad in ({"starts": 0}, {"steps": 0}, {"calls": 0}, {"most": 0}, {"goal": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            FitRows(**bad)
