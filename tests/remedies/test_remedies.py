"""Follow the remedy of each error on the input that raised it: it must work.

A remedy is taken from the message where that can be done: the expression is evaluated, the option given, the command
run. A test reads the sources for errors with remedies, and fails for one that no table of `tests/remedies` holds.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from securefed.errors import SecureFedError
from tests.remedies.followed import Followed
from tests.remedies.sites import sites

AREAS = [import_module(f"tests.remedies.{path.stem}") for path in sorted(Path(__file__).parent.glob("of_*.py"))]
TABLE: dict[str, Followed] = {name: item for area in AREAS for name, item in area.TABLE.items()}


@pytest.mark.parametrize("name", TABLE)
def test_the_remedy_of_an_error_works_on_what_raised_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    item = TABLE[name]
    with pytest.raises((SecureFedError, AssertionError)) as raised:
        item.raises(tmp_path)
    message = str(raised.value)
    assert item.piece in message
    outcome = item.remedy(message, tmp_path)
    assert not isinstance(outcome, bool | np.bool_) or outcome


def test_names_of_entries_are_given_once() -> None:
    assert len(TABLE) == sum(len(area.TABLE) for area in AREAS)


def test_every_error_with_a_remedy_is_followed() -> None:
    found = list(sites())
    for item in TABLE.values():
        assert any(site.file == item.file and item.piece in site.text for site in found), item.piece
    new = [
        f"{site.file}:{site.line}"
        for site in found
        if not any(item.file == site.file and item.piece in site.text for item in TABLE.values())
    ]
    assert not new, "add an entry to a table of tests/remedies for these errors, or mend their words"
