"""Feed mutated requests, replies, terms, states, ledgers and results to their readers, and look for three faults.

- An error that is none of the package's named ones, or a process that dies.
- An input that takes longer than `CPU + CPU_PER_BYTE n` seconds of processor time, for n bytes.
- An input that takes more than `MEMORY + MEMORY_PER_BYTE n` bytes of memory at its peak, as Python's allocator counts.

A finding is stored as a file, with everything that its reader needs; these lines play it again:

    python -m benchmarks.nightly.fuzz --replay benchmarks/results/findings/NAME.safetensors

The fuzzers run in a process of their own, whose memory is limited, so that an input that ends it is found, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import random
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np

from benchmarks.nightly.fuzz_inputs import mutate
from benchmarks.nightly.fuzz_targets import Target, targets
from benchmarks.nightly.parts import Part
from securefed._tensors import decode, encode
from securefed.errors import SecureFedError

ROOT = Path(__file__).parents[2]
FINDINGS = ROOT / "benchmarks" / "results" / "findings"
HOUR, MINUTE = 3600.0, 60.0
CPU: Final = 1.0
"""Seconds of processor time that any input may take. An honest one takes up to 6 ms; with allocations traced, three
times that."""
CPU_PER_BYTE: Final = 20e-6
MEMORY: Final = 16 * 2**20
"""Bytes that any input may take at its peak. An honest one takes up to 0.3 MB; terms for 2^20 clients take 8.4 MB."""
MEMORY_PER_BYTE: Final = 64
_HANGS: Final = 30.0
"""Seconds of processor time after which an input is given up."""
_ADDRESSES: Final = 3 * 2**30
"""Bytes by which the process may grow."""
_TRACED: Final = 0.25
"""Share of the inputs whose memory is counted."""
_MOST: Final = 20
"""Findings after which a run ends."""


class TooLong(BaseException):
    """The input took too long; no reader catches it."""


def play(target: Target, data: bytes, *, traced: bool = True) -> str | None:
    """Feed one input; return what is wrong, or `None`.

    Args:
        target: the reader, which is set up anew.
        data: the input.
        traced: whether memory is counted, which takes three times as long.
    """
    reader = target.reader
    if traced:
        tracemalloc.start()
    began = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANGS)
    fault = None
    try:
        reader(data)
    except SecureFedError:
        pass
    except TooLong:
        fault = f"more than {_HANGS:g} s of processor time"
    except BaseException as error:
        fault = f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if fault is None and seconds > (most := CPU + CPU_PER_BYTE * len(data)):
        fault = f"{seconds:.2f} s of processor time for {len(data)} bytes; {most:.2f} are allowed"
    if fault is None and peak > (most := MEMORY + MEMORY_PER_BYTE * len(data)):
        fault = f"{peak} bytes of memory for {len(data)} bytes; {most:.0f} are allowed"
    return fault


def store(folder: Path, target: Target, data: bytes, fault: str, seed: int) -> Path:
    """Write a finding with all that its reader needs; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"input": data} | {f"context/{name}": value for name, value in target.context.items()}
    arrays = {name: np.frombuffer(value, np.uint8) for name, value in contents.items()}
    path = folder / f"{target.kind.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:12]}.safetensors"
    path.write_bytes(encode(arrays, {"target": target.name, "fault": fault, "seed": str(seed)}))
    return path


def load(path: Path) -> tuple[Target, bytes, str]:
    """Read a finding: its target, the input, and what was wrong."""
    arrays, facts = decode(path.read_bytes())
    contents = {name: value.tobytes() for name, value in arrays.items()}
    context = {name[8:]: value for name, value in contents.items() if name.startswith("context/")}
    return Target(facts["target"], context), contents["input"], facts["fault"]


def search(seconds: float, seed: int, folder: Path, most: float = math.inf) -> dict[str, Any]:
    """Feed mutated inputs to the targets.

    Args:
        seconds: for how long.
        seed: draws the mutations; the secrets of the inputs are fresh in every run.
        folder: of the findings.
        most: inputs after which it ends.

    Returns:
        How many inputs were fed to each kind of reader, and what was found, one of a kind.
    """
    rng, kinds = random.Random(seed), dict[str, list[Target]]()  # noqa: S311 - reproducible, and no secret
    for target in targets():
        kinds.setdefault(target.kind, []).append(target)
    fed: Counter[str] = Counter()
    files: dict[str, str] = {}
    end, current = time.monotonic() + seconds, folder / "current"
    folder.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < end and len(files) < _MOST and sum(fed.values()) < most:
        kind = rng.choice(sorted(kinds))
        target = rng.choice(kinds[kind])
        data = mutate(rng.choice(target.inputs), target.inputs, rng)
        current.write_bytes(f"{target.name}\n".encode() + data)  # left behind where the process dies
        fed[kind] += 1
        if (fault := play(target, data, traced=rng.random() < _TRACED)) is not None:
            files.setdefault(
                f"{kind}: {fault[:60]}", f"{store(folder, target, data, fault, seed)}: {target.name}: {fault}"
            )
    current.unlink(missing_ok=True)
    return {"fed": dict(fed), "findings": list(files.values())}


def run(quick: bool, seed: int, seconds: float | None = None) -> list[Part]:
    """Search in a process of its own: an hour, or a minute; the part fails where anything was found."""
    began, seconds = time.monotonic(), seconds or (MINUTE if quick else HOUR)
    command = [sys.executable, "-m", "benchmarks.nightly.fuzz", "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * seconds + 600)
    try:
        counted = json.loads(done.stdout.splitlines()[-1])
        fed, notes = counted["fed"], tuple(counted["findings"])
    except (IndexError, ValueError, KeyError):
        last = f"the input that it was given last is in {FINDINGS / 'current'}"
        fed, notes = {}, (f"the process ended with {done.returncode}; {last}: {done.stderr[-500:]}",)
    figures = f"{sum(fed.values())} inputs: " + ", ".join(f"{count} of {name}" for name, count in sorted(fed.items()))
    return [Part("fuzzers", not notes and bool(fed), time.monotonic() - began, figures, notes)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, or play a finding again; the exit code is 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=MINUTE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FINDINGS, help="folder of the findings")
    parser.add_argument("--replay", type=Path, help="a finding that is played again")
    given = parser.parse_args(arguments)
    _limit()
    if given.replay is not None:
        target, data, before = load(given.replay)
        fault = play(target, data)
        print(f"{target.name}: {fault or 'nothing is wrong now'} (was: {before})")
        return int(fault is not None)
    counted = search(given.seconds, given.seed, given.out)
    print(json.dumps(counted))
    return int(bool(counted["findings"]))


def _limit() -> None:
    """Limit the growth of this process, and interrupt what takes too long."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESSES, resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TooLong

    signal.signal(signal.SIGVTALRM, interrupt)


if __name__ == "__main__":
    sys.exit(main())
