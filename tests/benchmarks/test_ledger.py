"""The ledger judges as it says, loses nothing, and says so when something is missing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ledger import records
from benchmarks.ledger.ledger import (
    COMPARISON,
    MISSED,
    QUICK,
    REPRODUCED,
    UNSTATED,
    Context,
    Experiment,
    Findings,
)
from benchmarks.ledger.records import Kind
from securefed.errors import ConfigError, StorageError
from tests.benchmarks.fakes import CURVE, FINDINGS, LINE, a_record, change

# -- one line ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ((None, 85.0), REPRODUCED),  # the mean is 85: both ends belong to the range
        ((85.0, None), REPRODUCED),
        ((85.0, 85.0), REPRODUCED),
        ((80.0, 90.0), REPRODUCED),
        ((None, np.nextafter(85.0, 0.0)), MISSED),
        ((np.nextafter(85.0, 100.0), None), MISSED),
        ((86.0, 90.0), MISSED),
        ((60.0, 84.0), MISSED),
    ],
)
def test_the_mean_decides_and_both_ends_belong_to_the_target(target: tuple[float, float], expected: str) -> None:
    assert change(target=target).verdict == expected


def test_rounding_does_not_push_a_mean_out_of_its_target() -> None:
    values = (0.1, 0.1, 0.1)
    assert sum(values) / 3 != 0.1  # the naive mean would miss
    assert change(values=values, target=(None, 0.1)).verdict == REPRODUCED


def test_an_unstated_setting_shows_in_the_verdict_and_excuses_nothing() -> None:
    assert change(stated=False).verdict == UNSTATED
    assert change(stated=False, target=(None, 10.0)).verdict == MISSED


def test_a_comparison_is_not_judged_and_needs_an_unprinted_figure() -> None:
    assert change(printed=None, target=(None, None)).verdict == COMPARISON
    with pytest.raises(ConfigError, match="so the target needs an end"):
        change(target=(None, None))


@pytest.mark.parametrize(
    ("fields", "owes"),
    [
        ({}, False),
        ({"target": (None, 10.0)}, True),
        ({"stated": False}, True),
        ({"target": (None, 10.0), "evidence": " "}, True),
        ({"target": (None, 10.0), "evidence": "the step the paper prints diverges at round 3"}, False),
        ({"printed": None, "target": (None, None)}, False),
    ],
)
def test_a_verdict_other_than_reproduced_owes_evidence(fields: dict[str, object], owes: bool) -> None:
    line = change(**fields)
    assert line.explained is not owes
    assert Findings((line,)).unexplained == ((line,) if owes else ())


def test_mean_and_spread() -> None:
    assert LINE.mean == 85.0
    assert LINE.spread == (80.0, 90.0)
    assert LINE.deviation == pytest.approx(5.0)  # sample: ((25 + 0 + 25) / 2) ** .5
    assert change(values=(80.0,)).deviation is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"values": ()}, "no values; hand in one per seed"),
        ({"values": (1.0, float("nan"))}, "values must be finite"),
        ({"printed": float("inf")}, "printed must be finite"),
        ({"target": (None, float("inf"))}, "target must be finite"),
        ({"target": (2.0, 1.0)}, "out of order"),
        ({"target": (1.0,)}, "must be .low, high."),
        ({"setting": " "}, "`setting` is empty"),
    ],
)
def test_a_line_that_says_too_little_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        change(**fields)
    assert "Table 2" in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"y": (1.0, 2.0)}, "3 x and 2 y"),
        ({"x": (0, 2, 1)}, "x must ascend"),
        ({"y": (1.0, 0.0, 2.0)}, "needs y > 0"),
        ({"y": (1.0, float("nan"), 2.0)}, "y must be finite"),
        ({"x": (), "y": ()}, "0 x and 0 y"),
    ],
)
def test_a_curve_that_cannot_be_drawn_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CURVE, **fields)


def test_findings_refuse_what_would_be_read_twice_or_drawn_wrong() -> None:
    with pytest.raises(ConfigError, match="at least one figure"):
        Findings(())
    with pytest.raises(ConfigError, match="two lines for the same figure"):
        Findings((LINE, change(values=(1.0,))))
    with pytest.raises(ConfigError, match="different axes"):
        Findings((LINE,), (CURVE, dataclasses.replace(CURVE, x_label="seconds")))
    assert Findings((LINE, change(setting="eta .2")), (CURVE, CURVE)).curves == (CURVE, CURVE)  # a curve per seed


def test_contexts_and_experiments_refuse_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="recurs"):
        Context((1, 1), quick=False, progress=print)
    for name in ("losac", "losac/", "losac/a b", "Losac/a", "a/b/c"):
        with pytest.raises(ConfigError, match="must read 'paper/what'"):
            Experiment(name, "Paper", "Title", lambda context: Findings((LINE,)), 1.0)
    with pytest.raises(ConfigError, match="core_minutes"):
        Experiment("losac/a", "Paper", "Title", lambda context: Findings((LINE,)), 0.0)


# -- on disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("findings", [FINDINGS, Findings((LINE,)), None])
def test_records_come_back_as_they_were(tmp_path: Path, findings: Findings | None) -> None:
    written = a_record(findings=findings)
    path = records.write(tmp_path, written)
    assert path.name == "losac-one.json"
    assert records.read(tmp_path, "losac/one") == written
    assert json.loads(path.read_text())["seeds"] == [11, 12]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # nothing half-written beside
    assert records.read(tmp_path, "losac/two") is None


@pytest.mark.parametrize("spoil", [lambda text: text[:50], lambda text: text.replace('"printed"', '"painted"')])
def test_a_spoilt_file_is_refused_by_name(tmp_path: Path, spoil: object) -> None:
    path = records.write(tmp_path, a_record())
    path.write_text(spoil(path.read_text()))  # type: ignore[operator]
    with pytest.raises(StorageError, match=r"losac-one\.json is no result"):
        records.read(tmp_path, "losac/one")


def test_a_record_serves_only_its_own_kind() -> None:
    done = a_record()
    assert done.serves(Kind(False, (11, 12), "d1"))
    for other in (Kind(True, (11, 12), "d1"), Kind(False, (11, 13), "d1"), Kind(False, (11, 12), "d2")):
        assert not done.serves(other)
    assert not a_record(findings=None).serves(Kind(False, (11, 12), "d1"))


def test_quick_runs_judge_nothing_and_owe_nothing() -> None:
    missed = change(target=(None, 1.0))
    assert a_record(findings=Findings((missed,))).owing == (missed,)
    quick = a_record(findings=Findings((missed,)), quick=True)
    assert quick.verdict(missed) == QUICK
    assert quick.owing == ()
