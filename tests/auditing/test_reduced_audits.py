"""An audit of fewer rows, or of fewer runs, than its reader expects says so beside every conclusion."""

from __future__ import annotations

from dataclasses import replace

from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.audit_result import AUDIT, CUT
from securefed._auditing.engine.cell_parts import RunCounts
from securefed._auditing.report.audit_page import render, setup
from securefed._auditing.report.cards import conclusion
from securefed._auditing.report.sureness import sureness
from tests.auditing.page import text
from tests.auditing.test_report import SMALL, cell, report

WORDS = "clients cut to their first 4 rows (yours hold 64)"


def cut(made: Report) -> Report:
    return replace(made, settings={**made.settings, AUDIT: {**made.settings[AUDIT], CUT: [4, 64]}})


def test_rows_that_were_cut_stand_in_every_conclusion_and_beside_the_figures() -> None:
    made = cut(report(cell("step", "plain", "server", 1.0, "samples"), cell("step", "plain", "server", 1.0, "labels")))
    assert conclusion(made)[0].startswith(f"Every figure is of {WORDS}, since the local step is too slow")
    assert str(sureness(made)[0]).startswith(f"Every figure is of {WORDS}, since the local step is too slow")
    assert f"8 {WORDS}, 10 runs of each" in setup(made)
    assert f", {WORDS}; 1 = exact" in str(made).splitlines()[0]
    page = text(render(made))
    assert f"Every figure is of {WORDS}. " in page[page.index("One client's secret") :]


def test_rows_that_were_not_cut_are_not_said_to_be() -> None:
    for said in (str(SMALL), text(render(SMALL))):
        assert "cut to" not in said


def test_a_figure_of_fewer_runs_is_named_and_membership_in_sums_is_a_leak() -> None:
    quiet = [cell("step", "secure_aggregation", "sum only", 0.0, name) for name in ("samples", "pooled samples")]
    member = cell("step", "secure_aggregation", "sum only", 0.5, "membership", asked=10)
    few = replace(member, leakage=replace(member.leakage, seeds=1))
    made = report(cell("step", "plain", "server", 1.0, "samples"), *quiet, few)
    assert "no leak was detected" not in text(render(made))
    named = replace(quiet[0], runs=RunCounts(10, explained=1.0), leakage=replace(quiet[0].leakage, seeds=7))
    assert "not detected 7 of 10 runs" in text(render(report(made.cells[0], named)))
    fewer = "Where a figure rests on fewer runs, their number stands beside it."
    assert fewer in [str(one) for one in sureness(made)]
    assert fewer not in [str(one) for one in sureness(report(*made.cells[:-1], member))]
    assert "0.50 0.49 to 0.51 partial 1 of 10 runs" in text(render(made))
