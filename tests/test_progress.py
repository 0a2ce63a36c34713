"""Long commands say how far they are and how long they will take: a bar on a terminal, lines in a file."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from securefed import advise, audit, audit_algorithm
from securefed._auditing.advice import search
from securefed._auditing.advice.candidates import candidates
from securefed._auditing.engine import pace as module
from securefed._auditing.engine.pace import Noted, Pace, announce, logged, ticking
from securefed._commands import progress as command
from securefed._commands.progress import progress


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_at(pace: Pace, clock: Clock, *seconds: float) -> list[str]:
    """Look at a pace at these times, and return what was due."""
    found = []
    for clock.now in seconds:
        if (line := pace.due()) is not None:
            found.append(line)
    return found


def test_lines_come_at_a_fixed_cadence_though_no_part_ends() -> None:
    clock = Clock()
    pace = Pace("advise", clock, parallel=2)
    pace.note(0, 15, "the first setting runs")
    assert lines_at(pace, clock, 0, 1, 4.9) == []
    shown = lines_at(pace, clock, 5, 6, 19.9, 20, 34, 35, 95, 96)
    assert [line.split(" s,")[0] for line in shown] == [f"advise: 0 of 15 after {t}" for t in (5, 20, 35, 95)]
    assert shown[0] == "advise: 0 of 15 after 5 s, at least 32 s left (the first setting runs)"  # two of 15 ran for 5 s


def test_the_time_left_follows_from_the_parts_that_have_ended() -> None:
    clock = Clock()
    pace = Pace("audit", clock)
    pace.note(2, 8, "part [2]")
    assert lines_at(pace, clock, 5) == ["audit: 2 of 8 after 5 s, about 15 s left (part [2])"]
    pace.note(4, 8, "part [4]")
    assert lines_at(pace, clock, 40) == ["audit: 4 of 8 after 40 s, about 40 s left (part [4])"]
    assert pace.left() == "about 40 s left"


def audited(costs: dict[str, float], seeds: int, workers: int, looks: tuple[float, ...]) -> tuple[list[str], float]:
    """Play an audit whose parts cost so much by algorithm; return the lines at these times, and when it ends."""
    clock, lines = Clock(), list[str]()
    note = Noted(Pace("audit", clock), lambda done, total, what: None)
    parts = {f"{name}, seed {seed}": name for seed in range(seeds) for name in costs}
    announce(note, parts, workers)
    note(0, len(parts), "the first one runs")
    ends, free = [], [0.0] * workers
    for part, name in parts.items():
        free[0] += costs[name]
        ends.append((free[0], part))
        free.sort()
    done = 0
    for at, part in sorted([*ends, *((look, "") for look in looks)]):
        clock.now = at
        if part:
            note(done := done + 1, len(parts), part)
        else:
            lines.append(note.pace.left())
    return lines, max(free)


def test_cheap_algorithms_first_do_not_make_a_long_audit_look_short() -> None:
    """Four algorithms of a tenth of a second end at once, four of 4 s follow: not 5 s are left, but 80."""
    costs = {f"cheap {k}": 0.1 for k in range(4)} | {f"dear {k}": 4.0 for k in range(4)}
    (first, later), end = audited(costs, seeds=10, workers=2, looks=(5.0, 20.0))
    assert 75 < end < 85
    kind, seconds = first.removesuffix(" s left").rsplit(" ", 1)
    assert kind == "at least" and 0.8 * (end - 5) < float(seconds) <= 1.05 * (end - 5)
    kind, seconds = later.removesuffix(" s left").rsplit(" ", 1)
    assert kind == "about" and abs(float(seconds) - (end - 20)) < 4


def test_an_algorithm_that_still_runs_counts_for_those_that_have_not_begun() -> None:
    costs = {"cheap": 0.5} | {f"dear {k}": 30.0 for k in range(3)}
    (first,), end = audited(costs, seeds=2, workers=1, looks=(6.0,))
    assert first == "at least 28 s left" and end == 181  # the only dear one seen has run for 5.5 s so far
    (known,), _ = audited(costs, seeds=2, workers=1, looks=(100.0,))
    assert known == "about 81 s left"


def test_an_audit_says_which_parts_come() -> None:
    """Each part takes ten seconds of the clock; a second algorithm has not run when the first estimate is made."""
    clock, lines = Clock(), list[str]()
    pace = Pace("audit", clock)

    def shown(done: int, total: int | None, what: str) -> None:
        lines.append(pace.left())
        clock.now += 10.0

    audit(["pca/ssi", "pca/localpower"], ["plain"], rounds=2, seeds=2, workers=1, progress=Noted(pace, shown))
    assert lines == ["", "at least 30 s left", "about 20 s left", "about 10 s left", "about 0 s left"]


def test_an_advice_says_which_settings_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting takes ten seconds of the clock; that of single rows has not run at the first estimates."""
    monkeypatch.setattr(search, "candidates", lambda *sizes: candidates(*sizes)[:2])
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(60, 4)), y=np.arange(60) % 2)
    clock, lines = Clock(), list[str]()
    pace = Pace("advise", clock)

    def shown(done: int, total: int | None, what: str) -> None:
        lines.append(pace.left())
        clock.now += 10.0

    few = {"clients": 4, "rows_per_client": 1, "rounds": 1, "seeds": 2, "workers": 1}
    advise("dsgd", data=str(tmp_path / "rows.npz"), **few, progress=Noted(pace, shown))
    assert lines == ["", "at least 20 s left", "at least 10 s left", "about 0 s left"]


