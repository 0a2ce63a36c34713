"""The values of an advice: their JSON, and the frontier of the settings that were tried."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from securefed import Advice, Setting
from securefed._auditing.advice.advice_values import RecordSetting
from securefed._auditing.advice.advised_words import (
    ALL,
    FAILED,
    NONE,
    UNKNOWN,
    explained_words,
    leak_words,
    nearest_sentence,
    noise_words,
    record_rows,
    record_sentence,
    utility_words,
)
from securefed.errors import DataError

SETTING = Setting(
    algorithm="optimization/dsgd",
    defense="secure aggregation",
    paste="securefed run optimization/dsgd --defense secure_aggregation",
    clients=8,
    rows_per_client=16,
    rounds=6,
    leak=0.01,
    leak_upper=0.04,
    detectable=0.09,
    holds=True,
    epsilon=None,
    utility=0.9,
    utility_clear=0.9,
    bytes_up=5200.0,
    seconds_per_round=0.02,
)
ADVICE = Advice(
    "optimization/dsgd", "digits", 0.1, "the server", (SETTING,), SETTING, ("Do this.", "It costs that."), None
)
RECORD = RecordSetting(
    algorithm="private/fedavg",
    paste="securefed run private/fedavg",
    clients=8,
    rounds=6,
    epsilon=1.0,
    delta=1e-5,
    guess=0.549,
    utility=0.88,
    utility_clear=0.9,
    bytes_up=5200.0,
    seconds_per_round=0.02,
    usable=True,
)


@pytest.mark.parametrize(
    "advice", [ADVICE, replace(ADVICE, advised=None, clients_needed=128), replace(ADVICE, records=(RECORD,))]
)
def test_an_advice_survives_json(advice: Advice) -> None:
    assert Advice.from_json(json.loads(json.dumps(advice.to_json(), allow_nan=False))) == advice


def test_what_was_not_measured_is_null_in_json_and_nan_again() -> None:
    unknown = replace(SETTING, detectable=math.nan, bytes_up=math.nan, seconds_per_round=math.nan)
    written = unknown.to_json()
    assert written["detectable"] is None
    again = Setting.from_json(written)
    assert all(map(math.isnan, (again.detectable, again.bytes_up, again.seconds_per_round)))


def test_values_of_another_version_are_refused() -> None:
    with pytest.raises(DataError, match="colour"):
        Setting.from_json(SETTING.to_json() | {"colour": "red"})
    with pytest.raises(DataError, match="leak"):
        Setting.from_json({key: value for key, value in SETTING.to_json().items() if key != "leak"})


def test_the_frontier_leaves_out_what_another_setting_beats_in_everything() -> None:
    worse = replace(SETTING, defense="worse", leak_upper=0.5, utility=0.8)
    dearer = replace(SETTING, defense="leaks less, dearer", leak_upper=0.01, bytes_up=9e4)
    promised = replace(SETTING, defense="leaks more, with a promise", leak_upper=0.06, epsilon=8.0)
    unmeasured = replace(SETTING, defense="unmeasured", leak_upper=math.nan)
    advice = replace(ADVICE, tried=(worse, SETTING, dearer, promised, unmeasured))
    assert advice.frontier == (SETTING, dearer, promised)


def test_where_nothing_is_advised_the_nearest_setting_and_what_it_leaves_are_named() -> None:
    """A setting that holds comes before one of more utility; of those that do not hold the lowest bound does."""
    leaky = replace(SETTING, holds=False, leak_upper=0.3, utility=0.95)
    leakier = replace(leaky, leak_upper=0.6, utility=0.99, epsilon=8.0, usable_from=128)
    none = replace(ADVICE, advised=None, tried=(leakier, leaky))
    assert none.nearest == leaky and ADVICE.nearest is None and nearest_sentence(ADVICE) == ""
    said = nearest_sentence(none)
    assert "A leak of up to 0.30 is not excluded." in said
    ruined = replace(none, tried=(replace(leaky, utility_deviation=0.2),))
    assert "It is a mean of runs with a standard deviation of 0.200." in nearest_sentence(ruined)
    assert "From 128 clients on, noise of epsilon 8 in 6 rounds keeps 90%" in said
    held = replace(none, tried=(leakier, leaky, replace(SETTING, usable=False)))
    assert held.nearest is not None and held.nearest.holds
    assert "From 128" not in nearest_sentence(held)
    shorter = replace(leaky, rounds=1, leak_upper=0.2)
    assert "8 clients, 16 rows and 1 round. You asked for 6 rounds. A leak" in nearest_sentence(
        replace(none, tried=(leaky, shorter))
    )
    blind = replace(none, tried=(replace(leaky, detectable=math.nan),))
    assert "might have missed a leak of any size" in nearest_sentence(blind)
    assert replace(none, tried=(replace(leaky, paste=""),)).nearest is None


def test_of_noise_that_hides_single_rows_the_strongest_usable_promise_is_said() -> None:
    weak, strong = replace(RECORD, epsilon=8.0, utility=0.9), replace(RECORD, epsilon=0.5, utility=0.3, usable=False)
    said = record_sentence(replace(ADVICE, records=(strong, RECORD, weak)))
    assert "use private/fedavg with epsilon 1 (delta 1e-05) for a row. The utility is 0.880, 0.020 less than in" in said
    assert "in at most 55 of 100 cases" in said
    scattered = replace(RECORD, utility_deviation=0.0312)
    assert "with a standard deviation of 0.031." in record_sentence(replace(ADVICE, records=(scattered,)))
    none = record_sentence(replace(ADVICE, records=(strong,)))
    assert "at epsilon 0.5 for a row, does not keep 90% of the utility" in none
    assert record_sentence(replace(ADVICE, records_note="Not tried: pca.")) == "Not tried: pca."


def test_a_table_has_one_word_for_each_thing_that_is_no_figure_and_explains_those_that_it_has() -> None:
    scattered = replace(SETTING, leak=0.0, leak_upper=1.0, detectable=1.7)
    failed = replace(SETTING, detectable=math.nan, utility_deviation=0.13)
    absent = replace(SETTING, leak=math.nan, leak_upper=math.nan, detectable=math.nan, utility=math.nan)
    assert leak_words(SETTING) == ("0.01", "0.04", "0.09")
    assert leak_words(scattered) == ("0.00", ALL, NONE)
    assert leak_words(failed) == (FAILED, FAILED, FAILED)  # a small figure would look like safety
    assert leak_words(replace(failed, leak=0.3, leak_upper=0.4)) == ("0.30", "0.40", FAILED)
    assert leak_words(replace(failed, leak_upper=1.0)) == (FAILED, ALL, FAILED)
    assert leak_words(absent) == (UNKNOWN,) * 3
    assert [utility_words(one) for one in (SETTING, failed, absent)] == ["0.90", "0.90±0.13", UNKNOWN]
    assert explained_words([SETTING]) == ""
    for one, words in ((scattered, (ALL, NONE)), (failed, (FAILED,)), (absent, (UNKNOWN,))):
        said = explained_words([SETTING, one])
        assert [word for word in (ALL, NONE, FAILED, UNKNOWN) if f"`{word}`: " in said] == list(words)


def test_a_noised_setting_that_is_not_shown_to_hold_is_not_said_to_leak() -> None:
    noised = replace(SETTING, epsilon=8.0, holds=False, detectable=0.4)
    said = noise_words(replace(ADVICE, tried=(SETTING, noised)))
    assert said.startswith("Under noise epsilon holds whatever the attacks show: `-` there means that")
    assert said.endswith("not that it leaks, unless the leak itself is above 0.1.")
    assert noise_words(ADVICE) == noise_words(replace(ADVICE, tried=(replace(noised, holds=True),))) == ""


def test_every_epsilon_of_noise_for_single_rows_has_its_utility_and_scatter() -> None:
    scattered = replace(RECORD, epsilon=4.0, guess=0.67, utility=0.9, utility_deviation=0.02, usable=False)
    assert record_rows(replace(ADVICE, records=(RECORD, scattered))) == [
        ("1", "55", "0.88", "yes"),
        ("4", "67", "0.90±0.02", "no"),
    ]
    unknown = RecordSetting.from_json(RECORD.to_json())
    assert math.isnan(unknown.utility_deviation) and replace(unknown, utility_deviation=0.0) == replace(
        RECORD, utility_deviation=0.0
    )


def test_an_advice_of_a_version_without_records_is_read() -> None:
    old = ADVICE.to_json()
    del old["records"], old["records_note"]
    assert Advice.from_json(old) == ADVICE
