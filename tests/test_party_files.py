"""The files of `securefed party`: updates and means as tables and arrays, and the names of messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from securefed._commands.party_files import MessageName, csv_bytes, read_arrays, requests_in
from securefed.errors import StorageError
from tests.test_party import here, party

__all__ = ["here"]  # a fixture


def test_terms_of_a_long_table_say_that_rows_are_summed_one_by_one(here: Path) -> None:
    Path("patients.csv").write_text("age,dose\n61,1\n48,2\n")
    said = "row by row: all sites need the same 2 rows"
    assert said in party("terms", "t", "--like", "patients.csv", "--clients", 3)
    Path("means.csv").write_text("age,dose\n61,1\n")
    assert "row by row" not in party("terms", "u", "--like", "means.csv", "--clients", 3)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"w,w\n1,2\n", "2 columns named 'w'"),
        ("a.csv", b"w,b\n1\n", "line 2 has 1 cell "),
        ("a.csv", b"w\n1,5\n", "line 2 has 2 cells"),
        ("a.csv", b"w\n\xff\n", "UTF-8"),
        ("a.csv", b"age,sex\n61,0\n48,f\n", "'sex' ('f'; 1 of 2 rows); an update is numbers"),
        ("a.npz", b"PK", "no .npz file"),
        ("a.npz", b"", "no .npz file"),
        ("a.safetensors", b"12345678", "no .safetensors file"),
    ],
)
def test_files_that_hold_no_update_are_refused(here: Path, name: str, content: bytes, words: str) -> None:
    Path(name).write_bytes(content)
    shown = party("terms", "t", "--like", name, "--clients", 3, code=2)
    assert words in shown
    assert name in shown


def test_a_table_of_one_line_holds_single_numbers(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text("patients,deaths\r\n120,3\r\n")
    assert read_arrays(tmp_path / "counts.csv") == {"patients": 120.0, "deaths": 3.0}
    assert csv_bytes({"patients": np.asarray(120.5), "deaths": np.asarray(3)}) == b"patients,deaths\n120.5,3\n"
    assert csv_bytes({"w": np.eye(2)}) == csv_bytes({"w": np.ones(2), "b": np.ones(3)}) == b""


def test_names_say_round_exchange_stage_and_party(tmp_path: Path) -> None:
    name = MessageName(2, 3, 4, "unmask", 1)
    (tmp_path / name.file("request")).touch()
    (tmp_path / MessageName(2, 3, 3, "upload", 0).file("request")).touch()
    (tmp_path / "round-9-notes.txt").touch()
    assert requests_in(tmp_path) == [name]
    assert name.place(5) == "Round 2, exchange 3, stage 4 of 5 (unmask)"
    with pytest.raises(StorageError):
        requests_in(tmp_path / "nowhere")
