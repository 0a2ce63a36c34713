"""The audit from the shell, as a user starts it: seconds, and what it finds. `python -m benchmarks audits`.

A process of its own for each, with all cores. What is found hangs on draws of the system where noise is added.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, row, write
from securefed._auditing.engine.results import CLIENT

SETTINGS = {
    "default": ((), 2, 60),
    "all algorithms": (("--algorithms", "all"), 1, 1200),
}
"""Arguments, runs, and the seconds that it may take."""
SEES = {
    "in the clear, the server reads one client's data": ("plain", "server"),
    "under secure aggregation, the server reads one client's data in sums": ("secure_aggregation", "sum only"),
    "under distributed noise, the server reads one client's data in sums": ("ddp", "sum only"),
    "under central noise, the server reads one client's data in sums": ("dp", "sum only"),
    "under central noise, all others read one client's data": ("dp", "released"),
}


def main() -> None:
    """Measure and write `results/audits.json`."""
    out: list[Row] = []
    for name, (arguments, runs, most) in SETTINGS.items():
        done = [audited(arguments) for _ in range(runs)]
        seconds, reports = [took for took, _ in done], [report for _, report in done]
        cells = [report["cells"] for report in reports]
        known = len({cell["algorithm"] for cell in cells[0]})
        settings = reports[0]["settings"]["audit"]
        setting = f"{name} ({known}), digits, {settings['clients']} clients, {settings['seeds']} seeds"
        out.append(row("the whole audit", setting, seconds, "s", target=f"<= {most} s", met=max(seconds) <= most))
        for said, place in SEES.items():
            if all(any((cell["defense"], cell["view"]) == place for cell in own) for own in cells):
                out.append(row(said, setting, [exposed(own, *place) for own in cells], f"of {known}"))
        print(f"{setting}: {min(seconds):.1f} to {max(seconds):.1f} s")
    print(write("audits", out))


def audited(arguments: Iterable[str]) -> tuple[float, dict[str, Any]]:
    """Wall seconds of `securefed audit`, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "securefed", "audit", "--out", folder, *arguments]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took = time.perf_counter() - start
        return took, json.loads((Path(folder) / "audit.json").read_text())


def exposed(cells: Iterable[dict[str, Any]], defense: str, view: str) -> int:
    """Algorithms of which one client's data count as exposed in a view."""
    here = [c for c in cells if (c["defense"], c["view"]) == (defense, view) and c["secret"] == CLIENT]
    return len({cell["algorithm"] for cell in here if cell["verdict"] == "exposed"})


if __name__ == "__main__":
    main()
