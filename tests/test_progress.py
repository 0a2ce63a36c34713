"""Long commands say how far they are: a bar on a terminal, lines in a file."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from securefed._commands import progress as module
from securefed._commands.progress import progress


def play(monkeypatch: Any, *, terminal: bool, silent: bool = False) -> str:
    """Finish 1, 2 and 4 of 8 parts after 10, 20 and 40 seconds, and return what was shown."""
    clock = iter([0.0, 10.0, 20.0, 40.0])
    if not terminal:
        monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress("audit", console, silent=silent) as step:
        for done in (1, 2, 4):
            step(done, 8, f"part [{done}]")
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_file_gets_a_line_now_and_then_with_the_time_left(monkeypatch: Any) -> None:
    assert play(monkeypatch, terminal=False) == (
        "audit: 2 of 8 after 20 s, about 60 s left (part [2])\naudit: 4 of 8 after 40 s, about 40 s left (part [4])\n"
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_silence_is_kept(monkeypatch: Any, terminal: bool) -> None:
    assert play(monkeypatch, terminal=terminal, silent=True) == ""


def test_a_terminal_gets_a_bar(monkeypatch: Any) -> None:
    shown = play(monkeypatch, terminal=True)
    assert "4/8" in shown and "part [4]" in shown


def test_the_number_of_parts_is_known_before_the_first_is_done() -> None:
    console = Console(file=io.StringIO())
    with progress("audit", console) as step:
        step(0, 8, "the first runs")
        step(1, 8, "one is done")
    assert console.file.getvalue() == "audit: 0 of 8 after 0 s (the first runs)\n"  # type: ignore[attr-defined]


def test_parts_of_an_unknown_number_are_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    console = Console(file=io.StringIO())
    with progress("run", console) as step:
        step(3, None, "round 3")
    assert console.file.getvalue().startswith("run: 3 after ")  # type: ignore[attr-defined]
