"""Write the page of licences: what each installed dependency says of itself, by extra."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LICENCE = "License :: OSI Approved :: "
_COPYLEFT = ("GPL", "GNU")


def pages() -> dict[str, str]:
    """Return the page `licences.md`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    lines = [
        "# Licences",
        "",
        "securefed is Apache-2.0. Its direct dependencies, as installed where this page was built, with the licence",
        "that each states itself. A name in bold is under a copyleft licence (GPL, LGPL): ask before you ship it.",
        "",
        "| part | dependency | version | licence |",
        "| --- | --- | --- | --- |",
    ]
    for group, requirements in groups.items():
        if group not in ("dev", "all"):
            lines += [_row(group, _name(one)) for one in requirements if not one.startswith("securefed")]
    return {"licences.md": "\n".join(lines) + "\n"}


def licence_of(name: str) -> str:
    """Return the licence that an installed distribution states, in one line; the empty text where it states none."""
    facts = metadata(name)
    classified = [
        line.removeprefix(_LICENCE) for line in facts.get_all("Classifier") or [] if line.startswith(_LICENCE)
    ]
    stated = (facts.get("License") or "").strip().partition("\n")[0]
    return facts.get("License-Expression") or "; ".join(classified) or (stated if len(stated) < 60 else "")


def _row(group: str, name: str) -> str:
    try:
        licence, version = licence_of(name), metadata(name)["Version"]
    except PackageNotFoundError:
        licence, version = "not installed here", ""
    shown = f"**{name}**" if any(word in licence for word in _COPYLEFT) else name
    return f"| {group} | {shown} | {version} | {licence} |"


def _name(requirement: str) -> str:
    found = re.match(r"[\w-]+", requirement)
    assert found is not None
    return found.group(0)
