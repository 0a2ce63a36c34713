"""The README's snippets run as printed, each alone in an empty folder; so do the examples of the page on runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import Transcript
from securefed import _catalogue as catalogue
from securefed._auditing.cases import case_names
from securefed._commands.cli import app
from securefed.errors import StorageError, UnknownNameError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
AUDIT, PROTECT, ATTACK = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
RUNS = (ROOT / "docs" / "how-to" / "run-an-algorithm.md").read_text()
RUN, ATTACK_ON_RUN = re.findall(r"```python\n(.*?)```", RUNS, flags=re.DOTALL)
GATES = (ROOT / "docs" / "how-to" / "audit-in-ci.md").read_text()
SHELL = re.findall(r"^securefed ((?:run|plan) [^#\n]*)", RUNS, flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_readme_fits_on_a_screen_and_every_link_leads_somewhere() -> None:
    assert len(README.splitlines()) < 115
    links = re.findall(r"\]\(([^)#]+)", README)
    assert len(links) > 12
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_an_own_algorithm_is_audited_and_gated(capsys) -> None:
    names: dict[str, object] = {}
    exec(AUDIT, names)  # noqa: S102 - our own README
    lines = capsys.readouterr().out.splitlines()
    gram = [line.split() for line in lines if "generic/probe" in line]
    assert (gram[0][0], gram[0][-1]) == ("server", "exposed")
    assert any(line[0] == "sum" and "not detected" in " ".join(line) for line in gram)
    with pytest.raises(AssertionError, match=r"leakage is not below 0\.2"):
        names["assert_leakage_below"](0.2, names["report"], views=["server"])  # type: ignore[operator]


def test_the_protected_loop_ends_at_the_weighted_mean(capsys) -> None:
    names: dict[str, Any] = {}
    exec(PROTECT, names)  # noqa: S102
    weighted = 3 * (0 * 40 + 1 * 25 + 2 * 60) / 125
    np.testing.assert_allclose(names["model"]["w"], weighted, atol=1e-9)
    assert capsys.readouterr().out.count("3.48") == 3


def test_the_attack_is_exact_in_the_clear_and_not_under_secure_aggregation(capsys) -> None:
    exec(ATTACK, {})  # noqa: S102
    assert float(capsys.readouterr().out) < 1e-12
    masked = ATTACK.replace("SSI(rank=2), clients)", "SSI(rank=2), clients, secure_aggregation())").replace(
        "views.server(", "views.sum_only("
    )
    exec("from securefed.defenses import secure_aggregation\n" + masked, {})  # noqa: S102 - the control
    assert float(capsys.readouterr().out) > 0.5


@pytest.mark.parametrize("line", SHELL)
def test_the_shell_examples_run(line: str) -> None:
    short = ["--rounds", "2"] if line.startswith("run") else []
    done = CliRunner().invoke(app, [*shlex.split(line), *short])
    assert done.exit_code == 0, done.output
    assert ("2 rounds" if short else "largest N") in done.output


def test_there_are_shell_examples_and_the_lists_are_complete() -> None:
    assert len(SHELL) == 3
    table = re.sub(r"[^a-z0-9]", "", RUNS[RUNS.index("## What there is") :].lower())
    for entry in catalogue.algorithms:
        assert all(part in table for part in re.split("[-_]", entry.name.split("/")[1])), entry.name


def test_the_audits_of_the_pages_name_algorithms_that_are_audited() -> None:
    named = [
        name for names in re.findall(r"--algorithms (\S+)", RUNS + GATES) for name in names.rstrip("`)").split(",")
    ]
    assert len(named) >= 3
    assert {catalogue.algorithms[name].name for name in named if name != "all"} <= set(case_names())
    with pytest.raises(UnknownNameError):  # positive control: the last part of several
        catalogue.algorithms["fedavg"]


def test_the_run_and_the_attack_on_it_work(capsys) -> None:
    names: dict[str, object] = {}
    exec(RUN, names)  # noqa: S102
    exec(ATTACK_ON_RUN, names)  # noqa: S102
    error = float(capsys.readouterr().out.splitlines()[-1].split()[0])
    assert error < 0.05
    with pytest.raises(NameError):  # positive control: a block without its imports fails
        exec(ATTACK_ON_RUN[ATTACK_ON_RUN.index("observed =") :], {})  # noqa: S102


def test_a_second_run_of_a_finished_one_keeps_its_transcript() -> None:
    """Its checkpoint has all rounds, so nothing is sent again, and the empty transcript does not take the file."""
    exec(RUN, {})  # noqa: S102
    before = Path("run.transcript").read_bytes()
    names: dict[str, Any] = {}
    with pytest.raises(StorageError, match="checkpoint of 20 rounds"):
        exec(RUN, names)  # noqa: S102
    assert Path("run.transcript").read_bytes() == before
    transcript = names["result"].transcript
    for _ in range(2):  # elsewhere it is saved, and saved again
        transcript.save("resumed.transcript")
    assert Transcript.load("resumed.transcript").missing == 20
    assert Transcript.load("run.transcript").missing == 0
    Path("run.checkpoint").unlink()
    exec(RUN, {})  # noqa: S102 - a run from the start has all there is to save
    assert len(Transcript.load("run.transcript").records) == 20
