"""PPGL, a reading: steps from points with negative degrees, ours without momentum, beside the printed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.ledger.ledger import Context, Experiment, Findings, Line
from benchmarks.ledger.ppgl_runs import PAPER, ROUNDS, VERTICES, Draw
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Array
from securefed.algorithms._graph import PPGL, GraphFedAvg
from securefed.algorithms._graph.method import CONSENSUS, GRAPH, GraphMethod
from securefed.algorithms._graph.smooth import MomentumDescent, SmoothGraph
from securefed.datasets._base import Dataset
from securefed.datasets._graphs import related_graphs
from securefed.errors import DivergenceError

RUNS = 10
"""Runs, numbered 0 to 9 whatever the seeds: a reading is settled on the runs it was found on."""
WHERE = "Algorithm 1, (19)-(20)"


class PrintedDescent(MomentumDescent):
    """Steps with momentum from every point, whatever its degrees."""

    def run(
        self,
        problem: SmoothGraph,
        graph: Array,
        previous: Array,
        distances: Array,
        strength: Array | float = 0.0,
        anchor: Array | float = 0.0,
    ) -> tuple[Array, Array]:
        """Make K steps (19)-(21), and return the last two iterates."""
        for _ in range(self.steps):
            extrapolated = graph + self.momentum * (graph - previous)
            slope = problem.gradient(extrapolated, distances) + strength * (extrapolated - anchor)
            graph, previous = np.maximum(0.0, extrapolated - self.step_size * slope), graph
        return graph, previous


class PrintedSteps:
    """Mixed into a graph method: its steps are those that the paper prints."""

    def descent(self) -> MomentumDescent:
        """Return the steps of a client."""
        ours: MomentumDescent = super().descent()  # type: ignore[misc]
        return PrintedDescent(ours.step_size, ours.momentum, ours.steps)


@dataclass(frozen=True, kw_only=True)
class PrintedPPGL(PrintedSteps, PPGL):
    """PPGL with the printed steps."""


@dataclass(frozen=True, kw_only=True)
class PrintedFedAvg(PrintedSteps, GraphFedAvg):
    """FedAvg of graphs with the printed steps."""


def related(seed: int, share: float, rows: int) -> Sequence[Dataset]:
    """Signals on five related graphs that have this share of their edges in common."""
    rng = np.random.default_rng([seed, rows])
    return Draw.of(related_graphs(5, share, rng, vertices=VERTICES), [rows] * 5, rng).clients


def normal(seed: int) -> Sequence[Dataset]:
    """Independent normal entries of standard deviation 2 on 12 vertices: no edges, and large distances."""
    rng = np.random.default_rng(seed)
    return [Dataset(2 * rng.standard_normal((50, 12))) for _ in range(5)]


METHODS: dict[str, tuple[Callable[[], GraphMethod], Callable[[], GraphMethod]]] = {
    "PPGL": (PPGL, PrintedPPGL),
    "FedAvg": (GraphFedAvg, PrintedFedAvg),
}
KINDS: dict[str, Callable[[int], Sequence[Dataset]]] = {
    "related graphs, q = .5, N = 50": lambda seed: related(seed, 0.5, 50),
    "related graphs, q = .9, N = 20": lambda seed: related(seed, 0.9, 20),
    "independent normal entries of standard deviation 2, 12 vertices": normal,
}


def learned(method: GraphMethod, clients: Sequence[Dataset], rounds: int) -> Array | None:
    """Return the graphs of a run, or `None` where it is refused."""
    try:
        result = Federation(method, clients, options=RunOptions(keep_transcript=False)).run(rounds)
    except DivergenceError:
        return None
    personal = [np.asarray(own[GRAPH]) for own in result.personal.values()]
    return np.stack(personal or [np.asarray(result.output[CONSENSUS])])


def reading(context: Context) -> Findings:
    """Compare both steps on the same data, run by run."""
    rounds = 10 if context.quick else ROUNDS
    lines: list[Line] = []
    for kind, make in KINDS.items():
        for name, (ours, printed) in METHODS.items():
            context.progress(f"{kind}, {name}")
            pairs = [
                (learned(ours(), clients, rounds), learned(printed(), clients, rounds))
                for clients in (make(seed) for seed in range(2 if context.quick else RUNS))
            ]
            both = [(a, b) for a, b in pairs if a is not None and b is not None]
            gaps = [float(np.abs(a - b).max()) for a, b in both]
            setting = (
                f"{kind}; defaults, xi = .9, eta = .005, K = 5, {rounds} rounds, both with our ceiling; one value a run"
            )
            for quantity, values in (
                (
                    f"runs refused, {name}, ours: no momentum from negative degrees",
                    [float(a is None) for a, _ in pairs],
                ),
                (f"runs refused, {name}, the paper's: momentum from every point", [float(b is None) for _, b in pairs]),
                (f"largest difference of a weight at the end, {name}, runs that both finish", gaps),
            ):
                if values:  # there may be no run that both finish
                    lines.append(Line(f"{WHERE}, {kind}", quantity, setting, None, tuple(values), (None, None)))
    return Findings(tuple(lines))


EXPERIMENTS = (Experiment("ppgl/degrees", PAPER, "A reading: steps from negative degrees", reading, 0.5),)
