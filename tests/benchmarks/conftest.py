"""A package of paper modules in a folder of the test."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ledger import sources
from tests.benchmarks.fakes import MODULE


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of paper modules that lies in `tmp_path / NAME`."""
    folder = tmp_path / f"papers_of_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "helper.py").write_text("FACTOR = 1.0\n")
    (folder / "faps_small.py").write_text(MODULE.format(package=folder.name))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield folder
    sources.tree.cache_clear()
