"""The report says what to run next for what is not known, asks for advice on the same data, and prints what held."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from securefed import defenses as functions
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.engine.results import Cell
from securefed._auditing.engine.statistics import NOT_DETECTED, Interval, seeds_for, verdict
from securefed._auditing.report.actions import actions
from securefed._auditing.report.decision import decision
from securefed._auditing.report.held_settings import settings_of, to_paste
from securefed._auditing.report.next_runs import advice_command, changed, open_runs, parsed
from securefed._auditing.report.observers import observers
from securefed._auditing.report.report_words import chance_text
from securefed._catalogue import defenses
from securefed._commands.cli import app
from tests.auditing.test_report import SMALL, cell, report

COMMAND = (
    "securefed audit --algorithms ssi --data 'my rows.csv' --clients 5 --set a=1 --standardise --seeds 10 --active"
)


def scattered(deviation: float, *, null: float = 0.02) -> Cell:
    """One client's data under noise, of which ten runs scatter by a deviation around a guess."""
    made = cell("pca/ssi", "ddp", "sum only", 0.0)
    leak = Interval(-0.5, -0.5 - 0.6 * deviation, -0.5 + 0.6 * deviation, 10, deviation)
    chance = Interval(null - 0.02, null - 0.05, null, 10, 0.02)
    return replace(made, leakage=leak, null_leakage=chance, verdict=verdict(leak, chance))


def seeded(made: Report, seeds: int) -> Report:
    return replace(made, settings={**made.settings, "audit": {**made.settings["audit"], "seeds": seeds}})


LEAK = cell("pca/ssi", "plain", "server", 1.0)


def test_results_that_scatter_ask_for_as_many_runs_as_would_show_the_accepted_leak() -> None:
    """The number is that of `seeds_for`; more scatter asks for more runs, or shows a larger leak only."""
    (run,) = open_runs(replace(report(LEAK, scattered(0.15)), command=COMMAND))
    seeds = int(dict(parsed(run.command))["--seeds"])
    assert run.why.startswith(f"SSI: the results of 10 runs scatter too much; about {seeds} would show a leak of 0.1")
    assert 50 < seeds <= 200
    (few,) = open_runs(replace(report(LEAK, scattered(0.08)), command=COMMAND))
    seeds = int(dict(parsed(few.command))["--seeds"])
    assert few.why == f"SSI: the results of 10 runs scatter too much; about {seeds} would show a leak of 0.1."
    assert 10 < seeds <= 40
    short = seeded(report(LEAK, scattered(0.15)), 10)
    short.settings["audit"]["recorded"] = 40  # type: ignore[index]
    (few,) = open_runs(short)
    assert few.why.endswith("The recording holds 40 uploads; record more rounds.") and few.command.endswith(
        "--seeds 40 --out audit-seeds-40"
    )
    (none,) = open_runs(report(LEAK, scattered(0.15, null=0.97)))
    assert "guessing alone reaches 0.97" in none.why and none.command == ""
    assert open_runs(report(LEAK, scattered(0.01))) == []  # ten runs suffice


def test_many_runs_are_asked_for_with_their_time_and_what_fewer_would_show() -> None:
    made, wide = report(LEAK, scattered(0.15)), scattered(0.15)
    runs, fewer = (seeds_for(wide.leakage, wide.null_leakage, level) for level in (0.1, 0.2))
    assert runs is not None and fewer == 10 and runs > 40
    (run,) = open_runs(replace(made, command=COMMAND, seconds=600.0))
    assert run.why == (
        f"SSI: the results of 10 runs scatter too much; about {runs} would show a leak of 0.1, in about {runs} minutes "
        "at the pace of this audit. These 10 would show a leak of 0.2 already. A setting that leaks less, with more "
        "rows a client or more noise, would scatter less."
    )
    (own,) = open_runs(replace(made, command="", seconds=6.0))  # its attacks share `seconds`
    pace, share = f"in about {runs * 0.6:.0f} seconds at the pace of this audit", "all runs share `seconds`"
    assert f"{pace}: {share}, so give {runs / 10:.0f} times as many." in own.why and own.command == f"seeds={runs}"
    (coarse,) = open_runs(replace(report(LEAK, scattered(0.6)), command=COMMAND))
    level = seeds_for(scattered(0.6).leakage, scattered(0.6).null_leakage, 0.5)
    assert (
        "would show a leak of 0.2" in coarse.why and f"Run {level} first: they would show a leak of 0.5." in coarse.why
    )
    assert coarse.command.endswith(f"--seeds {level} --out audit-seeds-{level}")  # the one that the sentence recommends
    (own,) = open_runs(replace(report(LEAK, scattered(0.6)), command=""))
    assert own.command == f"seeds={level}" and "(all runs share `seconds`, so give " in own.why


