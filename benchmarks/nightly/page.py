"""Keep nights as JSON, and make the tables of `docs/nightly.md` from them."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.nightly.parts import Part

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "nightly.json"
KEPT = 6
"""Nights that the page shows, newest first."""


def keep(parts: Sequence[Part], seed: int, quick: bool) -> None:
    """Add a night to the results, in front of the others."""
    night = {
        "seed": seed,
        "quick": quick,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "parts": [asdict(part) for part in parts],
    }
    nights = [night, *(json.loads(RESULTS.read_text()) if RESULTS.exists() else [])][:KEPT]
    RESULTS.write_text(json.dumps(nights, indent=1) + "\n")


def text(nights: Sequence[dict[str, Any]]) -> str:
    """Return a section for each night."""
    out = []
    for night in nights:
        passed = all(part["passed"] for part in night["parts"])
        length = "quick" if night["quick"] else "full"
        out.append(f"## {night['date']}, seed {night['seed']}, {length}: {'passed' if passed else 'failed'}")
        rows = ["| part | passed | counted | seconds |", "| --- | --- | --- | ---: |"]
        for part in night["parts"]:
            passed_words = "yes" if part["passed"] else "no"
            rows.append(f"| {part['name']} | {passed_words} | {_cell(part['figures'])} | {part['seconds']:.0f} |")
        out.append("\n".join(rows))
        notes = [f"- {part['name']}: {_cell(note)}" for part in night["parts"] for note in part["notes"]]
        if notes:
            out.append("\n".join(notes))
    return "\n\n".join(out) + "\n"


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")
