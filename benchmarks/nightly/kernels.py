"""Tests of numerics under two OpenBLAS kernels, with one and with two threads."""

from __future__ import annotations

import os
import re
import subprocess
import time

from benchmarks.nightly.parts import Part
from tests.other_kernel import ROOT, command, environment, kernels, takes_effect

THREADS = (1, 2)
WORKERS = str((os.cpu_count() or 1) + 1)
"""One process more than cores, as `make test` has: some tests wait for processes of their own."""


def run(quick: bool, seed: int) -> list[Part]:
    """Run the folders under each kernel with each number of threads; a quick night leaves exhaustive tests out.

    Args:
        quick: whether to leave them out.
        seed: not used: these tests draw nothing.
    """
    chosen = ["-m", "not exhaustive", "--hypothesis-profile", "quick"] if quick else []
    arguments = ["-q", "-n", WORKERS, "--dist", "worksteal", *chosen]
    out = []
    for kernel in kernels():
        for threads in THREADS:
            name, began = f"kernel {kernel}, threads: {threads}", time.monotonic()
            if not takes_effect(kernel):
                out.append(Part(name, False, 0.0, "not run", ("NumPy's OpenBLAS does not take this kernel here",)))
                continue
            done = subprocess.run(
                command(arguments), cwd=ROOT, env=environment(kernel, threads), capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            lines = done.stdout.splitlines()
            failed = tuple(line for line in lines if re.match("(FAILED|ERROR) ", line))
            out.append(Part(name, done.returncode == 0, time.monotonic() - began, _counted(lines), failed))
    return out


def _counted(lines: list[str]) -> str:
    """Return pytest's last line with counts, or what stands in its place."""
    return next((line.strip("= ") for line in reversed(lines) if " in " in line), "no count of tests")
