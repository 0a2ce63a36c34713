"""Imported transcripts give the same views as recorded ones; an eavesdropper sees sizes that depend on no data."""

from __future__ import annotations

import numpy as np
import pytest

from securefed import Dataset, Federation, RunOptions, Transcript, chain
from securefed.algorithms import SSI
from securefed.attacks import FitRows, PowerGram, Target, views
from securefed.attacks._generic import Replay
from securefed.attacks.scores import relative_error
from securefed.defenses import secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.errors import DataError, TranscriptError
from securefed.recording import Recording
from securefed.recording._recording import named

DATA = [Dataset(np.random.default_rng(i).uniform(0, 1, (5, 6))) for i in range(4)]


def recorded(rounds=4, **arguments):
    return Federation(SSI(rank=2), arguments.pop("data", DATA), seed=0, **arguments).run(rounds).transcript


def retold(transcript, *, sums=False, broadcasts=True) -> Recording:
    recording = Recording(rows=[5] * 4, features=6)
    for record in transcript.records:
        sent = record.broadcast if broadcasts else {}
        if sums:
            recording.sums(sent, record.total, record.survivors)
        else:
            recording.round(sent, {i: transcript.contributions[record.round, i] for i in record.survivors})
    return recording


def test_a_run_told_by_another_framework_is_attacked_like_our_own(tmp_path) -> None:
    ours = recorded()
    theirs = retold(ours).finish(ours.output)
    theirs.save(tmp_path / "run.transcript")
    again = Transcript.load(tmp_path / "run.transcript")
    assert again.meta["imported"] is True
    target = Target(SSI(rank=2), retold(ours).public)
    for look in (lambda t: views.server(t, 1), lambda t: views.collusion(t, 1, [0, 2]), lambda t: views.sum_only(t, 1)):
        a, b = look(ours), look(again)
        for x, y in zip(a.rounds, b.rounds, strict=True):
            assert (x.members, x.survivors) == (y.members, y.survivors)
            for name in x.message:
                np.testing.assert_allclose(y.message[name], x.message[name], rtol=1e-12)
                np.testing.assert_array_equal(y.broadcast["basis"], x.broadcast["basis"])
    found = PowerGram().run(views.server(again, 1), target, np.random.default_rng(0))
    assert relative_error(found.value, DATA[1].x.T @ DATA[1].x) < 1e-6


def test_sums_alone_have_no_server_view_and_missing_broadcasts_are_named() -> None:
    ours = recorded()
    sums = retold(ours, sums=True).finish(ours.output)
    assert views.sum_only(sums, 0).members == {0, 1, 2, 3}
    with pytest.raises(TranscriptError, match="does not hold client 0's upload"):
        views.server(sums, 0)
    blind = retold(ours, broadcasts=False)
    seen = views.server(blind.finish(ours.output), 0)
    with pytest.raises(TranscriptError, match="holds no broadcast"):
        FitRows().run(seen, Target(SSI(rank=2), blind.public), np.random.default_rng(0))
    assert Replay(views.server(ours, 0), Target(SSI(rank=2), blind.public)).rows == 5  # the control


def test_lists_of_arrays_are_named() -> None:
    assert set(named([np.zeros(2), np.ones(1)], ["weight", "bias"])) == {"weight", "bias"}
    with pytest.raises(DataError, match="names"):
        named([np.zeros(2)], ["a", "b"])


def test_bad_recordings_are_refused() -> None:
    recording = Recording(rows=[2, 2], features=3)
    with pytest.raises(TranscriptError, match="no round"):
        recording.finish({})
    recording.round({"x": np.zeros(3)}, {0: {"g": np.ones(3)}})
    for updates, words in (
        ({}, "at least one"),
        ({1: {"g": np.ones(4)}}, "shape"),
        ({1: {"h": np.ones(3)}}, "missing"),
        ({1: {"g": np.full(3, np.nan)}}, "NaN"),
        ({1: {"g": np.array(["a", "b", "c"])}}, "numbers are needed"),
        ({7: {"g": np.ones(3)}}, "numbered 0 to 1"),
    ):
        with pytest.raises(DataError, match=words):
            recording.round({"x": np.zeros(3)}, updates)
    with pytest.raises(DataError, match="broadcast of round 1"):
        recording.round({"x": np.zeros(5)}, {0: {"g": np.ones(3)}})
    with pytest.raises(DataError, match="at least one survivor"):
        recording.sums({}, {"g": np.ones(3)}, [])


@pytest.mark.parametrize("defense", [chain(Quantise()), chain(secure_aggregation())])
def test_sizes_say_who_takes_part_and_nothing_about_data(defense) -> None:
    other = [Dataset(data.x[::-1] ** 3) for data in DATA]
    first, second = (views.traffic(recorded(defense=defense, data=data)) for data in (DATA, other))
    assert first == second
    fewer = views.traffic(recorded(defense=defense, options=RunOptions(schedule=lambda k: (0, 1, 2))))
    assert {packet.sender for packet in first} - {packet.sender for packet in fewer} == {3}
    seen = views.eavesdropper(recorded(defense=defense), 0)
    assert (seen.view, seen.rounds, seen.output) == ("eavesdropper", (), {})
    assert FitRows().applies(Target(SSI(rank=2), Recording(rows=[5] * 4, features=6).public), seen) is not None


@pytest.mark.parametrize(
    "facts", [{"rows": [0, 5]}, {"rows": []}, {"features": 0}, {"feature_bound": -1.0}, {"facts": {"a": np.ones(2)}}]
)
def test_public_facts_that_no_run_can_have_are_refused(facts) -> None:
    with pytest.raises(DataError, match="public facts"):
        Recording(**{"rows": [5, 5], "features": 3, **facts})


def test_what_is_no_arrays_by_name_is_refused_and_facts_do_not_overrule_the_sizes() -> None:
    recording = Recording(rows=[5, 5], features=3, facts={"rows": [1]})
    good = {"g": np.ones(3)}
    for broadcast, updates in ((np.ones(3), {0: good}), (good, [good]), (good, {0: np.ones(3)}), (good, {0: {}})):
        with pytest.raises(DataError, match=r"names to arrays|client numbers to updates"):
            recording.round(broadcast, updates)
    with pytest.raises(DataError, match="numbered"):
        recording.round(good, {"a": good})
    recording.round(good, {0: good})
    assert recording.finish({}).meta["rows"] == [5, 5]
