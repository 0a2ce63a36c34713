"""The page shows figures in words, reconstructions beside the data, and curves; `test_cards` is about its cards."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from securefed._auditing.alerts import Alert
from securefed._auditing.engine.cell_parts import RunCounts
from securefed._auditing.engine.results import CLIENT, Artifact
from securefed._auditing.engine.statistics import NOT_DETECTED, PARTIAL, Verdict
from securefed._auditing.report import charts
from securefed._auditing.report.audit_page import render
from tests.auditing.page import text
from tests.auditing.test_report import SMALL, cell, report


def test_numbers_below_a_guess_are_words_everywhere() -> None:
    worse = replace(cell("pca/ssi", "plain", "server", -2.28), verdict=Verdict(NOT_DETECTED, 0.1))
    page = text(render(report(worse)))
    assert not re.search(r"-\d+\.\d\d\b", page)
    assert "worse than a guess" in page
    lucky = replace(worse, verdict=Verdict(PARTIAL, 0.1), runs=RunCounts(highest=0.9999))
    assert "worse than a guess partial one run: 1.00" in text(render(report(lucky)))
    wide = replace(worse, leakage=replace(worse.leakage, mean=0.02, low=-0.3, high=0.34))
    assert "up to 0.34" in text(render(report(wide)))


def artifact(secret: str, truth: np.ndarray, shape: tuple[int, int] | None = None) -> Artifact:
    return Artifact("pca/ssi", "plain", "server", "gram/power", secret, truth, truth.copy(), shape)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "truth", "shape", "shown"),
    [
        ("samples", np.eye(3, 4), (2, 2), "<img"),
        ("samples", np.eye(3, 40), None, "record 3"),
        ("gram", np.eye(4), None, "<img"),
        ("distances", 1 - np.eye(6), None, 'class="graph"'),
        ("samples", np.array(["a cat", "a dog"]), None, "a cat"),
    ],
)
def test_what_was_recovered_stands_beside_the_original_by_its_kind(kind, truth, shape, shown) -> None:
    made = report(cell("pca/ssi", "plain", "server", 1.0))
    made.settings["pca/ssi"] = {**made.settings["pca/ssi"], "secret": kind}  # type: ignore[index]
    html = render(replace(made, artifacts=(artifact(CLIENT, truth, shape),)))
    assert shown in html[html.index("What attacks computed") : html.index("<h2>One client")]
    assert shown in html[html.index('id="pca-ssi"') :]


def test_a_graph_of_wrong_distances_shows_its_wrong_edges() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(7, 2))
    true = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    made = report(cell("pca/ssi", "plain", "server", 1.0))
    made.settings["pca/ssi"] = {**made.settings["pca/ssi"], "secret": "distances"}  # type: ignore[index]
    right = artifact(CLIENT, true)
    wrong = replace(right, estimate=true.max() - true)
    pages = [render(replace(made, artifacts=(item,))) for item in (right, wrong)]
    assert [page.count('class="wrong"') > 0 for page in pages] == [False, True]


def test_a_curve_of_shares_is_linear_and_its_sizes_are_not() -> None:
    line = {"rounds": [1, 2, 4], "middle": [1.0, 0.5, 0.0], "low": [1.0, 0.4, 0.0], "high": [1.0, 0.6, 0.0]}
    drawn = charts.share_curve("Rows", "", {"the step": line})
    assert "by rows a client. the step: 1 at 1, 0 at 4." in drawn
    points = drawn.split('<polyline points="')[1].split('"')[0]
    places = np.array([[float(value) for value in point.split(",")] for point in points.split()])
    np.testing.assert_allclose(places[1], (places[0] + places[2]) / 2, atol=0.1)
    assert re.findall(r'text-anchor="middle">([^<]+)<', drawn) == ["1", "2", "4", "rows a client"]
    assert charts.share_curve("Rows", "", {"the step": dict.fromkeys(line, ())}) == ""


def test_rounds_whose_labels_would_touch_have_none() -> None:
    line = {"rounds": [1, 2, 32], "middle": [1.0, 0.1, 0.1], "low": [1.0, 0.1, 0.1], "high": [1.0, 0.1, 0.1]}
    drawn = charts.curve("Error", "", {"attack": line})
    assert re.findall(r'text-anchor="middle">([^<]+)<', drawn) == ["1", "32", "rounds seen"]
    assert charts.curve("Error", "", {"attack": line | {"low": [0.0] * 3, "high": [0.0] * 3}}) == ""


def test_sizes_stand_above_every_matrix_and_alerts_at_the_top() -> None:
    size = {"clients": 8, "rows of client 0": 1, "rows of the others": 1, "rounds": 6, "epochs": 2}
    settings = {name: {**values, "sizes": size} for name, values in SMALL.settings.items() if name != "audit"}
    settings["audit"] = SMALL.settings["audit"]
    alerts = [Alert("constant column", f"unit {number}", 9, "Leave it out.", f"Unit {number}.") for number in range(7)]
    html = render(replace(SMALL, settings=settings, alerts=tuple(alerts)))
    assert text(html).count("FAPS and SSI: 8 clients, 1 row each, 6 rounds, epochs 2.") == 2  # of a client, and pooled
    shown = [
        text(html).index(part) for part in ("Unit 0. Leave it out.", "Show 2 more", "Unit 6.", "Without protection")
    ]
    assert shown == sorted(shown) and "personal data" not in text(html)
    assert "Look at the data first" not in text(render(SMALL))
