"""How much the attacks get on other data, sizes, rounds and precisions.

    python -m benchmarks.pages.leakage [CURVE ...] [--fresh] [--page]

Runs a federation, looks at it through one view, attacks and scores as the audit does, for every point of every curve
(or of those named) and every seed. A point goes to `results/leakage.json` at once, and the next run goes on where this
one stopped; `--fresh` measures the chosen curves again, `--page` only draws. Draws the figures of docs/leakage.md.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from types import FrameType
from typing import Any

import numpy as np

from benchmarks.pages import leakage_page
from benchmarks.pages.leakage_curves import CURVES, DATA, SUBJECTS, Point, asked, is_current
from benchmarks.rows import RESULTS
from securefed._auditing.cases import Prepared, case
from securefed._auditing.cases.data_splits import most_varied
from securefed._auditing.engine.results import FEDERATION
from securefed._auditing.registered.attacker import Attacker
from securefed._auditing.registered.scoring import assess
from securefed._auditing.registered.seed_run import QUANTISED, TARGET
from securefed._catalogue import algorithms
from securefed._messages import ClientId, Transcript
from securefed._runtime.federation import Federation
from securefed._runtime.history import Result
from securefed._tensors import Array
from securefed.attacks import views
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks.scores import leakage
from securefed.datasets import scaling
from securefed.datasets._base import Dataset
from securefed.datasets._loaders import LoadedDataset, load
from securefed.defenses._chain import chain
from securefed.errors import DataError

POINTS = RESULTS / "leakage.json"
SEEDS = range(5)
SECONDS = 10.0
"""Processor time of one attack, beyond which it counts as failed."""
ENOUGH = 2
"""Seeds out of time after which a point's others are not tried."""
MOST_ROWS = 2000
"""Of a set; the same random ones in every run."""
FIXED_POINT = "fixed point"
VIEWS: Mapping[str, Callable[[Transcript, ClientId], View]] = {
    views.SERVER_VIEW: views.server,
    views.SUM_ONLY: views.sum_only,
}
Finding = dict[str, Any]
"""Of one seed: leakage, error, ... of the attempt whose residual is least, or why there is none."""


class OutOfTime(Exception):
    """The attack took longer than `SECONDS`."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure what is missing, draw, and write the page."""
    names = [curve.name for curve in CURVES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"which ones (default all): {', '.join(names)}")
    parser.add_argument("--fresh", action="store_true", help="measure these curves again")
    parser.add_argument("--page", action="store_true", help="only draw what there is")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.curves) - set(names)):
        parser.error(f"unknown curve {unknown[0]!r}; known: {', '.join(names)}")
    wanted = chosen.curves or names
    stored: dict[str, Any] = json.loads(POINTS.read_text()) if POINTS.exists() else {}
    if chosen.fresh:
        stored = {name: content for name, content in stored.items() if content["point"]["curve"] not in wanted}
    if not chosen.page:
        for point in (point for curve in CURVES if curve.name in wanted for point in curve.points()):
            if not is_current(point, stored):
                stored[point.name] = asked(point) | {"seeds": over_seeds(point)}
                POINTS.write_text(json.dumps(stored, indent=1) + "\n")
                print(_line(point, stored[point.name]["seeds"]), flush=True)
    for path in leakage_page.write(stored):
        print(f"wrote {path}")


def over_seeds(point: Point) -> list[Finding]:
    """All seeds, unless the first `ENOUGH` are out of time."""
    found: list[Finding] = []
    for seed in SEEDS:
        found.append(measure(point, seed))
        if len(found) == ENOUGH and all("out of time" in finding for finding in found):
            break
    return found


def measure(point: Point, seed: int) -> Finding:
    """One federation, one view of it, the attacks, the score."""
    try:
        prepared, result, target = federation(Run.of(point), seed)
    except DataError:
        return {"missing": f"{point.data} is not in the folder that SECUREFED_DATA names"}
    observed = rounded(VIEWS[point.view](result.transcript, TARGET), point.wire)
    secret = case(SUBJECTS[point.subject].algorithm).secret
    attacker = Attacker(point.attacks, (secret,), target, seed)
    start = time.process_time()
    try:
        with limited(SECONDS):
            done, refused = attacker.attack(observed)
    except OutOfTime:
        return {"out of time": SECONDS} | _scored(prepared, observed, guess(secret, prepared), result)
    seconds = time.process_time() - start
    if not done:
        reason = "{}: {}".format(*next(iter(refused.items())))
        return {"refused": reason} | _scored(prepared, observed, guess(secret, prepared), result)
    residuals = [one.estimate.residual for one in done]
    best = done[int(np.argmin([math.inf if math.isnan(residual) else residual for residual in residuals]))]
    return {"attack": best.attack, "seconds": _short(seconds)} | _scored(prepared, observed, best.estimate, result)


