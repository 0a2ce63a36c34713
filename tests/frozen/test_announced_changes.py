"""The names that the release policy announces to change in 0.2 are public, and the changelog states the versions."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from securefed._auditing.engine.audit_result import FORMAT as REPORT
from securefed._messages import PROTOCOL_VERSION
from securefed._persistence import container, frozen, sealing
from securefed.parties import _terms
from tests.test_exports import PINNED

PAGE = Path(__file__).parents[2] / "docs" / "release-policy.md"
TABLE = PAGE.read_text().partition("## Names that may change or go in 0.2")[2].partition("\n## ")[0]
ROWS = [row.split("|")[1:-1] for row in TABLE.splitlines() if row.startswith("| `securefed.")]


VERSIONS = {
    "container of transcripts, ledgers, checkpoints and states": container.VERSION,
    "a frozen state of any party, within its container": frozen.VERSION,
    "sealed files": sealing.VERSION,
    "`SumTerms`": _terms._FORMAT,
    "messages between parties, over any transport": PROTOCOL_VERSION,
    "`audit.json`": REPORT,
}


def test_there_are_rows_and_each_says_what_why_and_what_instead() -> None:
    assert len(ROWS) > 20
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in ROWS)


@pytest.mark.parametrize("name", [row[0].strip().strip("`") for row in ROWS])
def test_an_announced_name_is_public(name: str) -> None:
    package = max((package for package in PINNED if name.startswith(f"{package}.")), key=len)
    first, *rest = name.removeprefix(f"{package}.").split(".")
    assert first in PINNED[package]
    found: Any = getattr(import_module(package), first)
    for part in rest:
        assert hasattr(found, part) or part in found.__dataclass_fields__


def test_names_to_write_instead_are_public() -> None:
    """Of the cells on what to write instead, each name in backticks with a capital letter."""
    public = {name for names in PINNED.values() for name in names}
    for row in ROWS:
        for name in re.findall(r"`([A-Z]\w+)", row[3]):
            assert name in public, name


def test_the_changelog_states_the_version_of_every_file() -> None:
    table = (PAGE.parents[1] / "CHANGELOG.md").read_text().partition("| what | version written |")[2]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| ")][1 : 1 + len(VERSIONS)]
    assert {what.strip(): int(version) for what, version in rows} == VERSIONS
