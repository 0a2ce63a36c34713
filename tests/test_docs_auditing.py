"""The pages on audits of a training and of a recorded run: their code runs as it stands, and what they name exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed._auditing.registered.transcript_finding import (
    OPEN_DIRECTIONS,
    OTHER_RUN,
    RECOVERED,
    UNCHECKED,
    UNDETERMINED,
    UNSOLVED,
    UP_TO,
)
from securefed._commands.cli import app

DOCS = Path(__file__).parents[1] / "docs"
TRAINING = (DOCS / "tutorials" / "audit-your-training.md").read_text()
GATES = (DOCS / "how-to" / "audit-in-ci.md").read_text()
PAGE = (DOCS / "how-to" / "audit-a-recorded-run.md").read_text()


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


def test_the_recorded_run_is_attacked(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    exec(blocks(PAGE)[0], {})  # noqa: S102 - our own page
    assert "server, gram by gram/power from 5 rounds: recovered" in capsys.readouterr().out
    done = CliRunner().invoke(app, ["attack", "run.transcript", "ssi", "--set", "rank=2"])
    assert "recovered" in done.output


@pytest.mark.exhaustive
def test_the_torch_loop_is_audited(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    example, report, texts = blocks(TRAINING)
    names: dict[str, object] = {}
    exec(example, names)  # noqa: S102 - our own page
    shown, of_texts = re.findall(r"```text\n(.*?)```", TRAINING, flags=re.DOTALL)
    assert capsys.readouterr().out == shown
    exec(report, names)  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert "one gradient step of rate 0.1" in printed
    assert (tmp_path / "training-audit" / "audit.html").exists()
    for attack in ("training/rows", "training/last layer", "membership/loss drop"):
        assert attack in printed
    exec(texts, names)  # noqa: S102 - our own page
    assert capsys.readouterr().out == of_texts


def test_every_word_of_a_finding_is_on_the_page() -> None:
    for word in (RECOVERED, UP_TO, OPEN_DIRECTIONS, UNDETERMINED, OTHER_RUN, UNSOLVED, UNCHECKED):
        assert f"`{word}`" in PAGE
    assert "`misfit`" not in PAGE  # the control


@pytest.mark.exhaustive
def test_the_gates_of_the_page_pass_on_what_they_protect_and_central_noise_does_not(tmp_path, monkeypatch) -> None:
    """The commands as printed, on small data."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("mydata.npz", x=rng.uniform(0, 1, (40, 6)), y=rng.integers(0, 2, 40))
    audit, compare = re.findall(r"^securefed ((?:audit|compare) .*)$", GATES, flags=re.MULTILINE)
    small = ["--seeds", "3", "--clients", "4", "--rows-per-client", "4", "--workers", "1"]

    def ran(line: str, *more: str):
        return CliRunner().invoke(app, [*shlex.split(line), *more], env={"COLUMNS": "200"})

    passed = ran(audit, *small, "--out", "main")
    assert passed.exit_code == 0, passed.output
    central = ran(audit.replace("ddp", "dp"), *small, "--out", "branch")
    assert central.exit_code == 3
    assert re.search(r"(above 0\.2|unknown): optimization/fedavg, dp, sum only", central.output), central.output
    changed = ran(compare)
    assert changed.exit_code == 3 and "no longer tried: FedAvg, DDP" in changed.output
    same = ran(compare.replace("branch", "main"))
    assert same.exit_code == 0, same.output
