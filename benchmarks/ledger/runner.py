"""Runs experiments, each in a fresh process with one thread, and keeps what each hands in as soon as it is done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from benchmarks.ledger import records
from benchmarks.ledger.catalogue import Entry, load
from benchmarks.ledger.ledger import Context, Findings
from benchmarks.ledger.records import Kind, Record
from benchmarks.ledger.sources import commit, digest
from securefed._public import require

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Watcher(Protocol):
    """Told what goes on; the display of the command line is one."""

    def skipped(self, done: Record) -> None: ...
    def started(self, name: str) -> None: ...
    def said(self, name: str, text: str) -> None: ...
    def ended(self, done: Record, trace: str) -> None: ...


@dataclass
class _Run:
    entry: Entry
    kind: Kind
    process: BaseProcess
    pipe: Connection
    commit: str
    began: float = field(default_factory=time.monotonic)


def run(
    entries: Sequence[Entry],
    watcher: Watcher,
    *,
    quick: bool,
    seeds: tuple[int, ...],
    folder: Path,
    workers: int = 2,
    fresh: bool = False,
) -> list[Record]:
    """Run the experiments in the order given, `workers` at a time; one record each, in the order they end.

    Each is given the first of the seeds, as many as it asks for.

    Finished results of the same kind in `folder` stand, unless `fresh`. An experiment that raises, or whose process
    dies, is recorded with its message and the others go on. On an interruption the processes are ended and what had
    finished stays.
    """
    require(workers >= 1, f"workers must be at least 1, not {workers}")
    done: list[Record] = []
    waiting: list[tuple[Entry, Kind]] = []
    for entry in entries:
        kind = Kind(quick, seeds[: entry.experiment.seeds], digest(entry.module, entry.experiment))
        before = None if fresh else records.read(folder, entry.experiment.name)
        if before is not None and before.serves(kind):
            watcher.skipped(before)
            done.append(before)
        else:
            waiting.append((entry, kind))
    running: dict[Connection, _Run] = {}
    try:
        with _environment(ONE_THREAD):
            while waiting or running:
                while waiting and len(running) < workers:
                    started = _start(*waiting.pop(0))
                    running[started.pipe] = started
                    watcher.started(started.entry.experiment.name)
                heard = wait(list(running))
                for pipe in [pipe for pipe in running if pipe in heard]:
                    ended = _listen(running[pipe], watcher)
                    if ended is not None:
                        records.write(folder, ended)
                        done.append(ended)
                        del running[pipe]
    finally:
        for left in running.values():
            left.process.terminate()
            left.process.join()
    return done


def _start(entry: Entry, kind: Kind) -> _Run:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    arguments = (entry.module, entry.experiment.name, kind.quick, kind.seeds, theirs)
    process = spawn.Process(target=_work, args=arguments, name=entry.experiment.name)
    process.start()
    theirs.close()  # so that the end of the process ends the pipe
    return _Run(entry, kind, process, ours, commit())


def _listen(running: _Run, watcher: Watcher) -> Record | None:
    """Take one message; the record if it was the last one."""
    name = running.entry.experiment.name
    try:
        about, content = running.pipe.recv()
    except EOFError:
        running.process.join()
        code = running.process.exitcode
        about, content = "failed", (f"the process ended with code {code} and no findings (memory?)", "")
    if about == "said":
        watcher.said(name, content)
        return None
    running.process.join()
    running.pipe.close()
    findings, failure, trace = None, None, ""
    if about == "findings":
        findings = Findings.from_json(content)
    else:
        failure, trace = content
    ended = records.record(
        name,
        running.kind,
        time.monotonic() - running.began,
        commit=running.commit,
        findings=findings,
        failure=failure and _nowhere(failure),
    )
    watcher.ended(ended, trace)
    return ended


def _work(module: str, name: str, quick: bool, seeds: tuple[int, ...], pipe: Connection) -> None:
    """In the child: run the experiment and send its findings, or the message and the traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the parent's to handle: it ends its children
    try:
        experiment = load(module, name)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        findings = experiment.run(Context(seeds, quick, _teller(pipe)))
        message: tuple[str, Any] = "findings", findings.to_json()
    except Exception as error:
        message = "failed", (f"{type(error).__name__}: {error}", traceback.format_exc())
    pipe.send(message)
    pipe.close()


def _teller(pipe: Connection) -> Callable[[str], None]:
    return lambda text: pipe.send(("said", str(text)))


def _nowhere(message: str) -> str:
    """The message without this machine's folders: it goes into files that others read."""
    places = {os.environ.get("SECUREFED_DATA", ""): "$SECUREFED_DATA", str(Path.cwd()): ".", str(Path.home()): "~"}
    for place, name in places.items():
        if len(place) > 1:
            message = message.replace(place, name)
    return message


@contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
    """Processes started inside inherit these variables; BLAS reads them when it is loaded."""
    before = {name: os.environ.get(name) for name in extra}
    os.environ.update(extra)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
