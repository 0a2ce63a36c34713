"""The example of docs/attacks-active.md runs, and every active attack stands on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from securefed.attacks import active_attacks

PAGE = (Path(__file__).parents[1] / "docs" / "attacks-active.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_runs_and_reads_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) == 1
    exec(BLOCKS[0], {})  # noqa: S102 - our own page
    assert "(8, 20)" in capsys.readouterr().out


def test_every_active_attack_stands_on_the_page() -> None:
    assert all(f"`{entry.name}`" in PAGE for entry in active_attacks)
