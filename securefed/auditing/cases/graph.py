"""Cases of graph learning: the secret is the distances between the columns of a client's data."""

from __future__ import annotations

from typing import Any

import numpy as np

from securefed.algorithms.graph.edges import Edges
from securefed.algorithms.graph.method import CONSENSUS, GraphMethod
from securefed.algorithms.graph.smooth import SmoothGraph
from securefed.auditing.cases.base import Case, register
from securefed.auditing.cases.data import standardised
from securefed.datasets.base import Dataset
from securefed.tensors import Tensors

VERTICES = 8
_STEPS: dict[str, Any] = {"local_steps": 5}


def fit_to_held_out(output: Tensors, test: Dataset) -> float:
    """Minus the smoothness objective of the broadcast graph on held-out rows; of IGL, minus its mean objective."""
    if CONSENSUS not in output:
        return -float(next(iter(output.values())))
    edges = Edges(test.features)
    problem = SmoothGraph(edges, GraphMethod.alpha, GraphMethod.beta, GraphMethod.zeta)
    graph = np.maximum(output[CONSENSUS], 0.0)  # noise may leave weights below 0
    return -float(problem.objective(graph, edges.distances(test.x) / test.rows))


for _name in ("graph/ppgl", "graph/igl", "graph/fedavg", "graph/fedprox", "graph/mrmtl", "graph/ditto"):
    register(
        Case(
            name=_name,
            setting=_STEPS,
            secret="distances",
            prepare=standardised(VERTICES),
            rounds=6,
            clip=1.0,
            utility=fit_to_held_out,
            utility_name="fit to held-out rows",
            data=f"the {VERTICES} columns of highest variance, even shares, z-scored by each client",
        )
    )
