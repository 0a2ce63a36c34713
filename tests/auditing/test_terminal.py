"""What the terminal prints of an audit has the page's colours, words and membership."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.statistics import EXPOSED, INCONCLUSIVE, NOT_DETECTED, PARTIAL
from securefed._auditing.report.palette import TONES
from securefed._commands import advising, audit_tables, display
from tests.auditing.test_advice_values import ADVICE, RECORD, SETTING
from tests.auditing.test_report import SMALL, cell, report


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch):
    """Print a report into a wide terminal of 16 million colours, and return what stands there."""

    def shown(made: Report, *, colours: bool = False) -> str:
        out = StringIO()
        system = "truecolor" if colours else None
        console = Console(file=out, width=160, force_terminal=colours, color_system=system)  # type: ignore[arg-type]
        for module in (display, audit_tables):
            monkeypatch.setattr(module, "console", console)
        audit_tables.show_audit(made)
        return out.getvalue()

    return shown


def test_a_leak_below_a_guess_is_a_word_and_only_the_upper_end_of_its_interval_counts(printed) -> None:
    wide = cell("pca/faps", "plain", "server", -0.3)
    wide = replace(wide, leakage=replace(wide.leakage, high=0.04))
    said = printed(report(wide, cell("pca/ssi", "plain", "server", -2.28)))
    assert "worse up to 0.04" in said
    assert "-0.3" not in said and "-2.28" not in said
    assert "worse than a guess" in said


def test_a_cell_whose_attacks_failed_has_no_figure(printed) -> None:
    stuck = cell("pca/faps", "plain", "server", -0.3, explained=0.0)
    stuck = replace(stuck, leakage=replace(stuck.leakage, high=0.02))
    line = next(line for line in printed(report(stuck)).splitlines() if line.strip().startswith("Plain"))
    assert line.split() == ["Plain", "server", TONES[INCONCLUSIVE].mark, "attacks", "failed"]


def test_the_verdicts_have_the_pages_marks_and_colours(printed) -> None:
    said = printed(SMALL, colours=True)
    for word in (EXPOSED, PARTIAL, NOT_DETECTED):
        red, green, blue = (int(TONES[word].terminal[start : start + 2], 16) for start in (1, 3, 5))
        assert f"38;2;{red};{green};{blue}m{TONES[word].mark}" in said


def test_membership_is_printed_where_it_was_asked_for(printed) -> None:
    row = {
        "algorithm": "pca/ssi",
        "defense": "local_laplace",
        "adversary": "informed",
        "epsilon": 8.0,
        "verdict": PARTIAL,
    }
    row |= {"auc": [0.81, 0.59, 0.98], "tpr": [0.1, 0, 0.2], "null": [0.3, 0.7], "members": 9, "others": 9}
    said = printed(replace(SMALL, membership=(row,)))
    (line,) = (line for line in said.splitlines() if "local laplace" in line and "SSI" in line and "[" in line)
    assert line.split() == ["SSI", "local", "laplace", "◐", "0.81", "[0.59,0.98]", "did", "not", "run"]
    assert "can tell in spite of local laplace whether one row (a patient)" in " ".join(said.split())
    assert "Which rows were in the data: AUC" not in printed(SMALL)


def test_an_advice_prints_scatter_every_epsilon_its_words_and_what_the_command_changes(monkeypatch) -> None:
    out = StringIO()
    for module in (display, advising):
        monkeypatch.setattr(module, "console", Console(file=out, width=200))
    blind = replace(SETTING, defense="noise", leak_upper=1.0, detectable=math.nan, utility_deviation=0.13)
    absent = replace(blind, leak=math.nan, note="did not run: too few clients")
    records = (replace(RECORD, changes="Learning rate 0.5 (yours: 0.1)."), replace(RECORD, epsilon=4.0, guess=0.67))
    advising.show_advice(replace(ADVICE, tried=(SETTING, blind, absent), records=records), seeds=10)
    said = " ".join(out.getvalue().split())
    for part in (
        "0.90±0.13",
        "`all`: all of the data may leak",
        "`failed`: the attacks did not explain the messages",
        "`n/a`: did not run: too few clients.",
        "`rows`: of the attacked client in the first run",
        "epsilon of a row right guesses of 100, at most utility usable 1 55 0.88 yes 4 67 0.88 yes",
        "Learning rate 0.5 (yours: 0.1). securefed run private/fedavg",
    ):
        assert part in said
    assert "`none`" not in said
