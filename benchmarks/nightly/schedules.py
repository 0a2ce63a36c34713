"""Play fresh schedules of dropouts and deviations, and draw fresh cases for the tests of hypothesis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.nightly.parts import Part

ROOT = Path(__file__).parents[2]
SCHEDULES = (
    "tests/defenses/secure_aggregation/test_secure_aggregation_schedules.py",
    "tests/defenses/one_message/test_one_message_schedules.py",
    "tests/contract/test_non_interference.py",
    "tests/parties/test_parties_non_interference.py",
)
CASES = ("tests/defenses", "tests/datasets", "tests/detection", "tests/algorithms", "tests/torch/test_masking.py",
         "tests/test_tensors.py", "tests/test_messages.py", "tests/test_state.py", "tests/test_statistics.py",
         "tests/test_federation_messages.py")  # fmt: skip
DOORS = ("tests/stats/test_doors.py",)
"""Every statistic through every door on five tables, of which `make test-all` takes one."""
QUICK_SCHEDULES = SCHEDULES[:1]
QUICK_CASES = ("tests/test_messages.py", "tests/test_state.py")
HOURS = 8


def play(name: str, paths: tuple[str, ...], profile: str, seed: int, *more: str) -> Part:
    """Run the tests of hypothesis in these files under a profile that draws fresh cases, from this seed.

    Args:
        name: of the part.
        paths: files and folders of tests.
        profile: `nightly` (10000 examples; batteries share them among their combinations) or `nightly-quick`.
        seed: of hypothesis; the same seed draws the same cases.
        more: further arguments of pytest.
    """
    command = [
        sys.executable, "-m", "pytest", "-n", "0", "-m", "hypothesis", "--hypothesis-profile", profile,
        f"--hypothesis-seed={seed}", "-p", "no:cacheprovider", *more, *paths,
    ]  # fmt: skip
    began = time.monotonic()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=HOURS * 3600
    )
    lines = done.stdout.strip().splitlines()
    counted = re.search(r"(\d+) passed", done.stdout)
    passed = done.returncode == 0 and counted is not None  # no test at all is no success
    notes = () if passed else tuple(line for line in lines[-40:] if line.strip())
    figures = f"{counted[1] if counted else 0} tests passed under profile {profile}"
    return Part(name, passed, time.monotonic() - began, figures, notes)


def run(quick: bool, seed: int) -> list[Part]:
    """Play the batteries' schedules, draw cases for the other tests of hypothesis, and take statistics to all doors."""
    profile = "nightly-quick" if quick else "nightly"
    ignored = [f"--ignore={path}" for path in SCHEDULES]
    return [
        play("schedules of dropouts and deviations", QUICK_SCHEDULES if quick else SCHEDULES, profile, seed),
        play("fresh cases of hypothesis", QUICK_CASES if quick else CASES, profile, seed, *ignored),
        *([] if quick else [play("statistics at every door", DOORS, profile, seed, "-m", "nightly")]),
    ]
