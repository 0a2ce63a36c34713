"""The tree in CONTRIBUTING.md is that of the folders, and every folder says in a line what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import house


def test_the_tree_on_the_page_is_the_one_of_the_folders() -> None:
    assert house.PAGE.read_text() == house.page(), "run `python -m tests.house`"


@pytest.mark.parametrize("folder", list(house.folders()), ids=lambda folder: str(folder.relative_to(house.ROOT)))
def test_every_folder_says_what_it_holds(folder: Path) -> None:
    line = house.description(folder)
    assert 20 <= len(line) <= 120
    assert line.endswith(".")


def test_the_folders_beside_the_package_exist() -> None:
    assert all((house.ROOT / folder).is_dir() for folder in house.OTHERS)


def test_a_stale_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "CONTRIBUTING.md"
    stale.write_text(house.PAGE.read_text().replace("federation", "federatoin", 1))
    monkeypatch.setattr(house, "PAGE", stale)
    assert stale.read_text() != house.page()
