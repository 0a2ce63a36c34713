"""Experiments run in processes of their own; one that fails stops no other, and what is done is not done again."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from benchmarks.ledger import __main__, page, records, sources, staleness
from benchmarks.ledger.catalogue import discover
from benchmarks.ledger.ledger import QUICK
from benchmarks.ledger.runner import ONE_THREAD
from securefed.errors import ConfigError, UnknownNameError
from tests.benchmarks.fakes import run_fake


def test_a_failing_experiment_is_recorded_and_the_others_go_on(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECUREFED_DATA", "/some/where")
    before = dict(os.environ)
    heard, done = run_fake(fake, [])
    assert os.environ == before
    assert done["faps/bad"].failure == "FileNotFoundError: no MNIST in $SECUREFED_DATA"
    assert "ended with code 7" in str(done["faps/dead"].failure)
    good = done["faps/good"]
    assert good.findings is not None
    assert good.findings.lines[0].values == (11.0, 12.0, 13.0)
    assert good.findings.lines[1].values == (float(ONE_THREAD["OMP_NUM_THREADS"]),)
    assert ("working", "faps/good") in heard.calls
    starts = [name for what, name in heard.calls if what == "started"]
    assert starts == ["faps/bad", "faps/dead", "faps/good", "faps/owing"]  # longest first
    for name, result in done.items():
        assert records.read(fake.parent / "results", name) == result


def test_finished_results_stand_until_the_kind_changes_or_fresh_is_asked_for(fake: Path) -> None:
    calls = fake / "calls"
    names = ["faps/good"]
    run_fake(fake, names)
    heard, done = run_fake(fake, names)
    assert heard.calls == [("skipped", "faps/good")]
    assert done["faps/good"].findings is not None
    assert calls.read_text() == "x"
    run_fake(fake, names, fresh=True)
    assert calls.read_text() == "xx"
    run_fake(fake, names, seeds=(14,))
    assert calls.read_text() == "xxx"
    (fake / "helper.py").write_text('"""A factor."""\n\nFACTOR = 1.0  # no change\n')
    run_fake(fake, names, seeds=(14,))
    assert calls.read_text() == "xxx"
    # of another length than the first text: Python takes a compiled file of the same second and length for the new one
    (fake / "helper.py").write_text("FACTOR = 2.000\n")
    _, done = run_fake(fake, names, seeds=(14,))
    assert calls.read_text() == "xxxx"
    assert done["faps/good"].findings.lines[0].values == (28.0,)  # type: ignore[union-attr]


def test_a_failure_is_tried_again(fake: Path) -> None:
    run_fake(fake, ["faps/bad"])
    heard, _ = run_fake(fake, ["faps/bad"])
    assert ("started", "faps/bad") in heard.calls


def test_unknown_names_are_refused_with_the_nearest(fake: Path) -> None:
    catalogue = discover(fake.name, papers=("faps",))
    assert [entry.experiment.name for entry in catalogue.select(["faps"])] == [
        "faps/bad",
        "faps/dead",
        "faps/good",
        "faps/owing",
    ]
    with pytest.raises(UnknownNameError, match="unknown experiment 'faps/god'; the nearest known one is 'faps/good'"):
        catalogue.select(["faps/god"])


def test_what_cannot_be_collected_is_named(fake: Path) -> None:
    (fake / "ppgl_broken.py").write_text("import no_such_thing\n")
    catalogue = discover(fake.name, papers=("faps", "ppgl", "losac"))
    assert set(catalogue.entries) == {"faps/good", "faps/bad", "faps/dead", "faps/owing"}
    assert "no_such_thing" in catalogue.broken[f"{fake.name}.ppgl_broken"]
    assert "add EXPERIMENTS" in catalogue.broken["losac"]


def test_two_experiments_of_one_name_are_refused(fake: Path) -> None:
    (fake / "faps_twin.py").write_text(f"from {fake.name}.faps_small import EXPERIMENTS\n")
    with pytest.raises(ConfigError, match="two experiments are called 'faps/good'"):
        discover(fake.name, papers=("faps",))


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(fake: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command on the fake package; the folder that it writes to."""
    monkeypatch.setattr(__main__, "discover", lambda: discover(fake.name, papers=("faps",)))
    for module, name in ((records, "FULL"), (records, "CUT_DOWN"), (page, "DOCS")):
        monkeypatch.setattr(module, name, fake.parent / name)
    return fake.parent


def test_a_full_run_writes_the_page_and_a_quick_one_keeps_apart(
    command: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["faps/good", "--quick"]) == 0
    assert QUICK in capsys.readouterr().out
    assert not (command / "DOCS").exists()
    assert not (command / "FULL").exists()
    assert __main__.main(["faps/good"]) == 0
    assert "wrote records/reproduction.md" in capsys.readouterr().out
    assert (command / "DOCS" / "reproduction" / "faps-good.png").exists()
    assert __main__.main(["--list"]) == 0
    assert "Table of dead" in capsys.readouterr().out


def test_the_check_names_what_is_owed_and_the_command_that_renews_it(
    command: Path, fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["faps/good", "faps/bad"]) == 1
    capsys.readouterr()
    assert __main__.main(["--check"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "faps/bad: failed" in printed
    assert "faps/dead: not run yet" in printed
    assert "faps/good" not in printed
    assert "make reproduce REPRODUCE_ARGS='faps/bad faps/dead faps/owing'" in printed
    (fake / "helper.py").write_text("FACTOR = 1.5\n")
    sources.tree.cache_clear()
    assert __main__.main(["--check"]) == 1
    assert "faps/good: older than the code" in " ".join(capsys.readouterr().out.split())


def test_an_experiment_gets_as_many_seeds_as_it_asks_for_and_fewer_are_owed(command: Path, fake: Path) -> None:
    text = (fake / "faps_small.py").read_text().replace("run, minutes)\n", "run, minutes, seeds=2)\n", 1)
    (fake / "faps_small.py").write_text(text)
    reload(fake)
    assert __main__.main(["faps/good", "--seeds", "12"]) == 0
    entry = discover(fake.name, papers=("faps",)).entries["faps/good"]
    done = records.read(records.FULL, "faps/good")
    assert done is not None and done.kind.seeds == (12,)
    assert staleness.missing_seeds(entry, done) == "1 of 2 seeds"
    assert "1 of 2 seeds" in page.text(discover(fake.name, papers=("faps",)), {"faps/good": done})
    assert __main__.main(["faps/good"]) == 0
    done = records.read(records.FULL, "faps/good")
    assert done is not None and done.kind.seeds == (11, 12)
    assert staleness.missing_seeds(entry, done) == ""


def reload(fake: Path) -> None:
    """Read the modules of the fake package anew."""
    for name in [name for name in sys.modules if name.startswith(fake.name)]:
        del sys.modules[name]
    importlib.invalidate_caches()
    sources.tree.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["faps/bad"], 1, "failed: faps/bad"),
        (["faps/owing"], 1, "lines without the evidence they owe: faps/owing"),
        (["faps/god"], 2, "the nearest known one is 'faps/good'"),
        (["faps/good", "--workers", "0"], 2, "workers must be at least 1"),
    ],
)
def test_exit_codes(
    command: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert __main__.main(arguments) == code
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("seeds", ["1,1", "-1", "one"])
def test_seeds_that_make_no_sense_are_refused(command: Path, seeds: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        __main__.main([f"--seeds={seeds}"])
