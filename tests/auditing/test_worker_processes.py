"""An audit runs from any program: a script, standard input, one with classes of its own; no finished result is lost."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from securefed._auditing.engine.worker_processes import run_all
from tests.combinations import first_ones

UNINSTALLED = """
import importlib.metadata as installed
def version(name, real=installed.version):
    if name == "securefed":
        raise installed.PackageNotFoundError(name)
    return real(name)
installed.version = version
"""
"""Stands for a checkout that is not installed, whose folder is on the path."""
MINE = """
from dataclasses import dataclass
from securefed.algorithms import SSI, algorithms
@algorithms.register("mine/ssi", summary="subspace iteration", source="a test")
@dataclass(frozen=True)
class Mine(SSI):
    pass
"""
AUDIT = """
from securefed import audit
report = audit(["{}"], ["plain"], ["gram/power"], seeds=2, rounds=2, workers=2, clients=4)
print("cells", len(report.cells), "of", report.version)
"""
GUARD = 'if __name__ == "__main__":\n'


def ran(program: str, folder: Path, *, how: str = "script") -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    given = {"script": [str(file)], "stdin": ["-"], "-c": ["-c", program]}[how]
    text = program if how == "stdin" else None
    return subprocess.run([sys.executable, *given], input=text, cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("how", first_ones(["stdin", "script"]))
def test_a_program_without_a_guard_audits_in_a_checkout_that_is_not_installed(tmp_path: Path, how: str) -> None:
    done = ran(UNINSTALLED + AUDIT.format("ssi"), tmp_path, how=how)
    assert (done.returncode, done.stdout) == (0, "cells 2 of 0.1.0\n"), done.stderr
    assert "this process" not in done.stderr  # the workers ran


def test_a_class_of_a_program_on_standard_input_is_audited_in_its_process(tmp_path: Path) -> None:
    done = ran(MINE + AUDIT.format("mine/ssi"), tmp_path, how="stdin")
    assert (done.returncode, done.stdout) == (0, "cells 2 of 0.1.0\n"), done.stderr
    assert "all parts run in this process, one after the other" in done.stderr
    assert "put the classes into a module" in done.stderr


@pytest.mark.parametrize("remedy", first_ones(["guard", "module"]))
def test_both_remedies_that_it_names_let_workers_run_it(tmp_path: Path, remedy: str) -> None:
    body = AUDIT.format("mine/ssi")
    if remedy == "module":
        (tmp_path / "mine.py").write_text(MINE)
        done = ran("import mine\n" + body, tmp_path)
    else:
        done = ran(MINE + GUARD + body.replace("\n", "\n    "), tmp_path)
    assert (done.returncode, done.stdout) == (0, "cells 2 of 0.1.0\n"), done.stderr
    assert "this process" not in done.stderr


def test_a_program_that_looks_guarded_and_is_not_loses_the_workers_and_no_result(tmp_path: Path) -> None:
    done = ran("print(__name__)\n" + MINE + AUDIT.format("mine/ssi"), tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "cells 2 of 0.1.0"
    assert "a worker process ended early" in done.stderr


def _end_a_worker(task: tuple[int, int]) -> int:
    number, parent = task
    if number == 1 and os.getpid() != parent:
        os._exit(1)
    return 10 * number


def test_results_are_kept_where_a_worker_dies_and_the_rest_runs_here(caplog: pytest.LogCaptureFixture) -> None:
    """The second task ends every worker that takes it; each task is finished once, with its result."""
    tasks, found = [(number, os.getpid()) for number in range(6)], []
    with caplog.at_level(logging.WARNING, "securefed.audit"):
        run_all(tasks, 2, _end_a_worker, lambda task, outcome: found.append((task[0], outcome)))
    assert sorted(found) == [(number, 10 * number) for number in range(6)]
    assert "a worker process ended early" in caplog.text


def test_what_no_worker_can_be_sent_runs_here(caplog: pytest.LogCaptureFixture) -> None:
    found = []
    run_all([lambda: 1, lambda: 2], 2, lambda task: task(), lambda _, outcome: found.append(outcome))
    assert found == [1, 2]
    assert "a setting cannot be sent to another process" in caplog.text
