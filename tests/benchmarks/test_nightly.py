"""The nightly run: the nearest tests of a mutant are found, parts fail by name, and the page holds it all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ledger import staleness
from benchmarks.nightly import figures, kernels, mutation, schedules
from benchmarks.nightly.__main__ import PARTS, main
from benchmarks.nightly.page import text
from tests import release_check

ROOT = Path(__file__).parents[2]


def test_a_module_has_tests_near_it() -> None:
    near = mutation.nearest("defenses/_secure_aggregation/primitives.py")
    assert any("primitives" in (ROOT / path).read_text() for path in near)


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


@pytest.mark.parametrize("quick", [True, False])
def test_a_night_measures_the_long_experiments_and_missing_seeds_and_renews_nothing_else(
    quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = {
        "losac/all-har": "not run yet",
        "losac/all-esr": staleness.OLD,
        "ppgl/fig6": staleness.OLD,
        "ppgl/fig5": "1 of 3 seeds",
        "losac/fig2": "not run yet",
    }
    ran: list[str] = []
    monkeypatch.setattr(staleness, "owed", lambda *_: {name: why for name, why in reasons.items() if name not in ran})
    monkeypatch.setattr(
        figures, "measure", lambda chosen, *_, **__: ran.extend(each.experiment.name for each in chosen)
    )
    (part,) = figures.run(quick=quick, seed=0)
    assert set(ran) == (set() if quick else {"losac/all-har", "losac/all-esr", "ppgl/fig5"})
    assert not part.passed
    assert "ppgl/fig6" in part.notes[0]


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