def test_the_command_is_the_audits_own_for_what_is_open_alone() -> None:
    (run,) = open_runs(replace(report(LEAK, scattered(0.15)), command=COMMAND))
    named = dict(parsed(run.command))
    assert (named["--algorithms"], named["--defenses"]) == ("pca/ssi", "plain,ddp")
    assert named["--data"] == "my rows.csv" and named["--set"] == "a=1"
    assert {"--standardise", "--active"} <= set(named)
    assert [name for name, _ in parsed(run.command)].count("--seeds") == 1


def test_a_search_that_failed_asks_for_a_smaller_case_and_not_for_more_runs() -> None:
    failed = cell("pca/ssi", "secure_aggregation", "sum only", -0.4, explained=0.0)
    made = replace(report(LEAK, failed), command=COMMAND)
    (run,) = open_runs(made)
    assert "which more runs do not change" in run.why
    named = dict(parsed(run.command))
    assert named["--clients"] == "3" and named["--seeds"] == "10"
    sized = {**made.settings["pca/ssi"], "sizes": {"rows of client 0": 16}}
    alone = cell("pca/ssi", "plain", "server", -0.4, explained=0.0)
    own = replace(report(alone), settings={**made.settings, "pca/ssi": sized}, command=COMMAND)
    assert dict(parsed(open_runs(own)[0].command))["--rows-per-client"] == "4"
    assert open_runs(replace(own, command=""))[0].command == ""  # an audit of the caller's own has no such argument


@pytest.mark.parametrize(("seeds", "quiet"), [(1, "too few runs to say"), (3, "no leak found (3 runs)"), (10, None)])
def test_few_runs_are_named_beside_every_verdict(seeds: int, quiet: str | None) -> None:
    made = seeded(report(LEAK, cell("pca/ssi", "ddp", "sum only", 0.0)), seeds)
    words = [group.words for row in observers(made) for group in row.cells[0]]
    assert words[1] == (quiet or "no leak found")
    assert words[0] == ("exposed" if seeds == 10 else f"exposed ({seeds} run{'s' * (seeds > 1)})")
    assert ("That rests on" in decision(made)) == (seeds < 10)


def test_a_stronger_observer_never_has_a_milder_verdict() -> None:
    """The lying server's own attack found nothing; the honest server is not known, so neither is the lying one."""
    stuck = cell("pca/ssi", "secure_aggregation", "sum only", -0.4, explained=0.0)
    lying = cell("pca/ssi", "secure_aggregation", "active server", 0.0)
    apart = cell("pca/ssi", "ddp", "active server", 0.0)
    found = [(row.protections, row.party[:10], row.cells[0][0].words) for row in observers(report(lying, stuck, apart))]
    assert found == [
        ("Secure aggregation", "the server", "not known"),
        ("Secure aggregation", "a server t", "not known"),
        ("Distributed DP", "a server t", "no leak found"),  # under another protection
    ]
    helped = [cell("pca/ssi", "secure_aggregation", f"collusion({k})", leak) for k, leak in ((2, 1.0), (7, 0.0))]
    assert {row.cells[0][0].words for row in observers(report(*helped))} == {"exposed"}
    going = cell("pca/ssi", "secure_aggregation", "changing survivors", 1.0)
    assert [row.cells[0][0].words for row in observers(report(lying, going))] == ["exposed", "no leak found"]


def test_a_mean_that_is_no_finding_says_what_guessing_gives() -> None:
    wide = replace(scattered(0.1), leakage=Interval(0.51, 0.2, 0.8, 10, 0.4))
    quiet = replace(wide.verdict, word=NOT_DETECTED)
    near = replace(wide, null_leakage=Interval(0.3, 0.1, 0.6, 10, 0.3))
    assert chance_text(replace(near, verdict=verdict(near.leakage, near.null_leakage))) == ""  # nothing would show
    assert chance_text(replace(near, verdict=replace(near.verdict, word=NOT_DETECTED))) == "guessing gives up to 0.60"
    assert chance_text(replace(wide, leakage=replace(wide.leakage, low=0.01), verdict=quiet)) == "not clear of 0.05"
    few = replace(wide, leakage=replace(wide.leakage, seeds=3), verdict=quiet)
    assert chance_text(few) == "not clear of 0.05, with the interval widened for 3 runs"
    assert chance_text(LEAK) == ""


