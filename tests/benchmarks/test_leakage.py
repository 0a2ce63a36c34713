"""The curves of leakage: one point of each kind, its limits, and the page."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pages import leakage, leakage_page
from benchmarks.pages.leakage_curves import CURVES, Point, asked, is_current

POINTS = {point.name: point for curve in CURVES for point in curve.points()}


def test_points_are_named_once() -> None:
    assert len(POINTS) == sum(1 for curve in CURVES for _ in curve.points())


def test_a_known_leak_is_scored_as_one() -> None:
    assert leakage.measure(POINTS["rows/FedAvg/1"], seed=0)["leakage"] > 0.999


def test_a_refusal_leaves_the_guess_and_its_reason() -> None:
    found = leakage.measure(POINTS["rounds/FedPG/1"], seed=0)
    assert found["leakage"] == 0.0
    assert "duals/fedpg" in found["refused"]


def test_messages_are_rounded_and_broadcasts_are_not() -> None:
    point = POINTS["rows/SSI/4"]
    _, result, _ = leakage.federation(leakage.Run.of(point), 0)
    exact = leakage.VIEWS[point.view](result.transcript, 0)
    for wire, unit in (("float32", 2.0**-24), ("float16", 2.0**-11)):
        cut = leakage.rounded(exact, wire)
        for before, after in zip(exact.rounds, cut.rounds, strict=True):
            assert after.broadcast is before.broadcast
            for name, value in before.message.items():
                size = np.abs(value).max()
                assert 0 < np.abs(after.message[name] - value).max() <= unit * size
    assert leakage.rounded(exact, "float64") is exact


def test_missing_data_is_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECUREFED_DATA", str(tmp_path))
    leakage.rows_of.cache_clear()
    found = leakage.measure(replace(POINTS["data/SSI/uci_har"], rounds=1), seed=0)
    leakage.rows_of.cache_clear()
    assert "uci_har" in found["missing"]


def test_an_attack_out_of_time_is_stopped() -> None:
    with pytest.raises(leakage.OutOfTime), leakage.limited(0.01):
        end = time.process_time() + 5.0
        while time.process_time() < end:
            pass
    with leakage.limited(5.0):
        pass  # within the time nothing is raised


def test_a_changed_setting_is_measured_again() -> None:
    point = POINTS["data/SSI/digits"]
    stored = {point.name: asked(point) | {"seeds": []}}
    assert is_current(point, stored)
    assert not is_current(replace(point, clients=3), stored)
    assert not is_current(point, {})


def test_page_says_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leakage_page, "DOCS", tmp_path)
    seeds = {
        "rows/SSI/1": [{"leakage": 0.5, "error": 0.1}, {"leakage": 0.7, "error": 0.05}],
        "rows/FAPS/1": [{"out of time": 1.0, "leakage": 0.0, "error": 0.2}] * 2,
        "rows/FedPG/2": [{"refused": "too few", "leakage": 0.0, "error": 0.2}] * 2,
    }
    stored = {name: asked(point_of(name)) | {"seeds": found} for name, found in seeds.items()}
    (picture,) = leakage_page.write(stored)
    text = leakage_page.text(stored)
    assert picture.name == "leakage-rows.png"
    assert "| SSI | .60 (.50 to .70) |" in text
    assert "0, out of time |" in text
    assert "- FedPG at 2: too few" in text


def point_of(name: str) -> Point:
    return POINTS[name]