def test_parts_of_an_unknown_number_are_counted() -> None:
    clock = Clock()
    pace = Pace("run", clock)
    pace.note(3, None, "round 3")
    assert lines_at(pace, clock, 30) == ["run: 3 after 30 s (round 3)"]


def test_a_line_is_written_by_its_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock has passed the first time before the block begins, so that the first look writes a line."""
    monkeypatch.setattr(module, "_TICK", 0.001)
    clock, written = Clock(), list[str]()
    pace = Pace("audit", clock)
    clock.now = 7.0
    with ticking(pace, written.append):
        while not written:  # ends with the first look at the clock, however late that is
            pass
    assert written == ["audit: 0 after 7 s (it starts)"]


def shown(*, terminal: bool, **how: bool) -> str:
    """Finish 1, 2 and 4 of 8 parts at once, and return what a console was shown."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress("audit", console, **how) as step:
        step(0, 8, "the first runs")
        for done in (1, 2, 4):
            step(done, 8, f"part [{done}]")
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_file_gets_the_number_of_parts_before_the_first_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Pace", lambda name: Pace(name, Clock()))
    assert shown(terminal=False) == "audit: 0 of 8 after 0 s (the first runs)\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_brief_command_has_only_the_lines_at_their_times(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    clock = Clock()
    monkeypatch.setattr(command, "Pace", lambda name: Pace(name, clock))
    assert shown(terminal=terminal, brief=True) == "" == shown(terminal=terminal, silent=True)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress("audit", console, brief=True) as step:
        clock.now = 6.0
        step(1, 3, "a part")
    assert console.file.getvalue() == "audit: 1 of 3 after 6 s, about 12 s left (a part)\n"  # type: ignore[attr-defined]


def test_a_terminal_gets_a_bar() -> None:
    seen = shown(terminal=True)
    assert "4/8" in seen and "part [4]" in seen


def test_a_function_without_a_callback_logs_its_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "Pace", lambda name: Pace(name, clock))

    @logged
    def measure(parts: int, *, progress: Any = None) -> int:
        """Measure."""
        clock.now = 9.0
        progress(1, parts, "one")
        return parts

    with caplog.at_level(logging.INFO, "securefed.progress"):
        assert measure(3) == 3
        assert caplog.messages == ["measure: 1 of 3 after 9 s, about 18 s left (one)"]
        heard = list[tuple[Any, ...]]()
        assert measure(3, progress=lambda *told: heard.append(told)) == 3
    assert heard == [(1, 3, "one")] and len(caplog.messages) == 1


def test_every_audit_and_advice_notes_its_parts_before_the_first_one() -> None:
    assert all(hasattr(function, "__wrapped__") for function in (advise, audit, audit_algorithm))
    told = list[tuple[int, int, str]]()
    audit(["ssi"], ["plain"], seeds=1, rounds=1, workers=1, progress=lambda *parts: told.append(parts))
    assert told[0][:2] == (0, 1) and told[-1][:2] == (1, 1)
