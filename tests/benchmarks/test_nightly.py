"""The nightly run: mutants change what they say and no more, the nearest tests are found, and the page holds it all."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ledger import staleness
from benchmarks.nightly import figures, kernels, mutation, schedules
from benchmarks.nightly.__main__ import PARTS, main
from benchmarks.nightly.mutants import VARIABLE, mutants, mutated
from benchmarks.nightly.page import text
from tests import release_check

ROOT = Path(__file__).parents[2]
SOURCE = '''
def least(values: list[int]) -> int:
    """Return 1 + 1."""
    if len(values) < 2:
        raise ValueError(f"{1 + 1} of {2}")
    return min(values) + 3 if values else 0
'''


def test_mutants_are_the_operators_comparisons_conditions_and_constants_of_the_code():
    assert [mutant.words for mutant in mutants("m", SOURCE)] == [
        "`len(values) < 2` -> `not len(values) < 2`",
        "`len(values) < 2` -> `len(values) <= 2`",
        "`2` -> `3`",
        "`values` -> `not values`",
        "`min(values) + 3` -> `min(values) - 3`",
        "`3` -> `4`",
        "`0` -> `1`",
    ]


def test_each_mutant_changes_the_one_place_that_its_words_name():
    plain = ast.unparse(ast.parse(SOURCE))
    for mutant in mutants("m", SOURCE):
        before, after = mutant.words.strip("`").split("` -> `")
        changed = ast.unparse(mutated(SOURCE, mutant.number))
        lines = [(a, b) for a, b in zip(plain.splitlines(), changed.splitlines(), strict=True) if a != b]
        assert len(lines) == 1
        assert before in lines[0][0]
        assert after in lines[0][1]


def test_the_hook_loads_the_mutant_and_nothing_else():
    """The control beside it: without the variable the module is as it is written."""
    module = "securefed.defenses._secure_aggregation.shamir"
    number = next(
        m.number for m in mutants(module, mutation.modules()[module].read_text()) if m.words.startswith("`0`")
    )
    script = (
        f"import benchmarks.nightly.mutants, {module} as m; from securefed.defenses._secure_aggregation import "
        "mersenne; print(type(m.__loader__).__name__, type(mersenne.__loader__).__name__)"
    )
    for value, loader in ((f"{module}:{number}", "_Loader"), ("", "SourceFileLoader")):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT, env=os.environ | {VARIABLE: value}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split() == [loader, "SourceFileLoader"]


def test_draws_follow_the_seed_and_a_module_has_tests_near_it(monkeypatch: pytest.MonkeyPatch):
    module = "securefed.defenses._secure_aggregation.shamir"
    few = {module: mutation.modules()[module]}
    monkeypatch.setattr(mutation, "modules", lambda: few)
    assert mutation.draw(5, 1) == mutation.draw(5, 1) != mutation.draw(5, 2)
    assert {drawn.module for drawn in mutation.draw(5, 1)} == {module}
    assert any("shamir" in (ROOT / path).read_text() for path in mutation.nearest(module))


def test_the_page_names_seed_parts_and_survivors():
    part = {"name": "mutants", "passed": True, "seconds": 3.2, "figures": "1 | 2", "notes": ["survived: `a`"]}
    night = {"seed": 7, "quick": True, "date": "2026-01-01", "python": "3.11", "parts": [part]}
    page = text([night, night | {"parts": [part | {"passed": False}]}])
    assert "seed 7, quick: passed" in page
    assert "seed 7, quick: failed" in page
    assert "| mutants | yes | 1 \\| 2 | 3 |" in page
    assert "- mutants: survived: `a`" in page


@pytest.mark.parametrize(
    ("code", "printed", "passed"), [(0, "5 passed in 1s", True), (0, "", False), (1, "1 failed, 4 passed", False)]
)
def test_a_part_without_a_single_test_has_not_passed(
    code: int, printed: str, passed: bool, monkeypatch: pytest.MonkeyPatch
):
    ended = subprocess.CompletedProcess([], code, printed, "")
    monkeypatch.setattr(schedules.subprocess, "run", lambda *_, **__: ended)
    part = schedules.play("some", ("tests",), "nightly", 1)
    assert part.passed is passed
    assert bool(part.notes) is (not passed and bool(printed))


@pytest.mark.parametrize("stale", [("ppgl/fig6", "losac/fig2"), ()])
def test_a_figure_older_than_the_code_fails_the_night_and_the_release_with_the_command_that_renews_it(
    stale: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staleness, "owed", lambda *_: dict.fromkeys(stale, "older than the code"))
    (part,) = figures.run(quick=True, seed=0)
    assert part.passed is not bool(stale)
    renewed = "make reproduce REPRODUCE_ARGS='ppgl/fig6 losac/fig2'"
    assert [renewed in note for note in part.notes] == [True] * bool(stale)
    monkeypatch.setattr(sys, "argv", ["release_check"])
    monkeypatch.setattr(release_check, "git", lambda *_: sys.exit("the build begins"))
    with pytest.raises(SystemExit, match=re.escape(renewed) if stale else "the build begins"):
        release_check.main()


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["soak"])
    assert ", ".join(PARTS) in capsys.readouterr().err


def test_kernels_run_with_one_and_two_threads_and_failures_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str, bool]] = []

    def pytest_run(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append((env["OPENBLAS_CORETYPE"], env["OPENBLAS_NUM_THREADS"], "not exhaustive" in command))
        failed = env["OPENBLAS_CORETYPE"] == "Haswell"
        printed = "FAILED tests/x.py::test_y - assert 1 == 2\n1 failed, 4 passed in 2s" if failed else "5 passed in 2s"
        return subprocess.CompletedProcess(command, int(failed), printed, "")

    monkeypatch.setattr(kernels, "kernels", lambda: ("Haswell", "Sandybridge"))
    monkeypatch.setattr(kernels, "takes_effect", lambda kernel: True)
    monkeypatch.setattr(kernels.subprocess, "run", pytest_run)
    parts = kernels.run(quick=True, seed=0)
    assert ran == [(kernel, threads, True) for kernel in ("Haswell", "Sandybridge") for threads in ("1", "2")]
    assert [part.passed for part in parts] == [False, False, True, True]
    assert (parts[0].figures, parts[3].figures) == ("1 failed, 4 passed in 2s", "5 passed in 2s")
    assert parts[0].notes == ("FAILED tests/x.py::test_y - assert 1 == 2",)
    assert not any(part.notes for part in parts[2:])
    ran.clear()
    kernels.run(quick=False, seed=0)
    assert not any(quick for _, _, quick in ran)
