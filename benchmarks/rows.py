"""Benchmark results: rows of ours against a peer, measured in one run, kept as JSON."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One figure. `ratio` is peer / ours for costs; `spread` is (lowest, highest) of `runs` runs of ours."""

    quantity: str
    setting: str
    ours: float
    unit: str
    runs: int
    spread: tuple[float, float]
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    target: str | None = None
    met: bool | None = None


def timed(call: Callable[[], object], runs: int = 5) -> list[float]:
    """Seconds on the wall of each of `runs` calls, after one that is not counted."""
    return _timed(call, runs, time.perf_counter)


def cpu(call: Callable[[], object], runs: int = 1) -> list[float]:
    """CPU seconds of all threads of each of `runs` calls, after one that is not counted."""
    return _timed(call, runs, time.process_time)


def _timed(call: Callable[[], object], runs: int, clock: Callable[[], float]) -> list[float]:
    out = []
    for _ in range(runs + 1):
        start = clock()
        call()
        out.append(clock() - start)
    return out[1:]


def clocked(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return the result of a call, and the CPU seconds that it took."""
    start = time.process_time()
    result = call(*arguments)
    return result, time.process_time() - start


def show(rows: Sequence[Row]) -> None:
    """Print rows as they stand."""
    for r in rows:
        beside = f"  {r.peer_name} {r.peer:.4g}" if r.peer is not None else ""
        beside += f"  x {r.ratio:.4g}" if r.ratio is not None else ""
        met = "" if r.met is None else f"  {r.target}: {'met' if r.met else 'MISSED'}"
        print(f"{r.quantity:44} {r.setting:56} {r.ours:10.4g} {r.unit:14}{beside}{met}", flush=True)


def run_parts(name: str, document: str, parts: Mapping[str, Callable[[], list[Row]]], arguments: Sequence[str]) -> None:
    """Measure the parts that the command line names, all by default; each keeps the rows of the others.

    Args:
        name: of the results.
        document: what `--help` says.
        parts: what measures each.
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default all: {', '.join(parts)}")
    wanted = parser.parse_args(arguments).parts or list(parts)
    if unknown := sorted(set(wanted) - set(parts)):
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(parts)}")
    for part in wanted:
        rows = parts[part]()
        show(rows)
        print(merge(name, rows), flush=True)


def row(quantity: str, setting: str, ours: Sequence[float], unit: str, **rest: object) -> Row:
    """A row from repeated measurements; `peer`, if given, gets its ratio to our median."""
    middle = median(ours)
    peer = rest.get("peer")
    ratio = peer / middle if isinstance(peer, float | int) and middle else None
    return Row(quantity, setting, middle, unit, len(ours), (min(ours), max(ours)), ratio=ratio, **rest)  # type: ignore[arg-type]


def merge(name: str, rows: Sequence[Row]) -> Path:
    """Write `results/NAME.json`, keeping the rows it has of other quantities and settings, in their place."""
    path = RESULTS / f"{name}.json"
    kept = {(r["quantity"], r["setting"]): Row(**r) for r in _stored(path)}
    return write(name, list((kept | {(r.quantity, r.setting): r for r in rows}).values()))


def _stored(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["rows"]) if path.exists() else []


def write(name: str, rows: Sequence[Row]) -> Path:
    """Write `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    machine = {"machine": platform.machine(), "python": platform.python_version()}
    path.write_text(json.dumps({"environment": machine, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
    return path
