"""Mutate the defences and the runtime with cosmic-ray, run the nearest tests on each mutant, list those that survive.

The mutants are made in a copy of the repository, so that no file of the repository changes.
"""

from __future__ import annotations

import contextlib
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.nightly.parts import Part

if TYPE_CHECKING:
    from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).parents[2]
PACKAGES = ("defenses", "securefed/_runtime")
COUNT, QUICK_COUNT = 100, 3
NEAREST = 4
"""Files of tests that run on a mutant: those that name the module's own words most often."""
PATIENCE = 600
"""Seconds after which a mutant counts as found: its tests pass in far less where nothing is mutated."""
ANNOTATIONS = "BitOr_"
"""Operators that are left out: almost every `|` of these modules joins two types, which no test can notice."""
ASIDE = (".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "generated")


def modules() -> list[str]:
    """Return the files that are mutated, by path in the repository."""
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py"]


@cache
def nearest(path: str) -> tuple[str, ...]:
    """Return the files of tests that import the module, or else name most of what it defines."""
    parts = Path(path).with_suffix("").parts
    module = ".".join(parts if parts[0] == "securefed" else ("securefed", *parts))
    words = set(re.findall(r"^(?:class|def|    def) ([A-Za-z]\w{3,})", (ROOT / path).read_text(), re.M)) | {parts[-1]}
    pattern = re.compile(r"\b(?:" + "|".join(map(re.escape, sorted(words))) + r")\b")
    scores = {}
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        text = test.read_text()
        score = len(set(pattern.findall(text))) + 100 * bool(re.search(rf"\b{re.escape(module)}\b", text))
        if score:
            scores[str(test.relative_to(ROOT))] = score
    return tuple(sorted(scores, key=lambda test: (-scores[test], test))[:NEAREST])


def draw(number: int, seed: int, paths: Sequence[str]) -> list[MutationSpec]:
    """Draw so many mutants of files in the current folder, each place of them as likely as any other."""
    from cosmic_ray.commands import init  # noqa: PLC0415 - the extra `nightly`
    from cosmic_ray.work_db import WorkDB, use_db  # noqa: PLC0415

    places: dict[tuple[str, tuple[int, int]], list[MutationSpec]] = {}
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/session.sqlite", WorkDB.Mode.create) as session:
        init(paths, session, {})
        for item in session.work_items:
            (one,) = item.mutations
            if ANNOTATIONS not in one.operator_name:
                places.setdefault((str(one.module_path), one.start_pos), []).append(one)
    rng = random.Random(seed)  # noqa: S311
    drawn = rng.sample(sorted(places), min(number, len(places)))
    return [rng.choice(sorted(places[place], key=lambda one: (one.operator_name, one.occurrence))) for place in drawn]


def run(quick: bool, seed: int, number: int | None = None) -> list[Part]:
    """Run the nearest tests on every mutant; the part fails where they fail without one."""
    began = time.monotonic()
    try:
        import cosmic_ray  # noqa: F401, PLC0415
    except ImportError:
        missing = "cosmic-ray is not installed: `pip install --constraint constraints.txt '.[nightly]'`"
        return [Part("mutants", False, 0.0, "not run", (missing,))]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(_copied(Path(folder) / "copy")):
        drawn = draw(number or (QUICK_COUNT if quick else COUNT), seed, modules())
        found, notes = _judged(drawn)
    figures = f"{found} of {len(drawn)} mutants found by the {NEAREST} nearest files of tests"
    return [
        Part(
            "mutants", not any(note.startswith("its tests") for note in notes), time.monotonic() - began, figures, notes
        )
    ]


def _judged(drawn: Sequence[MutationSpec]) -> tuple[int, tuple[str, ...]]:
    """Return how many mutants the tests find, and lines about the others."""
    from cosmic_ray.mutating import mutate_and_test  # noqa: PLC0415
    from cosmic_ray.testing import run_tests  # noqa: PLC0415
    from cosmic_ray.work_item import TestOutcome  # noqa: PLC0415

    notes: list[str] = []
    sound: dict[tuple[str, ...], bool] = {}
    for one in drawn:
        tests = nearest(str(one.module_path))
        about = f"`{one.module_path}`, line {one.start_pos[0]}"
        if not tests:
            notes.append(f"no test names it: {about}, {one.operator_name}")
            continue
        result = mutate_and_test([one], command(tests), PATIENCE)
        if result.test_outcome is TestOutcome.SURVIVED:
            notes.append(f"survived: {about}: {_change(result.diff or '')}")
        elif not sound.setdefault(tests, run_tests(command(tests), PATIENCE)[0] is TestOutcome.SURVIVED):
            notes.append(f"its tests fail without it, too: {about}")  # the control: unmutated, they pass
    return len(drawn) - len(notes), tuple(notes)


def command(tests: Sequence[str]) -> str:
    """Return the command that runs these files of tests in the current folder."""
    return shlex.join(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "not exhaustive", "--hypothesis-profile", "quick",
         "-p", "no:cacheprovider", *tests]
    )  # fmt: skip


def _copied(folder: Path) -> Path:
    """Copy the repository, in which the folders `attacks` and `defenses` are found as parts of `securefed`."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*ASIDE))
    for name in ("attacks", "defenses"):
        (folder / "securefed" / name).symlink_to(Path("..") / name)
    return folder


def _change(diff: str) -> str:
    """Return the lines that a mutant takes and puts, in one line."""
    lines = [line for line in diff.splitlines() if re.match(r"[-+](?![-+])", line)]
    before, after = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")
    return f"`{' '.join(before)}` -> `{' '.join(after)}`"
