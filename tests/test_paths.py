"""Every public function that takes a path takes it as text as well as a `pathlib.Path`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from securefed import Seal, audit
from securefed.defenses import Identities, PinnedIdentities
from securefed.errors import StorageError
from tests.test_exports import PINNED

SMALL = {"algorithms": ["ssi"], "defenses": ["plain"], "attacks": ["gram/power"], "clients": 4, "workers": 1}


def annotations(thing: Any) -> Iterator[tuple[str, str]]:
    """The annotations of a public function, or of a class's fields and public methods, by name."""
    functions = [thing] if inspect.isfunction(thing) else []
    if inspect.isclass(thing):
        yield from getattr(thing, "__annotations__", {}).items()
        members = (getattr(thing, name) for name in dir(thing) if name == "__init__" or not name.startswith("_"))
        functions += [function for function in members if inspect.isroutine(function)]
    for function in functions:
        yield from getattr(function, "__annotations__", {}).items()


def test_no_public_function_insists_on_a_path_object() -> None:
    found = [
        (package, name, argument, str(annotation))
        for package, names in PINNED.items()
        for name in names
        for argument, annotation in annotations(getattr(import_module(package), name))
        if "Path" in str(annotation) and argument != "return"
    ]
    assert len(found) > 15
    assert [one for one in found if "str" not in one[-1]] == []


@pytest.mark.parametrize("kind", [str, Path])
def test_a_report_is_saved_and_an_audit_kept_in_a_folder_given_as_text(tmp_path: Path, kind: type) -> None:
    report = audit(**SMALL, seeds=1, rounds=2, keep=kind(tmp_path / "unfinished"))
    report.save(kind(tmp_path / "new" / "report"))
    assert sorted(os.listdir(tmp_path / "new" / "report")) == ["audit.html", "audit.json"]  # noqa: PTH208
    assert not (tmp_path / "unfinished").exists()


@pytest.mark.parametrize("kind", [str, Path])
def test_a_seal_and_pinned_identities_take_text(tmp_path: Path, kind: type) -> None:
    seal = Seal(bytes(range(32)), kind(tmp_path / "anchor"))
    pinned = PinnedIdentities(kind(tmp_path / "pinned"), seal.for_file("pinned"))
    public = Identities.generate(2).public
    assert pinned.pin(public).first_use == pinned.pin(public).first_use == {0, 1}
    assert (tmp_path / "anchor-pinned").exists()
    (tmp_path / "pinned").unlink()
    with pytest.raises(StorageError, match="pinned is gone, and its anchor"):
        pinned.pin(public)
