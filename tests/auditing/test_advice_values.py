"""The values of an advice: their JSON, and the frontier of the settings that were tried."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from securefed._auditing.advice.advice_values import Advice, Setting
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


@pytest.mark.parametrize("advice", [ADVICE, replace(ADVICE, advised=None, clients_needed=128)])
def test_an_advice_survives_json(advice: Advice) -> None:
    assert Advice.from_json(json.loads(json.dumps(advice.to_json(), allow_nan=False))) == advice


def test_what_was_not_measured_is_null_in_json_and_nan_again() -> None:
    unknown = replace(SETTING, detectable=math.nan)
    written = unknown.to_json()
    assert written["detectable"] is None
    assert math.isnan(Setting.from_json(written).detectable)


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
