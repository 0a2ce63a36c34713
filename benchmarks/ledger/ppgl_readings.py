"""PPGL, a reading: what becomes of a graph that momentum throws far up, measured on four kinds of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.ledger.ledger import Context, Experiment, Findings, Line
from benchmarks.ledger.ppgl_runs import PAPER, ROUNDS, VERTICES, Draw
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Array
from securefed.algorithms._graph import PPGL
from securefed.algorithms._graph.method import GRAPH, LocalGraphData
from securefed.datasets._base import Dataset
from securefed.datasets._graphs import related_graphs
from securefed.datasets._images import digits
from securefed.errors import DivergenceError

RUNS = 10
WHERE = "Algorithm 1, (19)-(21)"


@dataclass(frozen=True, kw_only=True)
class OneTryPPGL(PPGL):
    """PPGL as it was: a graph above its ceiling has diverged at once."""

    def descend(
        self,
        own: LocalGraphData,
        graph: Array,
        previous: Array,
        strength: Array | float = 0.0,
        anchor: Array | float = 0.0,
    ) -> tuple[Array, Array]:
        """Make K steps; a graph above its ceiling is NaN."""
        graph, previous = self.descent().run(own.problem, graph, previous, own.distances, strength, anchor)
        fine = own.problem.objective(graph, own.distances)[..., None] <= own.ceiling
        return np.where(fine, graph, np.nan), previous


@dataclass(frozen=True, kw_only=True)
class UncheckedPPGL(PPGL):
    """PPGL as printed, without a ceiling."""

    def descend(
        self,
        own: LocalGraphData,
        graph: Array,
        previous: Array,
        strength: Array | float = 0.0,
        anchor: Array | float = 0.0,
    ) -> tuple[Array, Array]:
        """Make K steps."""
        return self.descent().run(own.problem, graph, previous, own.distances, strength, anchor)


def related(seed: int, share: float, rows: int) -> Sequence[Dataset]:
    """Signals on five related graphs that have this share of their edges in common."""
    rng = np.random.default_rng([seed, rows])
    return Draw.of(related_graphs(5, share, rng, vertices=VERTICES), [rows] * 5, rng).clients


def pixels(seed: int) -> Sequence[Dataset]:
    """Twenty standardised pixels of the digits, rows shuffled over five clients."""
    rng, x = np.random.default_rng(seed), digits().data.x
    x = x[:, x.std(axis=0) > 0.05]
    x = ((x - x.mean(axis=0)) / x.std(axis=0))[:, rng.choice(x.shape[1], VERTICES, replace=False)]
    return [Dataset(x[part]) for part in np.array_split(rng.permutation(len(x)), 5)]


def normal(seed: int) -> Sequence[Dataset]:
    """Independent normal entries of standard deviation 2 on 12 vertices: no edges, and large distances."""
    rng = np.random.default_rng(seed)
    return [Dataset(2 * rng.standard_normal((50, 12))) for _ in range(5)]


KINDS: dict[str, Callable[[int], Sequence[Dataset]]] = {
    "related graphs, q = .5, N = 50": lambda seed: related(seed, 0.5, 50),
    "related graphs, q = .9, N = 20": lambda seed: related(seed, 0.9, 20),
    "20 standardised pixels of the digits": pixels,
    "independent normal entries of standard deviation 2, 12 vertices": normal,
}


def learned(method: PPGL, clients: Sequence[Dataset], rounds: int) -> Array | None:
    """Return the clients' graphs (clients, edges), or `None` where the run is refused."""
    try:
        result = Federation(method, clients, options=RunOptions(keep_transcript=False)).run(rounds)
    except DivergenceError:
        return None
    return np.stack([np.asarray(own[GRAPH]) for own in result.personal.values()])


def readings(context: Context) -> Findings:
    """Refusals with one try and with two, equality of what one try accepted, and distance to the printed steps."""
    lines: list[Line] = []
    rounds = 10 if context.quick else ROUNDS
    for kind, make in KINDS.items():
        context.progress(kind)
        once, twice, changed, far = [], [], [], []
        for seed in range(2 if context.quick else RUNS):
            clients = make(seed)
            before, now = learned(OneTryPPGL(), clients, rounds), learned(PPGL(), clients, rounds)
            once.append(float(before is None))
            twice.append(float(now is None))
            changed.append(float(before is not None and not np.array_equal(before, now)))
            if before is None and now is not None:
                printed = learned(UncheckedPPGL(), clients, rounds)
                far.append(float("inf") if printed is None else float(np.abs(printed - now).max()))
        setting = f"{kind}; automatic weights, K = 5, zeta = 1e-3, {rounds} rounds, defaults; 1 for each run of 10"
        lines += [
            Line(WHERE, "runs refused, one try", setting, None, tuple(once), (None, None)),
            Line(WHERE, "runs refused, ours", setting, None, tuple(twice), (None, 0.0), evidence="see the setting"),
            Line(
                WHERE, "runs that one try accepted and that differ now", setting, None, tuple(changed), (0.0, 0.0),
                evidence="none is due: the steps below the ceiling are the same",
            ),
        ]  # fmt: skip
        if far:
            about = "largest difference of a weight from the printed steps' at the end, runs that one try refused"
            lines.append(Line(WHERE, about, setting, None, tuple(far), (None, 1e-3), evidence="see the setting"))
    return Findings(tuple(lines))


EXPERIMENTS = (Experiment("ppgl/readings", PAPER, "A reading: graphs that momentum throws far up", readings, 1.0),)
"""Its runs are numbered 0 to 9 whatever the seeds: a reading is settled on the runs it was found on."""
