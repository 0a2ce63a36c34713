"""Make copies of the notebooks for students: exercises without their solutions, and a cell for one's own.

`make student-notebooks` writes them into `build/student`. In a notebook a cell with the tag `solution` is one; in
Markdown a solution stands between `<details>` and `</details>`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOLUTION = "solution"
_FOLDED = re.compile(r"\n*<details>.*?</details>\n*", re.DOTALL)
_OWN = "# Your solution\n"


def student_copy(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook without its solutions; each becomes an empty cell, and other cells keep their outputs."""
    cells = []
    for cell in notebook["cells"]:
        if SOLUTION in cell["metadata"].get("tags", []):
            kept = {**cell, "metadata": {}, "source": [_OWN]}
            cells.append(kept | {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else kept)
            continue
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and "<details>" in text:
            cell = {**cell, "source": _FOLDED.sub("\n\n", text).strip().splitlines(keepends=True)}  # noqa: PLW2901
        cells.append(cell)
    return {**notebook, "cells": cells}


def text_of(path: Path) -> str:
    """Return the text of the copy of a notebook's file."""
    copy = student_copy(json.loads(path.read_text(encoding="utf-8")))
    return json.dumps(copy, indent=1, ensure_ascii=False) + "\n"


def write_all(folder: Path) -> list[Path]:
    """Write a copy of each notebook into a folder, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        made.append(folder / path.name)
        made[-1].write_text(text_of(path), encoding="utf-8")
    return made


if __name__ == "__main__":
    for file in write_all(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "student"):
        sys.stdout.write(f"{file}\n")
