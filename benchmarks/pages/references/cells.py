"""Results by measurement and seed, kept as they come, so that a run can be cut off and go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.pages.references.figures import Cell, Measurement
from benchmarks.rows import RESULTS

STORE = RESULTS / "cells" / "attacks_reference.json"
Cells = dict[str, dict[str, Cell]]


def read(store: Path = STORE) -> Cells:
    """What there is."""
    return json.loads(store.read_text()) if store.exists() else {}


def measure(
    measurements: Sequence[Measurement],
    *,
    fresh: bool = False,
    until: float = float("inf"),
    store: Path = STORE,
    progress: Callable[[str], None] = print,
) -> None:
    """Run the seeds that are missing, with `fresh` all, and keep each at once; nothing is begun after `until`."""
    for measurement in measurements:
        known = {} if fresh else dict(read(store).get(measurement.name, {}))
        for seed in range(measurement.seeds):
            if str(seed) in known:
                continue
            if time.time() > until:
                return
            start = time.process_time()
            cell = dict(measurement.run(seed))
            cell["whole seconds"] = round(time.process_time() - start, 3)
            known[str(seed)] = cell
            _keep(measurement.name, known, store)
            progress(f"{measurement.name} {seed}: {_shown(cell)}")


def values(cells: Cells, measurement: Measurement, key: str) -> list[float]:
    """One value for each seed that there is, in the order of seeds."""
    own = cells.get(measurement.name, {})
    return [float(own[seed][key]) for seed in sorted(own, key=int) if key in own[seed]]


def words(cells: Cells, measurement: Measurement, key: str) -> list[str]:
    """The different texts under a key, in the order of seeds."""
    own = cells.get(measurement.name, {})
    return list(dict.fromkeys(str(own[seed][key]) for seed in sorted(own, key=int) if key in own[seed]))


def _keep(name: str, known: dict[str, Cell], store: Path) -> None:
    content = read(store) | {name: known}
    store.parent.mkdir(exist_ok=True, parents=True)
    store.write_text(json.dumps(dict(sorted(content.items())), indent=0) + "\n")


def _shown(cell: Cell) -> str:
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in cell.items())
