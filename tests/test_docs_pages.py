"""The code of the site's pages runs as it is printed, in an empty folder, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n^```text\n(.*?)^```)?", flags=re.DOTALL | re.MULTILINE)
FOLDERS = ("", "papers", "tutorials", "how-to", "explanation", "reference")
TESTED_ELSEWHERE = {
    "how-to/audit-a-recorded-run.md",
    "tutorials/audit-your-training.md",
    "flower.md",
    "how-to/run-an-algorithm.md",
    "protect-your-loop.md",
    "statistics.md",
    "torch.md",
}
"""Pages whose code needs a network or parties around it; `test_docs_*`, `test_flower_docs` and `test_torch_docs`."""
SLOW = {"how-to/invert-a-gradient.md", "tutorials/first-audit.md", "tutorials/differential-privacy.md"}


def pages() -> list[str]:
    """The pages with code, by their path in `docs`."""
    found = [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]
    names = [str(page.relative_to(DOCS)) for page in found if _BLOCK.search(page.read_text())]
    return [name for name in names if name not in TESTED_ELSEWHERE]


def played(text: str) -> list[tuple[str, str]]:
    """Run the blocks of a page one after the other: what each printed, and what the page says that it prints."""
    names: dict[str, Any] = {"__name__": "page"}
    shown = []
    for code, expected in _BLOCK.findall(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # noqa: S102 - our own page
        shown.append((printed.getvalue(), expected))
    return shown


@pytest.mark.parametrize(
    "page", [pytest.param(name, marks=[pytest.mark.exhaustive] if name in SLOW else []) for name in pages()]
)
def test_the_code_of_a_page_prints_what_the_page_says(page: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for printed, expected in played((DOCS / page).read_text()):
        assert printed == expected or not expected


def test_pages_with_code_were_found() -> None:
    assert {"index.md", "tutorials/protect-a-loop.md", "how-to/active-server.md", *SLOW} <= set(pages())
    assert all((DOCS / name).is_file() for name in TESTED_ELSEWHERE)


def test_a_wrong_output_or_a_missing_import_is_found() -> None:
    """The positive control."""
    ((printed, expected),) = played("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert (printed, expected) == ("2\n", "3\n")
    with pytest.raises(NameError):
        played("```python\nnp.zeros(3)\n```\n")
