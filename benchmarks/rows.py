"""Benchmark results: rows of ours against a peer, measured in one run, kept as JSON."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
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
    """Seconds of each of `runs` calls, after one that is not counted."""
    call()
    out = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        out.append(time.perf_counter() - start)
    return out


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
