"""The search for settings that hold: its statistics, its choice, its words, and one whole search on small data."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import Advice, Federation, advise, audit
from securefed._auditing.advice import search
from securefed._auditing.advice.advice_values import RecordSetting
from securefed._auditing.advice.advised_words import answers, pooled_lines, sentences, smallest_sentence
from securefed._auditing.advice.candidates import Candidate, candidates, data_options, paste
from securefed._auditing.advice.cohorts import CohortUtility, _until_decided, keeps, simulate, usable_from
from securefed._auditing.advice.decision_tree import TREE, Question, outline
from securefed._auditing.advice.search import _best, _needed
from securefed._auditing.advice.trials import Trial, Trials
from securefed._auditing.alerts import Alert
from securefed._auditing.cases import case
from securefed._auditing.cases.data_splits import resampled
from securefed._auditing.cases.own_setup import OwnSetup
from securefed._auditing.registered.audited_defenses import distributed_multiplier
from securefed._auditing.report.algorithm_section import noise_sentence
from securefed._catalogue import defenses
from securefed._commands.base import parse_settings
from securefed._commands.cli import app
from securefed._commands.named_run import NamedRun, federation
from securefed.algorithms import algorithms
from securefed.datasets import load
from securefed.defenses import chain
from securefed.errors import ConfigError
from tests.auditing.test_advice_values import SETTING

TEN = (0.0, 0.02, 0.01, 0.03, 0.0, 0.02, 0.0, 0.01, 0.02, 0.03)


def trial(*leaks: float, explained: float = 1.0) -> Trial:
    return Trial({"fit": leaks}, {"fit": explained}, (0.5,) * len(leaks), asked=len(leaks))


def test_the_bound_grows_with_the_number_of_settings_and_covers_the_mean() -> None:
    """Over 2000 draws of 10 normal leaks the bound for one setting lies below the mean in 5 % (2.6 to 7.4: 5 s.e.)."""
    assert trial(*TEN).mean < trial(*TEN).upper(1) < trial(*TEN).upper(20)
    rng = np.random.default_rng(0)
    draws = 0.3 + 0.05 * rng.standard_normal((2000, 10))
    below = np.mean([trial(*row).upper(1) < 0.3 for row in draws])
    assert 0.026 < below < 0.074
    assert np.mean([trial(*row).upper(20) < 0.3 for row in draws]) < 0.026  # the wrong count is noticed


def test_one_reconstruction_among_silent_runs_does_not_hold() -> None:
    assert trial(*TEN[:9], 0.9995).upper(1) == 1.0
    assert trial(*TEN).upper(1) < 0.1


def test_scatter_below_a_guess_counts_in_the_bound() -> None:
    """Five estimates far worse than a guess mean a leak of 0, but not a bound of 0: the next run may leak."""
    scattered = trial(-0.1, -0.9, -0.4, -1.2, -0.2)
    assert scattered.mean == 0.0
    assert scattered.upper(17) > 0.5
    assert trial(-0.5, -0.5, -0.5, -0.5, -0.5).upper(17) == 0.0


def test_silence_of_an_attack_that_failed_has_no_power() -> None:
    assert trial(*TEN).detectable(10) < 0.15
    assert math.isnan(trial(*TEN, explained=0.5).detectable(10))
    assert math.isnan(Trial({}, {}, (0.5,) * 10).detectable(10))
    once = {"once": (0.0,)}  # an attack that applied in one seed: its silence has no spread
    known = trial(*TEN)
    assert Trial(once | known.leaks, {}, (0.5,) * 10).detectable(10) == known.detectable(10)
    assert Trial(known.leaks | once, {}, (0.5,) * 10).detectable(10) == known.detectable(10)
    assert trial(0.01).upper(1) == 1.0  # one seed has no spread


def test_the_advised_setting_holds_is_usable_and_is_the_best_of_those() -> None:
    leaky = replace(SETTING, holds=False, utility=0.99)
    useless = replace(SETTING, usable=False, utility=0.99, epsilon=8.0, usable_from=128)
    dear = replace(SETTING, bytes_up=9e9)
    assert _best([leaky, useless, dear, SETTING]) == SETTING
    assert _best([leaky, useless]) is None
    assert _needed([leaky, useless, replace(useless, usable_from=512)]) == 128
    assert _needed([replace(leaky, usable_from=32)]) is None
    found = sentences([leaky, useless], None, 128, 0.1, 0.9, 512)
    assert "From 128 clients on" in found[1] and found[1].endswith("in a simulation with rows drawn from yours.")
    told = replace(useless, simulated="0.900 of 0.950 in the clear, mean of 3 runs")
    named = sentences([leaky, told], None, 128, 0.1, 0.9, 512)[1]
    assert named.endswith("with rows drawn from yours (0.900 of 0.950 in the clear, mean of 3 runs).")
    done = sentences([leaky, SETTING], SETTING, None, 0.1, 0.9, 512)
    assert done[0].startswith("Use secure aggregation with 8 clients, 16 rows and 6 rounds. A leak of 0.01")
    shorter = replace(SETTING, rounds=1, rows_per_client=64)
    assert (
        "8 clients, 64 rows and 1 round. You asked for 16 rows. You asked for 6 rounds. A leak"
        in (sentences([leaky, shorter], shorter, None, 0.1, 0.9, 512)[0])
    )
    absent = replace(leaky, rows_per_client=0)  # it did not run, so that its rows are not known
    assert "You asked" not in sentences([absent, SETTING], SETTING, None, 0.1, 0.9, 512)[0]
    noised = replace(SETTING, epsilon=8.0, delta=1e-5, utility=0.925, utility_deviation=0.0214)
    promised = sentences([leaky, noised], noised, None, 0.1, 0.9, 512)
    assert "Epsilon 8 (delta 1e-05) holds against the server. That is one client's; what the sums" in promised[0]
    opened = replace(
        SETTING, pooled_leak=1.0, people_leak=1.0, people="the row of one person (stage_d)", member_leak=0.1
    )
    told = sentences([leaky, opened], opened, None, 0.1, 0.9, 512)[0]
    assert told.endswith(
        "That is one client's: the sums give all clients' data together away (a leak of 1.00). People stand in the "
        "sums: the server reads the row of one person (stage_d) (a leak of 1.00). Whether a given row was among all "
        "clients' rows is told with a leak of 0.10."
    )
    assert "The utility is 0.925, " in promised[1] and "with a standard deviation of 0.021." in promised[1]
    assert sentences([leaky, useless], None, None, 0.1, 0.9, 512)[1].startswith("No cohort of up to 512 clients")
    assert sentences([leaky, useless], None, None, 0.1, 0.9, 0)[1].endswith("were not simulated.")
    nothing = sentences([leaky], None, None, 0.1, 0.9, 512)
    assert "none is shown to keep the leak at 0.1 or less" in nothing[0]
    weak = replace(leaky, leak_upper=0.08, detectable=0.14)
    assert sentences([weak], None, None, 0.1, 0.9, 512)[0].endswith(
        "The lowest bound is 0.08. The attacks might have missed a leak below 0.14."
    )


def test_a_setting_that_holds_without_being_advised_says_what_it_leaves_open_of_all_clients_together() -> None:
    opened = replace(
        SETTING, pooled_leak=1.0, people_leak=1.0, people="the row of one person (none of stage)", model=False
    )
    quiet = replace(SETTING, holds=False, pooled_leak=0.0, model=False)
    tried = (quiet, opened)
    advice = Advice("pca/ssi", "rows.csv", 0.1, "the server", tried, None, ("There is no model to protect.", ""), None)
    (line,) = pooled_lines(advice)
    assert line.startswith("+ secure aggregation, 6 rounds: That is one client's: the sums give all clients' data")
    assert "the server reads the row of one person (none of stage)" in line
    said = replace(advice, advised=opened, sentences=sentences(tried, opened, None, 0.1, 0.9, 512))
    assert not pooled_lines(said)  # the answer says it already
    (line,) = pooled_lines(replace(advice, tried=(replace(quiet, people_leak=0.99, people="the row of one"),)))
    assert line.startswith("- secure aggregation, 6 rounds: People stand in the sums: the server reads the row of one")


def cohort(clients: int, utility: float) -> CohortUtility:
    """Three runs of one utility, where .9 is that in the clear."""
    return CohortUtility(clients, (utility,) * 3, (0.9,) * 3)


def test_a_cohort_is_called_usable_only_where_its_runs_show_it() -> None:
    """Runs that scatter by .09 about .83, of which the first two reach .90, do not keep 90 % of .97."""
    runs = (0.93, 0.86, 0.72, 0.91, 0.75, 0.83, 0.88, 0.70, 0.87, 0.85)
    found = _until_decided(8, ((one, 0.97, math.nan) for one in runs), 0.9)
    assert np.mean(runs[:2]) > 0.9 * 0.97 > np.mean(found.noised)
    assert usable_from([found], 0.9) is None and len(found.noised) == 10
    clear = _until_decided(32, ((one, 0.97, math.nan) for one in (0.95, 0.96, 0.96, 0.95)), 0.9)
    assert usable_from([clear], 0.9) == clear and len(clear.noised) == 3
    assert not CohortUtility(8, (0.97, 0.97), (0.97, 0.97)).decided(0.9)  # two that are alike by chance


def test_looking_at_every_run_seldom_calls_a_cohort_usable_that_keeps_just_enough() -> None:
    """2000 draws of ten normal runs: at most 5 % + 3 s.e., and nearly all of those that keep .1 more."""
    rng = np.random.default_rng(0)
    runs = 0.9 + 0.05 * rng.standard_normal((2000, 10))
    wrong = [_until_decided(8, ((one, 1.0, math.nan) for one in row), 0.9).interval(0.9)[0] >= 0 for row in runs]
    assert 0.005 < np.mean(wrong) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    more = [_until_decided(8, ((one, 1.0, math.nan) for one in row), 0.9) for row in runs[:200] + 0.1]
    assert np.mean([one.interval(0.9)[0] >= 0 for one in more]) > 0.95


def test_a_cohort_counts_as_usable_only_if_all_larger_ones_are() -> None:
    found = [cohort(8, 0.9), cohort(32, 0.1), cohort(128, 0.85)]
    assert usable_from(found, 0.9) == found[2]
    assert usable_from(found[:2], 0.9) is None
    assert usable_from(found[:1], 0.9) == found[0]
    assert usable_from([cohort(8, -math.inf)], 0.9) is None
    assert keeps(-1.05, -1.0, 0.9) and not keeps(-1.2, -1.0, 0.9)  # the utility of graphs is negative


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 rows of 3 columns, in two classes that a line separates."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (120, 3))
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    np.savez(path, x=x, y=(x[:, 0] > x[:, 1]).astype(int))
    return path


def test_noise_that_ruins_4_clients_is_usable_in_a_large_cohort(rows: Path) -> None:
    found = simulate(case("optimization/dsgd"), load(rows), 4, 4, 3.0, 0.2, 1e-5, 1.0, (0, 1, 2), 0.9, (4, 512))
    small, large = (np.mean(one.clear) - np.mean(one.noised) for one in found)
    assert small > large + 0.1


def test_the_simulation_without_noise_is_the_federations_own_run(rows: Path) -> None:
    """Softmax starts from zeros, so that both runs begin alike whatever their seeds are spent on."""
    what = replace(case("optimization/dsgd"), rounds=2)
    (found,) = simulate(what, load(rows), 4, 4, 1e3, 8.0, 1e-5, 1.0, (0,), 0.9, (4,))
    prepared = resampled(what.prepare, 4, 4)(load(rows), 4, 0)
    result = Federation(what.build(), prepared.clients, chain(), seed=0, public=prepared.public).run(2)
    assert found.clear[0] == what.utility(result.output, prepared.test)


@pytest.mark.parametrize("algorithm", ["pca/ssi", "pca/fedpg", "graph/fedavg", "optimization/dsgd"])
def test_a_simulated_cohort_has_the_columns_and_the_labels_of_the_users_own(algorithm: str) -> None:
    own = case(algorithm).prepare(load("digits"), 8, 0)
    made = resampled(case(algorithm).prepare, 8, 3)(load("digits"), 20, 0)
    assert made.public.rows == (3,) * 20
    assert (made.public.features, made.public.classes) == (own.public.features, own.public.classes)
    known = {row.tobytes() for data in own.clients for row in data.x}
    assert {row.tobytes() for data in made.clients for row in data.x} <= known


def test_a_finer_search_holds_all_that_the_coarse_one_tries() -> None:
    coarse, fine = (candidates(8, 4, 6, 100, 0, fineness) for fineness in (1, 2))
    assert set(coarse) < set(fine)
    assert {one.defense for one in coarse} == {"plain", "secure_aggregation", "ddp"}
    assert max(one.rows for one in coarse) == 64
    assert candidates(8, None, 6, 0)[0].rows is None


def test_the_members_of_the_smallest_sum() -> None:
    assert Candidate("plain", 8, 1, 6).members == 1
    assert Candidate("secure_aggregation", 8, 1, 6, threshold=6, colluding=2).members == 4


@pytest.mark.parametrize("candidate", candidates(5, 4, 3, 40)[1:], ids=lambda one: one.words(1.0)[:70])
def test_what_the_user_pastes_builds_the_setting(candidate: Candidate) -> None:
    settings = {"learning_rate": 0.1, "problem": "softmax"}
    line = paste("optimization/dsgd", candidate, data_options("digits"), settings, 2.5, 1.25)
    words = shlex.split(line)
    assert words[:3] == ["securefed", "run", "optimization/dsgd"]
    named = dict(zip(words[3::2], words[4::2], strict=True))
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    defending = [words[i + 1] for i, word in enumerate(words) if word == "--defense-set"]
    run = NamedRun(
        words[2],
        parse_settings(settings),
        named["--defense"],
        parse_settings(defending),
        named["--data"],
        int(named["--clients"]),
        rounds=int(named["--rounds"]),
    )
    plan = federation(run).plan
    assert plan.threshold == candidate.threshold
    assert (plan.privacy is None) == (candidate.epsilon is None)
    assert candidate.ring is None or candidate.ring in {tensor.ring for tensor in plan.tensors}


def test_the_tree_recommends_defences_that_exist_and_every_question_has_answers() -> None:
    names: list[str] = []

    def check(at) -> None:
        if isinstance(at, Question):
            assert len(at.answers) >= 2
            for answer in at.answers:
                check(answer.leads_to)
        else:
            names.append(at.defense)

    check(TREE)
    assert set(names) <= {*defenses.names, *algorithms.names}
    assert len(names) >= 6
    assert sum("**" in line for line in outline()) == len(names)


def test_the_command_prints_the_questions_and_refuses_to_guess_an_algorithm() -> None:
    asked = CliRunner().invoke(app, ["advise", "--questions"])
    assert asked.exit_code == 0
    assert "May the server see a single client's message?" in asked.output
    refused = CliRunner().invoke(app, ["advise"])
    assert refused.exit_code == 2


def test_the_command_writes_and_shows_an_advice(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "candidates", lambda *sizes: candidates(*sizes)[:1])
    arguments = [
        "dsgd",
        "--data",
        str(rows),
        "--clients",
        "4",
        "--rows-per-client",
        "1",
        "--rounds",
        "1",
        "--seeds",
        "2",
        "--workers",
        "1",
    ]
    shown = CliRunner().invoke(app, ["advise", *arguments, "--out", str(tmp_path / "advice.json")])
    assert shown.exit_code == 0, shown.output
    assert "none is shown to keep the leak at 0.1 or less" in " ".join(shown.output.split())
    written = Advice.from_json(json.loads((tmp_path / "advice.json").read_text()))
    assert written.tried[0].leak > 0.99


def test_arguments_out_of_range_are_refused_before_anything_runs() -> None:
    for wrong in (
        {"acceptable": 0.01},
        {"acceptable": 1.0},
        {"clients": 2},
        {"seeds": 1},
        {"colluding": 7},
        {"keep": 2},
        {"workers": 0},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            advise("dsgd", **wrong)


def test_audit_and_advice_clip_and_add_noise_in_one_way(rows: Path) -> None:
    """Of the same clients, rows and rounds the audit clips to the norm that the search calls 1."""
    given = {"rows_per_client": 2, "rounds": 3}
    report = audit(
        ["dsgd"], ["ddp"], data=str(rows), clients=4, seeds=1, workers=1, attacks=["gradient_inversion/fit"], **given
    )
    own = OwnSetup(rows=2, rounds=3)
    trials = Trials(own.apply(case("dsgd")), own, load(rows), 1e-5)
    asked = Candidate("ddp", 4, 2, 3, threshold=3, epsilon=8.0)
    found = report.settings["optimization/dsgd"]
    assert found["clip"] == trials.norm(asked) != case("dsgd").clip
    assert found["noise"] == asked.words(trials.norm(asked))
    assert found["noise"] in noise_sentence(report, "optimization/dsgd")
    layout = trials.case.build().layout(trials.prepare(asked, 0).public)
    multiplier = distributed_multiplier(trials.norm(asked), 8.0, 1e-5, 3, layout, 4, 3)
    assert found["noise multipliers"]["ddp"] == multiplier
    published = OwnSetup()  # in the published cases both keep the published clip
    assert Trials(case("dsgd"), published, load("digits"), 1e-5).norm(asked) == case("dsgd").clip


def test_the_answers_begin_with_the_readers_own_rounds_and_end_with_what_holds_nowhere() -> None:
    asked = replace(SETTING, holds=False)
    fewer = replace(SETTING, rounds=1, utility=0.94, smallest_rows=20, smallest_leak=0.07, smallest_runs=2)
    record = RecordSetting(
        "private/fedavg", "securefed run private/fedavg", 8, 6, 1.0, 1e-5, 0.55, 0.93, 0.95, 100.0, 0.1, usable=True,
        changes="The command trains a network.", smallest_rows=20,
    )  # fmt: skip
    told = sentences([asked, fewer], fewer, None, 0.1, 0.9, 0)
    advice = Advice("dsgd", "rows.csv", 0.1, "server", (asked, fewer), fewer, told, None, records=(record,))
    first, second = answers(advice)
    assert first.setting == record and second.setting == fewer
    assert "For the smallest client (20 training rows) epsilon of a row is the same 1," in first.words
    assert second.words.endswith("Of the smallest client (20 training rows, 2 runs) a leak of 0.07 was measured.")
    twice = Alert("repeated rows", "", 3, "", "3 rows repeat another row.")
    assert "k epsilon" not in first.words and "k epsilon" in answers(replace(advice, alerts=(twice,)))[0].words
    own = replace(advice, advised=replace(fewer, rounds=asked.rounds))
    assert [one.setting for one in answers(own)] == [own.advised, record]  # own rounds too, and the higher utility
    none = replace(advice, advised=None)
    assert [one.setting for one in answers(none)] == [record, None, none.nearest]
    useless = replace(advice, records=(replace(record, usable=False),))
    assert [one.setting for one in answers(useless)] == [fewer, None]
    blind = replace(fewer, detectable=math.nan)
    assert "attacks failed, so that nothing is known of its leak" in smallest_sentence(
        replace(blind, smallest_leak=0.0)
    )
    assert smallest_sentence(replace(fewer, smallest_runs=0)).startswith("No attack applied to the smallest client")
    assert smallest_sentence(SETTING) == ""  # all clients have as many rows


def searched(rows: Path, **more) -> Advice:
    return advise("dsgd", data=str(rows), clients=4, rows_per_client=1, rounds=2, seeds=2, cohorts=(16,), **more)


def check_search(found: Advice) -> None:
    """One row a client in the clear is solved exactly; the settings that are said to hold leak less."""
    plain = found.tried[0]
    assert plain.leak > 0.99 and not plain.holds
    for one in found.tried:
        assert one.holds == (one.leak_upper <= 0.1 and one.detectable <= 0.1)
    noised = [one for one in found.tried if one.epsilon == 1.0]
    assert noised and all(one.leak < plain.leak for one in noised)
    assert found.frontier
    assert Advice.from_json(found.to_json()).sentences == found.sentences
    if found.advised is not None:
        assert found.advised.holds and found.advised.usable


def test_a_search_over_no_defence_and_one_kind_of_noise(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few(*sizes) -> tuple[Candidate, ...]:
        listed = candidates(*sizes)
        return (listed[0], next(one for one in listed if one.epsilon == 1.0))

    monkeypatch.setattr(search, "candidates", few)
    found = searched(rows)
    assert len(found.tried) == 2
    check_search(found)


@pytest.mark.exhaustive
def test_a_whole_search_on_small_data(rows: Path) -> None:
    found = searched(rows)
    assert len(found.tried) == len(candidates(4, 1, 2, 24))
    check_search(found)
    side_by_side = searched(rows, workers=2)
    for one, other in zip(found.tried, side_by_side.tried, strict=True):
        assert (one.defense, one.rounds, one.rows_per_client) == (other.defense, other.rounds, other.rows_per_client)
        assert one.epsilon is not None or (one.leak, one.utility) == (other.leak, other.utility)  # noise is drawn anew
