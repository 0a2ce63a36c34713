"""The README's examples run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import _catalogue as catalogue
from securefed._auditing.cases import case_names
from securefed._commands.cli import app
from securefed._messages import Transcript
from securefed.errors import StorageError, UnknownNameError

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SHELL = re.findall(r"^securefed ((?:run|plan) [^#\n]*)", README, flags=re.MULTILINE)


@pytest.mark.parametrize("line", SHELL)
def test_the_shell_examples_run(line: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--rounds", "2"] if line.startswith("run") else []
    done = CliRunner().invoke(app, [*shlex.split(line), *short])
    assert done.exit_code == 0, done.output
    assert ("2 rounds" if short else "largest N") in done.output


def test_there_are_shell_examples_and_the_lists_are_complete() -> None:
    assert len(SHELL) == 3
    table = re.sub(r"[^a-z0-9]", "", README[README.index("## What is in it") :].lower())
    for entry in catalogue.algorithms:
        assert all(part in table for part in re.split("[-_]", entry.name.split("/")[1])), entry.name


def test_the_audits_of_the_readme_name_algorithms_that_are_audited() -> None:
    named = [name for names in re.findall(r"--algorithms (\S+)", README) for name in names.rstrip("`)").split(",")]
    assert len(named) >= 4
    assert {catalogue.algorithms[name].name for name in named if name != "all"} <= set(case_names())
    with pytest.raises(UnknownNameError):  # positive control: the last part of several
        catalogue.algorithms["fedavg"]


def test_the_two_line_example_runs() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 10, 3))
    names = {
        "rounds": 60,
        "clients": list(zip(x, x @ np.array([1.0, -2.0, 0.5]), strict=True)),
        "sizes": [10] * 4,
        "model": {"w": np.zeros(3)},
        "local_step": lambda model, a, b: {"w": model["w"] - 0.1 * a.T @ (a @ model["w"] - b) / len(a)},
    }
    exec(BLOCKS[0], names)  # noqa: S102 - our own README
    np.testing.assert_allclose(names["model"]["w"], [1.0, -2.0, 0.5], atol=0.2)


def test_the_run_and_the_attack_on_it_work(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(BLOCKS[1], names)  # noqa: S102
    exec(BLOCKS[2], names)  # noqa: S102
    error = float(capsys.readouterr().out.splitlines()[-1].split()[0])
    assert error < 0.05
    assert len(BLOCKS) == 4
    with pytest.raises(NameError):  # positive control: a block without its imports fails
        exec(BLOCKS[2][BLOCKS[2].index("observed =") :], {})  # noqa: S102


def test_a_second_run_of_a_finished_one_keeps_its_transcript(tmp_path, monkeypatch) -> None:
    """Its checkpoint has all rounds, so nothing is sent again, and the empty transcript does not take the file."""
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[1], {})  # noqa: S102
    before = Path("run.transcript").read_bytes()
    names: dict[str, Any] = {}
    with pytest.raises(StorageError, match="checkpoint of 20 rounds"):
        exec(BLOCKS[1], names)  # noqa: S102
    assert Path("run.transcript").read_bytes() == before
    transcript = names["result"].transcript
    for _ in range(2):  # elsewhere it is saved, and saved again
        transcript.save("resumed.transcript")
    assert Transcript.load("resumed.transcript").missing == 20
    assert Transcript.load("run.transcript").missing == 0
    Path("run.checkpoint").unlink()
    exec(BLOCKS[1], {})  # noqa: S102 - a run from the start has all there is to save
    assert len(Transcript.load("run.transcript").records) == 20


def test_an_own_algorithm_is_audited_and_gated(capsys) -> None:
    names: dict[str, object] = {}
    exec(BLOCKS[3], names)  # noqa: S102
    lines = capsys.readouterr().out.splitlines()
    gram = [line.split() for line in lines if "generic/probe" in line]
    assert (gram[0][0], gram[0][-1]) == ("server", "exposed")
    assert any(line[0] == "sum" and "not detected" in " ".join(line) for line in gram)
    with pytest.raises(AssertionError, match=r"leakage is not below 0\.2"):
        names["assert_leakage_below"](0.2, names["report"], views=["server"])  # type: ignore[operator]
