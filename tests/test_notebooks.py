"""The notebooks hide their solutions until asked, and the copies for students hold none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docs.generators import four_observers
from docs.generators.student_copies import SOLUTION, student_copy, write_all

FILES = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def is_solution(cell: dict[str, Any]) -> bool:
    return SOLUTION in cell["metadata"].get("tags", [])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_solutions_are_hidden_with_their_outputs_and_stand_behind_the_exercises(path: Path) -> None:
    cells = read(path)["cells"]
    start = next(i for i, cell in enumerate(cells) if "## Exercises" in "".join(cell["source"]))
    code = [cell for cell in cells[start:] if cell["cell_type"] == "code"]
    assert code and all(map(is_solution, code))
    assert not any(map(is_solution, cells[:start]))
    for cell in code:
        assert "hide-cell" in cell["metadata"]["tags"]
        assert cell["metadata"]["jupyter"] == {"outputs_hidden": True, "source_hidden": True}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_first_cell_of_code_defines_no_helpers_of_pages(path: Path) -> None:
    first = next(cell for cell in read(path)["cells"] if cell["cell_type"] == "code")
    source = "".join(first["source"])
    assert len(source.splitlines()) <= 35
    assert source.count("\ndef ") <= 1


def test_a_copy_for_students_holds_the_exercises_and_no_solution(tmp_path: Path) -> None:
    made = write_all(tmp_path)
    assert [path.name for path in made] == [path.name for path in FILES]
    for path, source in zip(made, FILES, strict=True):
        text, whole = path.read_text(encoding="utf-8"), read(source)
        assert "<details>" not in text and SOLUTION + '"' not in text
        assert "Exercises" in text and text.count("# Your solution") == sum(map(is_solution, whole["cells"])) > 0
        assert len(read(path)["cells"]) == len(whole["cells"])
    whole = read(FILES[0])
    assert any(map(is_solution, whole["cells"]))  # the notebook itself is as it was
    assert student_copy(whole)["cells"][1] == whole["cells"][1]


def test_the_picture_for_a_talk_shows_what_its_titles_say() -> None:
    """Exact in the clear; the mean of eight in the sum, of two where six collude; static under noise."""
    rows, found = four_observers.pictures(), four_observers.seen()
    clear, summed, colluding, noised = (found[title] for title in four_observers.TITLES)
    np.testing.assert_allclose(clear, rows[0], atol=1e-12)
    np.testing.assert_allclose(summed, rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(colluding, rows[:2].mean(axis=0), atol=1e-6)
    # 784 pixels of independent noise: a correlation has a standard error of 0.036; the sum without noise has 0.8
    assert abs(np.corrcoef(noised, rows[0])[0, 1]) < 6 * 0.036 < np.corrcoef(summed, rows[0])[0, 1]
    with Image.open(four_observers.PLACE) as kept:
        assert four_observers.draw(found).size == kept.size