def test_advice_is_asked_on_the_same_data_and_settings() -> None:
    made = replace(report(LEAK), command=COMMAND)
    words = shlex.split(advice_command(made, "pca/ssi"))
    kept = ["--data", "my rows.csv", "--clients", "5", "--set", "a=1", "--standardise", "--acceptable", "0.1"]
    assert words == ["securefed", "advise", "pca/ssi", *kept]
    assert CliRunner().invoke(app, ["advise", *words[2:], "--help"]).exit_code == 0
    assert actions(made)[-1].steps[0][1] == advice_command(made, "pca/ssi")
    assert advice_command(made, "my own") == "" and advice_command(replace(made, command=""), "pca/ssi") == ""
    sized = replace(made, command=changed(COMMAND, {"--rows-per-client": "1,16"}))
    sized.settings["pca/ssi (16 rows)"] = {**made.settings["pca/ssi"], "sizes": {"rows of client 0": 16}}  # type: ignore[index]
    assert advice_command(sized, "pca/ssi (16 rows)").endswith("--rows-per-client 16 --acceptable 0.1")


@pytest.mark.parametrize(("accepted", "asked"), [(0.3, "0.3"), (0.02, "0.06")])
def test_advice_is_asked_for_the_accepted_leak_or_the_least_it_can_search_for(accepted: float, asked: str) -> None:
    made = replace(report(LEAK), command=COMMAND)
    made.settings["audit"] = {**made.settings["audit"], "acceptable": accepted}  # type: ignore[index]
    assert advice_command(made, "pca/ssi").endswith(f"--acceptable {asked}")


@pytest.mark.parametrize("defense", ["secure_aggregation", "paillier", "paillier_threshold", "ckks", "dp", "ddp"])
@pytest.mark.parametrize("fixed", [False, True])
def test_what_is_printed_to_paste_makes_the_defence_of_the_audit(defense: str, fixed: bool) -> None:
    """The options build the registered defence; the line of Python builds the same one."""
    if defense == "ckks":
        pytest.importorskip("tenseal")
    settings = {**SMALL.settings["pca/ssi"], "noise multipliers": {"dp": 2.5, "ddp": 1.234567}}
    made = replace(SMALL, settings={**SMALL.settings, "pca/ssi": settings})
    options, code = to_paste(made, "pca/ssi", defense, fixed=fixed).split("\n")
    words = shlex.split(options)
    assert words[:2] == ["--defense", defense]
    given = {name: json.loads(value) for name, value in (word.split("=") for word in words[3::2])}
    assert given == settings_of(made, "pca/ssi", defense, fixed=fixed)
    assert given.get("threshold", 5) == (8 if fixed and defense not in ("dp", "ddp") else 5)
    assert given.get("noise_multiplier", 2.5) >= 1.234567
    name, _, expression = code.partition(" = ")
    assert name == "defense"
    built = eval(expression, {key: getattr(functions, key) for key in functions.__all__})  # noqa: S307 - our own line
    assert repr(built) == repr(defenses.make(defense, **given))


def test_noise_of_an_unknown_size_is_not_printed() -> None:
    assert to_paste(SMALL, "pca/ssi", "ddp") == "" and to_paste(SMALL, "pca/ssi", "quantise") == ""


def test_messages_of_fewer_numbers_than_the_rows_are_not_asked_for_more_runs() -> None:
    """20 rounds of 31 numbers, 280 rows of 30: the count is said, then membership and a size that is determined."""
    sizes = {"rows of client 0": 280, "columns": 30, "rounds": 20, "numbers a round": 31}
    made = replace(report(cell("pca/ssi", "plain", "server", -0.4, explained=0.0)), command=COMMAND)
    name = made.algorithms[0]
    made.settings[name] = {**made.settings[name], "secret": "samples", "sizes": sizes, "rounds": 20}  # type: ignore[index]
    first, second = open_runs(made)
    assert "the messages of 20 rounds hold 620 numbers, the 280 rows of a client 8,400" in first.why
    assert first.command.endswith("--membership --out audit-membership")
    assert second.command.endswith("--rows-per-client 20 --out audit-rows-per-client-20")
    assert "since the messages hold fewer numbers than a client's rows" in decision(made)
    asked = open_runs(replace(made, command=f"{COMMAND} --membership"))
    assert [dict(parsed(run.command))["--rows-per-client"] for run in asked] == ["20"]
    both = replace(made, cells=(*made.cells, scattered(0.15)))
    assert len(open_runs(replace(both, seconds=60.0))) == 3
    assert "too much" in open_runs(replace(both, seconds=60.0))[-1].why  # many runs come last, ...
    assert len(open_runs(replace(both, seconds=6000.0))) == 2  # ... or not at all where they take hours
    made.settings[name]["sizes"]["numbers a round"] = 420  # type: ignore[index]
    assert "fewer numbers" not in decision(made) and "has fewer unknowns" in open_runs(made)[0].why
