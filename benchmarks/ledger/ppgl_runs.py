"""Draws, runs and parameter choice of the PPGL experiments.

What the paper states (section V-A): I = 5 clients, 20 vertices, signals with noise .1, alpha = 1, K = 5, T = 50,
xi = .9, eta = .005; beta by the best F-score of IGL; lambda, nu by grid search in [.01, 1] and [1, 100]; the baselines'
parameters by their best F-score. Chosen here, on draws that no result uses: the grids below.
Silent are: from what weight on an edge counts, the weights of added edges, isolated vertices, zeta, w^0, eps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from statistics import mean

import numpy as np

from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed._tensors import Array
from securefed.algorithms._graph import IGL, MRMTL, PPGL, GraphDitto, GraphFedAvg, GraphFedProx
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.method import CONSENSUS, GRAPH, GraphMethod
from securefed.algorithms._graph.metrics import EdgeScores, edge_scores
from securefed.datasets._base import Dataset
from securefed.datasets._graphs import RelatedGraphs, smooth_signals
from securefed.errors import DivergenceError

PAPER = "PPGL: Zhang and Wang, Graph Learning Across Data Silos"
ROUNDS = 50
VERTICES = 20
THRESHOLD = 0.2
TUNING_SEED = 90_001
"""No seed of a result: what parameters are chosen on is never what they are judged on."""

BETAS = (0.002, 0.01, 0.05, 0.1)
PULLS = (0.1, 0.3, 1.0, 3.0)
SPARSITIES = (0.03, 0.1, 0.3, 1.0)
NUS = (1.0, 3.0, 5.0, 10.0, 30.0)

UNSTATED = (
    "silent in the paper: what counts as an edge (here weight > .2), weights of added edges (U[.7, 1]), vertices left "
    "without edges (redrawn until each degree > .3), zeta = .001, w^0 = .1, eps = .01"
)


@dataclass(frozen=True)
class Draw:
    """One repetition: true graphs (clients, edges), what they share (edges,), and every client's signals."""

    graphs: Array
    common: Array
    clients: tuple[Dataset, ...]

    @classmethod
    def of(cls, related: RelatedGraphs, rows: Sequence[int], rng: np.random.Generator) -> Draw:
        """Signals for every graph, `rows[i]` of them for client i."""
        edges = Edges(len(related.common))
        signals = tuple(smooth_signals(graph, n, rng) for graph, n in zip(related.graphs, rows, strict=True))
        return cls(np.stack([edges.vector(graph) for graph in related.graphs]), edges.vector(related.common), signals)


Make = Callable[[np.random.Generator], Draw]


@dataclass(frozen=True)
class Learned:
    """Scores of one run: mean over clients of their graphs' scores, and those of the consensus, if there is one."""

    local: EdgeScores
    consensus: EdgeScores | None
    each: tuple[EdgeScores, ...]
    weights: tuple[float, ...]


def draws(make: Make, seed: int, count: int) -> list[Draw]:
    """Repetitions that depend on the seed and their number alone."""
    return [make(np.random.default_rng([seed, number])) for number in range(count)]


def learn(method: GraphMethod, draw: Draw) -> Learned:
    """Run it. A method without personal graphs is scored by its global graph against every client's (as the paper)."""
    result = Federation(method, draw.clients, options=RunOptions(keep_transcript=False)).run(ROUNDS)
    consensus = result.output.get(CONSENSUS)
    own = [result.personal[i][GRAPH] if result.personal else consensus for i in range(len(draw.clients))]
    each = tuple(edge_scores(np.asarray(w), truth, THRESHOLD) for w, truth in zip(own, draw.graphs, strict=True))
    shared = edge_scores(consensus, draw.common, THRESHOLD) if isinstance(method, PPGL) else None
    weights = tuple(float(own["weight"]) for own in result.personal.values() if "weight" in own)
    return Learned(average(each), shared, each, weights)


def average(scores: Sequence[EdgeScores]) -> EdgeScores:
    """Field by field."""
    return EdgeScores(*(mean(getattr(one, field.name) for one in scores) for field in fields(EdgeScores)))


@dataclass(frozen=True)
class Choice:
    """Methods by name with the parameters chosen for one setting, and the parameters in words."""

    methods: Mapping[str, GraphMethod]
    words: Mapping[str, str]


def candidates(beta: float) -> Iterator[tuple[str, str, GraphMethod]]:
    """(name, parameters in words, method) over the grids."""
    yield "IGL", "", IGL(beta=beta)
    yield "FedAvg", "", GraphFedAvg(beta=beta)
    for pull in PULLS:
        yield "FedProx", f", mu = {pull:g}", GraphFedProx(beta=beta, mu=pull)
        yield "MRMTL", f", pull = {pull:g}", MRMTL(beta=beta, pull=pull)
        yield "Ditto", f", pull = {pull:g}", GraphDitto(beta=beta, strength=pull)
    for sparsity, nu in product(SPARSITIES, NUS):
        words, settings = f", lambda = {sparsity:g}, nu = {nu:g}", {"sparsity": sparsity, "nu": nu}
        yield "PPGL", words, PPGL(beta=beta, **settings)
        yield "PPGL w/o", words, PPGL(beta=beta, weights="equal", **settings)


def choose(names: Sequence[str], score: Callable[[GraphMethod], float]) -> Choice:
    """The best of the grids: beta for IGL, then each method's own parameters with it. What diverges is no choice."""

    def scored(method: GraphMethod) -> float:
        try:
            return score(method)
        except DivergenceError:
            return -math.inf

    beta = max(BETAS, key=lambda value: scored(IGL(beta=value)))
    best: dict[str, tuple[float, str, GraphMethod]] = {}
    for name, words, method in candidates(beta):
        if name in names:
            value = scored(method)
            if name not in best or value > best[name][0]:
                best[name] = (value, f"beta = {beta:g}{words}", method)
    return Choice({name: entry[2] for name, entry in best.items()}, {name: entry[1] for name, entry in best.items()})


def choose_for(make: Make, names: Sequence[str], count: int) -> Choice:
    """By F-scores on `count` draws of their own; PPGL by the mean of its local and its consensus F-score."""
    tuning = draws(make, TUNING_SEED, count)

    def score(method: GraphMethod) -> float:
        found = [learn(method, draw) for draw in tuning]
        return mean((one.local.f_score + (one.consensus or one.local).f_score) / 2 for one in found)

    return choose(names, score)


def fixed(names: Sequence[str], *others: GraphMethod) -> Choice:
    """The methods' defaults, or `others` in their place, for quick runs: nothing is searched."""
    methods = (IGL(), GraphFedAvg(), GraphFedProx(), MRMTL(), GraphDitto(), PPGL(), *others)
    defaults: dict[str, GraphMethod] = {type(method).__name__.removeprefix("Graph"): method for method in methods}
    defaults["PPGL w/o"] = PPGL(weights="equal", nu=5.0)
    return Choice({name: defaults[name] for name in names}, {name: repr(defaults[name]) for name in names})