def guess(secret: str, prepared: Prepared) -> Reconstruction:
    """Nothing finite: who has it falls back on the baseline's guess."""
    return Reconstruction(secret, np.full((prepared.public.features,) * 2, math.nan))


def _scored(prepared: Prepared, observed: View, found: Reconstruction, result: Result) -> Finding:
    out: Finding = {"residual": _short(found.residual), "rank": found.rank, "unknowns": found.unknowns}
    out["condition"] = _short(found.condition)
    for item in assess(prepared, observed, found, result, TARGET):
        prefix = "federation " if item.secret == FEDERATION else ""
        out[f"{prefix}error"] = _short(item.error)
        out[f"{prefix}leakage"] = _short(leakage(item.error, item.baseline), digits=12)
    return out


def _short(value: float, digits: int = 4) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


@cache
def rows_of(data: str, features: int | None) -> LoadedDataset:
    """At most `MOST_ROWS` of the set's rows, with its `features` columns of highest variance.

    Columns of wide ranges are compressed by a logarithm and scaled to [0, 1]. Then one factor for all columns gives the
    rows the mean square norm of digits, so that a learning rate means the same curvature everywhere.

    Raises:
        DataError: the set's files are missing.
    """
    loaded = load(data)
    part = loaded.data.take(np.random.default_rng(0).permutation(loaded.data.rows)[:MOST_ROWS])
    if loaded.feature_bound > 1:
        part = scaling.fit(part, scaling.log1p, scaling.unit_range)(part)
    if features is not None:
        part = most_varied(part, features)
    factor = 1.0 if data == DATA else _norm(load(DATA).data) / _norm(part)
    x = part.x * factor
    return LoadedDataset(Dataset(x, part.y), data, float(np.abs(x).max()))


def _norm(data: Dataset) -> float:
    return float(np.sqrt(np.mean(np.sum(data.x**2, axis=1))))


@dataclass(frozen=True)
class Run:
    """What a federation depends on, beside its seed: the fields of `Point` that are not about looking at it."""

    subject: str
    data: str
    features: int | None
    rows: int | None
    rank: int | None
    learning_rate: float | None
    clients: int
    rounds: int
    quantised: bool

    @classmethod
    def of(cls, point: Point) -> Run:
        same = {item.name: getattr(point, item.name) for item in fields(cls) if item.name != "quantised"}
        return cls(**same, quantised=point.wire == FIXED_POINT)


@lru_cache(maxsize=100)
def federation(run: Run, seed: int) -> tuple[Prepared, Result, Target]:
    """The data, the run and its algorithm; made once for all views and precisions.

    Raises:
        DataError: the set's files are missing.
    """
    subject = SUBJECTS[run.subject]
    prepared = subject.prepare(run.rows)(rows_of(run.data, run.features), run.clients, seed)
    varied = {name: value for name in ("rank", "learning_rate") if (value := getattr(run, name)) is not None}
    algorithm = algorithms.make(subject.algorithm, **{**case(subject.algorithm).setting, **varied})
    defense = QUANTISED if run.quantised else chain()
    made = Federation(algorithm, prepared.clients, defense, seed=seed, public=prepared.public)
    return prepared, made.run(run.rounds), Target(algorithm, prepared.public)


def rounded(observed: View, wire: str) -> View:
    """The view, its messages rounded as they were if they had travelled so; clients computed from what they were sent.

    Numbers of 32 bits stay such, as in a transcript of another framework; those of 16 bits are handed on as float64.
    """
    if wire in ("float64", FIXED_POINT):
        return observed
    kind = np.dtype(wire)
    rounds = (
        replace(item, message={name: _cut(np.asarray(value), kind) for name, value in item.message.items()})
        for item in observed.rounds
    )
    return replace(observed, rounds=tuple(rounds))


def _cut(value: Array, kind: np.dtype[Any]) -> Array:
    if not np.issubdtype(value.dtype, np.floating):
        return value
    cut: Array = value.astype(kind)
    return cut if kind.itemsize >= 4 else cut.astype(np.float64)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` after so much processor time of this process; only in the main thread, only on Unix."""

    def stop(_: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _line(point: Point, seeds: Sequence[Finding]) -> str:
    leaks = [seed.get("leakage") for seed in seeds]
    said = " ".join("-" if leak is None else f"{leak:.3g}" for leak in leaks)
    seconds = sum(seed.get("seconds") or seed.get("out of time") or 0.0 for seed in seeds)
    return f"{point.name:48s} {said}   {seconds:.1f} s"


if __name__ == "__main__":
    main(sys.argv[1:])
