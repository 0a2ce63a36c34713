"""Draw mutants of the defences and of the runtime, run the nearest tests on each, and list those that survive."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from benchmarks.nightly.mutants import VARIABLE, Mutant, count, mutant
from benchmarks.nightly.parts import Part

ROOT = Path(__file__).parents[2]
PACKAGES = {"securefed.defenses": ROOT / "defenses", "securefed._runtime": ROOT / "securefed" / "_runtime"}
COUNT, QUICK_COUNT = 100, 3
NEAREST = 4
"""Files of tests that run on a mutant: those that name the module's own words most often."""
PATIENCE = 600
"""Seconds after which a mutant counts as found: its tests pass in far less where nothing is mutated."""


def modules() -> dict[str, Path]:
    """Return the modules that are mutated, by dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[-1] != "__init__":
                found[".".join((package, *parts))] = path
    return found


def draw(number: int, seed: int) -> list[Mutant]:
    """Draw so many mutants, each place of all modules as likely as any other."""
    sources = {name: path.read_text() for name, path in modules().items()}
    places = [(name, place) for name, source in sources.items() for place in range(count(source))]
    drawn = random.Random(seed).sample(places, min(number, len(places)))  # noqa: S311
    return [mutant(name, sources[name], place) for name, place in drawn]


@cache
def nearest(module: str) -> tuple[str, ...]:
    """Return the files of tests that import the module, or else name most of what it defines."""
    source = modules()[module].read_text()
    words = set(re.findall(r"^(?:class|def|    def) ([A-Za-z]\w{3,})", source, re.M)) | {module.rpartition(".")[2]}
    pattern = re.compile(r"\b(?:" + "|".join(map(re.escape, sorted(words))) + r")\b")
    scores = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        score = len(set(pattern.findall(text))) + 100 * bool(re.search(rf"\b{re.escape(module)}\b", text))
        if score:
            scores[str(path.relative_to(ROOT))] = score
    return tuple(sorted(scores, key=lambda path: (-scores[path], path))[:NEAREST])


def tests_pass(paths: tuple[str, ...], changed: Mutant | None) -> bool:
    """Return whether the tests pass with this mutant, or with none."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "not exhaustive", "--hypothesis-profile", "quick",
        "-p", "no:cacheprovider", "-p", "benchmarks.nightly.mutants", *paths,
    ]  # fmt: skip
    chosen = {} if changed is None else {VARIABLE: f"{changed.module}:{changed.number}"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"} | chosen, capture_output=True, check=False,
            timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def run(quick: bool, seed: int, number: int | None = None) -> list[Part]:
    """Run the nearest tests on every mutant; the part fails where they fail without one."""
    began = time.monotonic()
    drawn = draw(number or (QUICK_COUNT if quick else COUNT), seed)
    survivors, untested, broken = [], [], []
    sound: dict[tuple[str, ...], bool] = {}
    for one in drawn:
        paths = nearest(one.module)
        about = f"`{one.module}`, line {one.line}: {one.words}"
        if not paths:
            untested.append(f"no test names it: {about}")
            continue
        if tests_pass(paths, one):
            survivors.append(f"survived: {about}")
        elif not sound.setdefault(paths, tests_pass(paths, None)):  # the control: unmutated, they pass
            broken.append(f"its tests fail without it, too: {about}")
    found = len(drawn) - len(survivors) - len(untested) - len(broken)
    figures = f"{found} of {len(drawn)} mutants found by the {NEAREST} nearest files of tests"
    return [Part("mutants", not broken, time.monotonic() - began, figures, tuple(survivors + untested + broken))]
