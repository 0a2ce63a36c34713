"""Reference figures: rounding of what is printed, verdicts, kept results, and a page that says what was not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pages import attacks_reference
from benchmarks.pages.references import cells, page
from benchmarks.pages.references.figures import Figure, Measurement, compact, limits
from benchmarks.pages.references.registered import strongest
from benchmarks.pages.references.scenes import digits, scene
from securefed.algorithms._pca import SSI


def measurement(name: str = "one", seeds: int = 10, offset: float = 0.0) -> Measurement:
    return Measurement(name, lambda seed: {"error": 1e-9 * (seed + 1) + offset, "seconds": 0.5}, seeds)


def figure(printed: str, **rest: object) -> Figure:
    words = {"where": "A.md", "claim": "it falls", "setting": "small", "measurement": measurement()}
    return Figure(printed=printed, **{**words, **rest})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("printed", "low", "high"),
    [
        ("5e-10", 4.5e-10, 5.5e-10),
        ("1.3e-4", 1.25e-4, 1.35e-4),
        ("1e-14", 3.162e-15, 3.162e-14),
        (".08", 0.075, 0.085),
        ("66.6", 66.55, 66.65),
        ("1.14-1.17", 1.135, 1.175),
        (".03-.2", 0.025, 0.25),
        ("4e-4 to 2e-3", 3.5e-4, 2.5e-3),
        ("1e-5 to 1e-7", 3.162e-8, 3.162e-5),
        ("9 of 10", 0.9, 0.9),
        ("exact", 0.0, 1e-6),
    ],
)
def test_printed_figures_are_read_to_their_digits(printed: str, low: float, high: float) -> None:
    assert limits(printed) == pytest.approx((low, high), rel=1e-3)


def test_a_figure_without_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="holds a number"):
        limits("small")


@pytest.mark.parametrize(
    ("printed", "better", "value", "verdict"),
    [
        ("5e-10", "low", 5.4e-10, "met"),
        ("5e-10", "low", 5.6e-10, "missed"),
        ("5e-10", "low", 1e-10, "beaten"),
        ("5e-10", "low", float("inf"), "missed"),
        ("66.6", "high", 75.0, "beaten"),
        ("66.6", "high", 60.0, "missed"),
        ("exact", "low", 1e-16, "met"),
        ("exact", "low", 1e-5, "missed"),
    ],
)
def test_the_median_is_judged(printed: str, better: str, value: float, verdict: str) -> None:
    one = figure(printed, better=better)
    assert one.judge([value] * 10) == verdict
    assert one.judge([value] * 9) == "not run"
    assert one.judge([value] * 6 + [1.0] * 4) == verdict


def test_a_count_of_seeds_is_judged_by_its_share() -> None:
    nine = figure("9 of 10", better="high")
    assert nine.judge([1e-9] * 18 + [1.0] * 2) == "met"
    assert nine.judge([1e-9] * 20) == "beaten"
    assert nine.judge([1e-9] * 8 + [1.0] * 2) == "missed"
    assert nine.shown([1e-9] * 8 + [1.0] * 2) == "8 of 10 (values 1e-9 to 1)"
    none = figure("0 of 10", better="low", counted=lambda value: value > 0)
    assert none.judge([0.0] * 10) == "met" and none.judge([0.0] * 9 + [1.0]) == "missed"


def test_a_figure_below_what_messages_allow_is_corrected_where_ours_reaches_that() -> None:
    tight = figure("1e-9", allowed="least")
    assert tight.judge([2e-8] * 10, [1e-8] * 10) == "corrected"
    assert tight.judge([4e-8] * 10, [1e-8] * 10) == "missed"  # the attack falls short of it
    assert tight.judge([2e-8] * 10, [1e-9] * 10) == "missed"  # the figure may well be had
    assert tight.judge([2e-8] * 10, [1e-8] * 9) == "missed"  # not known for every seed
    assert tight.judge([2e-8] * 10) == "missed"
    assert tight.judge([1e-9] * 10, [1e-8] * 10) == "met"


def test_a_method_that_fails_less_than_stated_corrects_the_figure() -> None:
    assert figure("0 of 10", better="low", fails=True, counted=lambda v: v > 0).judge([1.0] * 10) == "corrected"
    assert figure(".3", better="high", fails=True).judge([0.3] * 10) == "met"
    assert figure(".3", better="high", fails=True).judge([0.9] * 10) == "beaten"


def test_numbers_are_written_short() -> None:
    assert [compact(v) for v in (5e-10, 0.08, 1.3e-4, 66.6, 0.0, 12345.0)] == [
        "5e-10",
        ".08",
        "1.3e-4",
        "67",
        "0",
        "1.2e4",
    ]


def test_seeds_are_kept_and_a_run_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    store, told = tmp_path / "deep" / "cells.json", []
    cells.measure([measurement(seeds=3)], store=store, progress=told.append)
    assert len(told) == 3
    cells.measure([measurement(seeds=5)], store=store, progress=told.append)
    assert len(told) == 5 and cells.values(cells.read(store), measurement(), "error") == pytest.approx(
        [1e-9, 2e-9, 3e-9, 4e-9, 5e-9]
    )
    cells.measure([measurement("two")], until=0.0, store=store, progress=told.append)
    assert len(told) == 5 and "two" not in cells.read(store)
    cells.measure([measurement(seeds=2, offset=1.0)], fresh=True, store=store, progress=told.append)
    assert cells.values(cells.read(store), measurement(), "error") == pytest.approx([1.0, 1.0])


def test_the_page_names_what_was_missed_and_what_was_not_run(tmp_path: Path) -> None:
    known: cells.Cells = {"one": {str(k): {"error": 1e-3, "seconds": 2.0, "by": "a/b"} for k in range(10)}}
    figures = (
        figure("exact", claim="this | falls", evidence="The rows are too few."),
        figure("1e-3", claim="this holds"),
        figure("1e-3", claim="this waits", measurement=measurement("none")),
    )
    text = page.text(figures, known)
    assert "**3 figures: 1 met, 1 missed, 1 not run.**" in text
    assert "| this \\| falls<br>*small* | exact | .001 (.001 to .001) | 10 | 2 | **missed** |" in text
    assert "| this waits<br>*small* | 1e-3 |  |  |  | not run |" in text
    short = text.split("## What falls short")[1].split("## ")[0]
    assert "The rows are too few." in short and "By a/b." in short and "this holds" not in short


def test_what_no_reference_gives_stands_beside_and_counts_for_nothing(tmp_path: Path) -> None:
    alone = figure("", claim="over the limit", unit="x")
    assert alone.judge([5.0] * 10) == "beside" and alone.judge([5.0]) == "not run"
    kept = cells.read(tmp_path / "none.json")
    kept["one"] = {str(seed): {"error": 2e-9, "seconds": 0.5} for seed in range(10)}
    text = page.text([figure("5e-9"), alone], kept)
    assert "**1 figures: 1 beaten.**" in text and "| over the limit<br>*small* |  |" in text
    assert "for comparison" in text
    assert next(row for row in attacks_reference.rows([alone], kept)).met is None


def test_every_figure_can_be_judged_and_measurements_of_one_name_are_one() -> None:
    for one in attacks_reference.FIGURES:
        low, high = limits(one.printed) if one.printed else (0.0, 0.0)
        assert low <= high and one.measurement.seeds >= 10
    names = [one.name for one in attacks_reference.measurements()]
    assert len(names) == len(set(names))
    assert {one.name for one in attacks_reference.measurements(["faps/noise"])} == {
        "faps/noise 1e-6",
        "faps/noise 1e-4",
    }
    claims = [(one.where, one.claim, one.setting) for one in attacks_reference.FIGURES]
    assert len(claims) == len(set(claims))


def test_the_strongest_registered_attack_is_found_and_none_is_said_so() -> None:
    run = scene(SSI(3, tolerance=0.0), digits(12, 0), 6, 0)
    found = strongest("gram", run.view, run.target, run.truth, 0)
    assert found.by == "gram/power" and found.error < 1e-6
    none = strongest("distances", run.view, run.target, run.truth, 0)
    assert none.by == "no attack applies" and none.error == float("inf") and not none.proven
