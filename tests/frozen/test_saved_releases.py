"""Files of every kind that release 0.1 saved are read, or refused by name with what to do.

`files/0.1.zip` holds those of the last state of 0.1 and `files/0.1-first.zip` those of an earlier one, made by
`save_files.py` under the package of that time. A later release lists here what it no longer reads.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

import pytest

from tests.frozen.saved_kinds import KINDS, outcome

FILES = Path(__file__).parent / "files"
VERSION = (
    r"StorageError: the state of client 0 has version 3, and this release reads version \d+; finish the run with the "
    "release that began it, or delete the file to enrol the client anew"
)
OTHER_TERMS = "ConfigError: .* holds the state of a run under other terms .*; give SecureStrategy the same settings"
REFUSED: dict[str, dict[str, str]] = {
    "0.1": {},
    "0.1-first": {
        "a client's state": VERSION,
        "a client's state beside a ledger": VERSION,
        "a client's sealed state": VERSION,
        "the states and folder of `securefed party`": "SecureFedError: LedgerLost: .*`securefed ledger create`",
        "the folders of `serve` and `client_app`": "ConfigError: party 0 does not take part: LedgerLost; its own log",
        "the folder of `SecureStrategy`": OTHER_TERMS,
        "the folder of `secure_mod`": OTHER_TERMS,
    },
}
"""By release and kind, the refusal in place of the file's use."""


def test_every_archive_is_tested() -> None:
    assert {path.stem for path in FILES.glob("*.zip")} == set(REFUSED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("release", REFUSED)
def test_a_file_is_read_or_refused_by_name(release: str, kind: str, tmp_path: Path) -> None:
    shutil.unpack_archive(FILES / f"{release}.zip", tmp_path)
    wanted = REFUSED[release].get(kind, "read$")
    assert re.match(wanted, found := outcome(KINDS[kind], tmp_path)), found


def test_a_site_s_log_says_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the server is told a name alone."""
    shutil.unpack_archive(FILES / "0.1-first.zip", tmp_path)
    with caplog.at_level(logging.ERROR):
        outcome(KINDS["the folders of `serve` and `client_app`"], tmp_path)
    assert "LedgerLost: there is no ledger" in caplog.text and "`securefed ledger create`" in caplog.text
