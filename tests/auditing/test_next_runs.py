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
from securefed._auditing.report.cards import conclusion, next_steps
from securefed._auditing.report.held_settings import settings_of, to_paste
from securefed._auditing.report.next_runs import advice_command, changed, open_runs, parsed
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


def test_results_that_scatter_ask_for_four_times_the_runs_and_say_which_leak_these_show() -> None:
    """The leak is that of `seeds_for`; of results that scatter more, as many runs show a larger leak only."""
    told = []
    for deviation in (0.08, 0.15, 0.6):
        wide = scattered(deviation)
        (run,) = open_runs(replace(report(LEAK, wide), command=COMMAND, seconds=60.0))
        shown = next(
            level
            for level in (0.1, 0.2, 0.3, 0.5, 0.9)
            if (seeds_for(wide.leakage, wide.null_leakage, level) or 99) <= 40
        )
        assert run.why == (
            "The results of 10 runs scatter too much to tell. 40 runs (about 4 minutes) would show a leak of "
            f"{shown:g}."
        )
        assert run.command.endswith("--seeds 40 --out audit-seeds-40")
        told.append(shown)
    assert told == sorted(told) and told[0] == 0.1 and told[-1] >= 0.5
    (own,) = open_runs(replace(report(LEAK, scattered(0.15)), command=""))
    assert "40 runs (with 4 times the `seconds`) would show" in own.why and own.command == "seeds=40"
    assert open_runs(report(LEAK, scattered(0.01))) == []  # ten runs suffice


def test_one_command_serves_all_algorithms_of_which_the_runs_show_as_small_a_leak() -> None:
    other = replace(scattered(0.6), algorithm="pca/faps")
    hopeless = replace(scattered(0.15, null=0.97), algorithm="pca/fedpg")
    twice = replace(scattered(0.01), view="changing survivors")  # ten runs of this view suffice: the other one counts
    made = report(LEAK, replace(LEAK, algorithm="pca/faps"), scattered(0.08), twice, other, hopeless)
    small, large, none = open_runs(replace(made, command=COMMAND))
    assert (small.names, large.names, none.names) == ("SSI", "FAPS", "FedPG")
    assert "40 runs would show a leak of 0.1." in small.why and "40 runs would show a leak of 0.5." in large.why
    assert "40 runs would not tell. Guessing alone reaches 0.97" in none.why and none.command == ""
    assert dict(parsed(small.command))["--algorithms"] == "pca/ssi"
    alike = report(
        LEAK, replace(LEAK, algorithm="pca/faps"), scattered(0.08), replace(scattered(0.08), algorithm="pca/faps")
    )
    (run,) = open_runs(replace(alike, command=COMMAND))
    assert run.names == "SSI and FAPS" and dict(parsed(run.command))["--algorithms"] == "pca/ssi,pca/faps"


def test_a_recording_has_as_many_runs_as_uploads() -> None:
    made = seeded(report(LEAK, scattered(0.08)), 10)
    made.settings["audit"]["recorded"] = 20  # type: ignore[index]
    assert open_runs(replace(made, command=COMMAND))[0].command.endswith("--seeds 20 --out audit-seeds-20")
    made.settings["audit"]["recorded"] = 10  # type: ignore[index]
    (run,) = open_runs(replace(made, command=COMMAND))
    assert run.command == "" and run.why.endswith("the recording holds no further uploads: record more rounds.")


def test_where_no_number_of_runs_tells_the_report_says_what_would_help() -> None:
    (none,) = open_runs(report(LEAK, scattered(0.15, null=0.97)))
    assert "40 runs would not tell. Guessing alone reaches 0.97" in none.why and none.command == ""


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
    assert next_steps(made)[-1][2] == advice_command(made, "pca/ssi")
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
    assert "The messages of 20 rounds hold 620 numbers and the 280 rows of a client 8,400" in first.why
    assert first.command.endswith("--membership --out audit-membership")
    assert second.command.endswith("--rows-per-client 20 --out audit-rows-per-client-20")
    assert "hold 620 numbers and a client's 280 rows hold 8,400" in " ".join(conclusion(made))
    asked = open_runs(replace(made, command=f"{COMMAND} --membership"))
    assert [dict(parsed(run.command))["--rows-per-client"] for run in asked] == ["20"]
    both = replace(made, cells=(*made.cells, scattered(0.15)))
    assert len(open_runs(both)) == 3 and "too much" in open_runs(both)[-1].why  # many runs come last
    made.settings[name]["sizes"]["numbers a round"] = 420  # type: ignore[index]
    assert "equations alone" not in " ".join(conclusion(made)) and "fewer unknowns" in open_runs(made)[0].why
