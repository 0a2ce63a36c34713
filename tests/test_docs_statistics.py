"""The examples of docs/statistics.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from securefed import statistics

PAGE = (Path(__file__).parents[1] / "docs" / "statistics.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, names)  # noqa: S102 - our own page
    rows = sum(len(site) for site in names["sites"])
    mean = sum(float(site.sum()) for site in names["sites"]) / rows
    assert names["found"].count == rows == 1450
    assert names["found"].value == pytest.approx(mean, abs=1e-9)
    assert capsys.readouterr().out.count(f"{mean:.6f}"[:6]) == 2  # in one process, and between sites


def test_the_page_names_every_statistic() -> None:
    for name in set(statistics.__all__) - {"Estimate", "Estimates", "Fitted", "Statistic"}:
        assert re.search(rf"`{name}[`(]", PAGE), name
