"""The fuzzers read honest inputs, find planted faults of each kind, and store what reproduces them."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.nightly import fuzz, fuzz_targets
from benchmarks.nightly.fuzz_inputs import mutate
from benchmarks.nightly.fuzz_targets import READERS, Target, targets
from securefed.errors import SecureFedError
from securefed.parties import SumTerms


@pytest.fixture(scope="module")
def found() -> list[Target]:
    return targets()


def test_every_reader_has_honest_inputs_and_reads_them(found: list[Target]) -> None:
    assert {target.kind for target in found} == set(READERS)
    for target in found:
        for data in target.inputs:
            target.reader(data)


def test_mutations_follow_the_seed_and_reach_the_values_of_terms(found: list[Target]) -> None:
    terms = next(target for target in found if target.kind == "terms")
    first, again = ([mutate(terms.inputs[0], terms.inputs, random.Random(i)) for i in range(300)] for _ in range(2))  # noqa: S311
    assert first == again
    read = 0
    for data in first:
        try:
            read += SumTerms.from_bytes(data).digest != SumTerms.from_bytes(terms.inputs[0]).digest
        except SecureFedError:
            continue
    assert read > 10  # other terms, and not only refused bytes


def test_integers_beyond_all_floats_are_mutated_too() -> None:
    data = json.dumps({"clients": 10**400}).encode()
    seen = {mutate(data, [data], random.Random(i)) for i in range(400)}  # noqa: S311
    assert json.dumps({"clients": 10**400 // 2}).encode() in seen


def test_a_short_search_finds_nothing(tmp_path: Path) -> None:
    counted = fuzz.search(math.inf, 3, tmp_path, 150)
    assert counted["findings"] == [] and sum(counted["fed"].values()) == 150
    assert not list(tmp_path.iterdir())


def planted(fault: Callable[[], Any]) -> Any:
    def reader(context: Any) -> Any:
        def read(data: bytes) -> None:
            SumTerms.from_bytes(data)
            fault()

        return read

    return reader


def unnamed() -> None:
    raise KeyError("planted")


FAULTS: dict[str, Any] = {
    "KeyError: 'planted'": unnamed,
    "bytes of memory for": lambda: np.ones(2**22),
    "s of processor time for": lambda: None,
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_planted_fault_is_found_stored_and_played_again(
    words: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setitem(fuzz_targets.READERS, "terms", planted(FAULTS[words]))
    monkeypatch.setattr(fuzz, "targets", lambda: [Target("terms:planted", {}, [AGREED])])
    monkeypatch.setattr(fuzz, "_TRACED", 1.0)
    monkeypatch.setattr(fuzz, "_limit", lambda: None)
    if "processor" in words:
        monkeypatch.setattr(fuzz.time, "process_time", map(float, itertools.count(0, 10)).__next__)
    counted = fuzz.search(math.inf, 3, tmp_path, 40)
    assert any(words in finding for finding in counted["findings"])
    [file, *_] = sorted(tmp_path.glob("terms-*.safetensors"))
    assert fuzz.main(["--replay", str(file)]) == 1
    assert words in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.setattr(fuzz, "_limit", lambda: None)
    assert fuzz.main(["--replay", str(file)]) == 0
    assert "nothing is wrong now (was: " in capsys.readouterr().out


AGREED = SumTerms.like({"w": np.zeros(3)}, clients=3, defense=None).to_bytes()


@pytest.mark.parametrize(
    ("printed", "passed"),
    [
        (json.dumps({"fed": {"terms": 5}, "findings": []}), True),
        (json.dumps({"fed": {"terms": 5}, "findings": ["terms-1: KeyError"]}), False),
        (json.dumps({"fed": {}, "findings": []}), False),
        ("", False),
    ],
)
def test_a_part_passes_where_inputs_were_fed_and_nothing_was_found(
    printed: str, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.CompletedProcess([], -9, printed, "killed")
    monkeypatch.setattr(fuzz.subprocess, "run", lambda *_, **__: ended)
    [part] = fuzz.run(True, 1)
    assert part.passed is passed
    assert bool(part.notes) is (not printed or "KeyError" in printed)
