"""The nightly run: the nearest tests of a mutant are found, parts fail by name, and the page holds it all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nightly import kernels, mutation, schedules
from benchmarks.nightly.__main__ import PARTS, main
from benchmarks.nightly.page import text

ROOT = Path(__file__).parents[2]


def test_a_module_has_tests_near_it() -> None:
    near = mutation.nearest("defenses/_secure_aggregation/shamir.py")
    assert any("shamir" in (ROOT / path).read_text() for path in near)


def test_without_cosmic_ray_the_part_fails_and_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cosmic_ray", None)
    (part,) = mutation.run(quick=True, seed=0)
    assert not part.passed
    assert "[nightly]" in part.notes[0]


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
