"""Keep what a full audit found, for the site's table of which algorithm leaks what.

securefed audit --algorithms all --defenses plain,secure_aggregation,paillier,ddp,dp --out full
python -m benchmarks.pages.which_leaks full/audit.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS

KEPT = RESULTS / "which_leaks.json"


def main(audit: Path) -> None:
    """Write `results/which_leaks.json` from an audit's JSON."""
    report = json.loads(audit.read_text())
    settings = report["settings"]["audit"]
    kept = {
        "setting": {name: settings[name] for name in ("data", "clients", "seeds", "epsilon") if name in settings},
        "secrets": {name: one["secret"] for name, one in report["settings"].items() if name != "audit"},
        "cells": [_short(cell) for cell in gravest(report["cells"])],
    }
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def gravest(cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each algorithm, defence, view and owner of the data, the attack with the gravest verdict."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in cells:
        place = tuple(cell[part] for part in ("algorithm", "defense", "view", "secret"))
        if place not in found or _gravity(cell) > _gravity(found[place]):
            found[place] = cell
    return list(found.values())


def _gravity(cell: dict[str, Any]) -> tuple[int, float]:
    """Rank a cell as the report does (`selections.weight`): a leak, then silence that is known, then a failure."""
    if cell["verdict"] in ("exposed", "partial"):
        return 3, cell["leakage"]["mean"]
    if cell["verdict"] == "inconclusive":
        return 1, cell["leakage"]["mean"]
    return 0 if cell["runs"]["explained"] is None else 2, cell["leakage"]["mean"]


def _short(cell: dict[str, Any]) -> dict[str, Any]:
    names = ("algorithm", "defense", "view", "secret", "attack", "verdict")
    return {name: cell[name] for name in names} | {"leakage": round(cell["leakage"]["mean"], 3)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
