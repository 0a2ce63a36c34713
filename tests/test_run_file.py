from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from securefed import Layout, TensorSpec
from securefed._commands.cli import app
from securefed._commands.run_file import Requirements, read_run, shortfalls
from securefed.defenses import chain, clip, gaussian, records, secure_aggregation
from securefed.errors import ConfigError, StorageError

RUNNER = CliRunner()
RUN = """
algorithm = "ssi"
data = "digits"
clients = 4
rounds = 2
[settings]
rank = 3
[defense]
name = "secure_aggregation"
threshold = 3
[require]
hidden = true
threshold = 3
error = 1e-3
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def test_a_file_describes_the_whole_run(tmp_path) -> None:
    path = written(tmp_path, RUN)
    run, required = read_run(path)
    assert (run.algorithm, run.settings, run.clients, run.rounds) == ("ssi", {"rank": 3}, 4, 2)
    assert (run.defense, run.defense_settings) == ("secure_aggregation", {"threshold": 3})
    assert required == Requirements(hidden=True, threshold=3, error=1e-3)
    shown = RUNNER.invoke(app, ["run", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "survivors needed: 3 of 4" in shown.output  # the plan, before the run
    assert shown.output.index("survivors needed") < shown.output.index("2 rounds in")
    printed = RUNNER.invoke(app, ["run", str(path), "--json", "--out", str(tmp_path / "out")])
    assert json.loads(printed.output)["rounds"] == 2
    assert (tmp_path / "out" / "run.json").exists()


def test_a_file_is_utf_8_whatever_the_locale(tmp_path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f"# étude\n{RUN}", encoding="utf-8")
    ascii_locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "import sys, pathlib; from securefed._commands.run_file import read_run; read_run(pathlib.Path(sys.argv[1]))"
    ran = subprocess.run([sys.executable, "-c", code, path], check=False, env=ascii_locale, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "secure_aggregation"\nthreshold = 3', 'name = "plain"', "the server sees every contribution"),
        ("threshold = 3\nerror", "threshold = 4\nerror", "opens with 3 survivors, and at least 4"),
        ("error = 1e-3", "error = 1e-30", "and 1e-30 is required"),
        ("error = 1e-3", "epsilon = 8", "epsilon is inf"),
    ],
)
def test_a_plan_that_promises_less_than_required_is_not_run_without_consent(tmp_path, old: str, new: str, says: str):
    assert old in RUN
    path = written(tmp_path, RUN.replace(old, new))
    declined = RUNNER.invoke(app, ["run", str(path)])
    assert declined.exit_code == 1
    assert says in " ".join(declined.output.split())
    assert "rounds in" not in declined.output
    assert RUNNER.invoke(app, ["run", str(path), "--yes"]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("algorithm = ", "no TOML file"),
        ("clients = 3", "lacks the algorithm"),
        ('algorithm = "ssi"\nround = 3', "the nearest one is 'rounds'"),
        ('algorithm = "ssi"\nrounds = "3"', "rounds must be a whole number"),
        ('algorithm = "ssi"\nsettings = 3', "settings must be a table"),
        ('algorithm = "ssi"\n[require]\nhiden = true', "the nearest one is 'hidden'"),
        ('algorithm = "ssi"\n[require]\nhidden = 1', "true or false"),
        ('algorithm = "ssi"\n[defense]\nname = 3', "must be a text"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_run(written(tmp_path, text))


@pytest.mark.parametrize("given", [["--rounds", "3"], ["--set", "rank=2"], ["--defense", "plain"]])
def test_options_that_describe_the_run_belong_into_the_file(tmp_path, given: list[str]) -> None:
    shown: Any = RUNNER.invoke(app, ["run", str(written(tmp_path, RUN)), *given])
    assert shown.exit_code == 2
    assert "write it there" in " ".join(shown.output.split())


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        read_run(tmp_path / "none.toml")


def test_epsilon_is_required_at_the_delta_of_the_noise_and_for_its_unit() -> None:
    """At the customary delta of 1e-5 these ten rounds cost 3.34, at the stated one 4.77."""
    layout = Layout((TensorSpec("w", (4,), 1.0, sensitivity=1.0),))
    for clipped in (clip(1.0), records()):
        defense = chain(clipped, gaussian(4.0, delta=1e-9), secure_aggregation())
        (said,) = shortfalls(Requirements(epsilon=4.0), defense, defense.plan(layout, 3), 10)
        assert said == "epsilon is 4.77 after 10 rounds, and at most 4 is required"
        assert not shortfalls(Requirements(epsilon=4.8), defense, defense.plan(layout, 3), 10)
