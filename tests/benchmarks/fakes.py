"""Lines, records and a package of tiny experiments that the tests of the ledger share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks.ledger import records, sources
from benchmarks.ledger.catalogue import discover
from benchmarks.ledger.ledger import Curve, Findings, Line
from benchmarks.ledger.records import Kind, Record
from benchmarks.ledger.runner import run

LINE = Line("Table 2", "rounds to 85 %", "eta .1, T 5", 90.0, (80.0, 85.0, 90.0), (None, 110.0))
CURVE = Curve("Fig. 2", "LoSAC", (0, 1, 2), (1.0, 0.1, 0.01), "rounds", "gap", log_y=True)


def change(line: Line = LINE, **fields: object) -> Line:
    return dataclasses.replace(line, **fields)


FINDINGS = Findings(
    (LINE, change(quantity="rounds, SCAFFOLD", stated=False, unit="rounds", evidence="ties; η | λ")), (CURVE, CURVE)
)


def a_record(name: str = "losac/one", findings: Findings | None = FINDINGS, quick: bool = False) -> Record:
    failure = None if findings else "DataError: no such file"
    return records.record(name, Kind(quick, (11, 12), "d1"), 3.21, findings=findings, failure=failure)


MODULE = """
import os
from pathlib import Path
from benchmarks.ledger.ledger import Curve, Experiment, Findings, Line
from {package}.helper import FACTOR


def good(context):
    context.progress("working")
    with (Path(__file__).parent / "calls").open("a") as file:
        file.write("x")
    threads = float(os.environ["OMP_NUM_THREADS"])
    values = tuple(FACTOR * seed for seed in context.seeds)
    curves = [Curve("Fig. 1", "ours", (1, 2), (seed, seed + 1), "x", "y") for seed in context.seeds]
    return Findings((Line("T 1", "seed", "none | at all", 12.0, values, (11.0, 13.0)),
                     Line("T 2", "threads", "none | at all", None, (threads,), (None, None))), curves)


def owing(context):
    return Findings((Line("T 3", "seed", "none", 1.0, (2.0,), (None, 1.0)),))


def bad(context):
    raise FileNotFoundError(f"no MNIST in {{os.environ.get('SECUREFED_DATA')}}")


def dead(context):
    os._exit(7)


EXPERIMENTS = tuple(
    Experiment(f"faps/{{run.__name__}}", "FAPS: a paper", f"Table of {{run.__name__}}", run, minutes)
    for run, minutes in ((good, 1.0), (bad, 3.0), (dead, 2.0), (owing, 0.5))
)
"""


class Heard:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def skipped(self, done: Record) -> None:
        self.calls.append(("skipped", done.name))

    def started(self, name: str) -> None:
        self.calls.append(("started", name))

    def said(self, name: str, text: str) -> None:
        self.calls.append((text, name))

    def ended(self, done: Record, trace: str) -> None:
        self.calls.append(("ended", done.name))


def run_fake(fake: Path, names: list[str], **options: object) -> tuple[Heard, dict[str, Record]]:
    sources.tree.cache_clear()
    heard = Heard()
    chosen = discover(fake.name, papers=("faps",)).select(names)
    settings = {"quick": False, "seeds": (11, 12, 13), "folder": fake.parent / "results"} | options
    done = run(chosen, heard, **settings)
    return heard, {result.name: result for result in done}
