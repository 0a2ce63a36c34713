"""The tree in CONTRIBUTING.md is that of the folders, and every folder says in a line what it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import house


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that can reach each other."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen, ahead = set(), [module]
        while ahead:
            for other in graph.get(ahead.pop(), set()) - seen:
                seen.add(other)
                ahead.append(other)
        reached[module] = seen
    groups = {tuple(sorted({m, *(o for o in reached[m] if m in reached.get(o, set()))})) for m in graph}
    return sorted(list(group) for group in groups if len(group) > 1)


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


def test_no_public_class_name_stands_twice() -> None:
    names: dict[str, list[str]] = {}
    for folder in house.folders():
        for path in folder.glob("*.py"):
            for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), flags=re.MULTILINE):
                names.setdefault(name, []).append(str(path.relative_to(house.ROOT)))
    assert {name: places for name, places in names.items() if len(places) > 1} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(house.module_graph()) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
