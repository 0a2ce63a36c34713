"""Utilities of final models, by the names that algorithms' audit cases give them.

A utility is a function (final broadcast, held-out rows) -> score, higher is better. An audit shows it beside leakage,
so that readers notice a defence that hides the data by ruining the model. `case.case` calls `utility`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from securefed._tensors import Tensors
from securefed.algorithms._base import Algorithm
from securefed.algorithms._graph.edges import Edges
from securefed.algorithms._graph.method import CONSENSUS, GraphMethod
from securefed.algorithms._graph.smooth import SmoothGraph
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError

Utility = Callable[[Tensors, Dataset], float]
"""(final broadcast, held-out rows) -> score; higher is better."""
ACCURACY, BALANCED, CAPTURED = "accuracy", "balanced accuracy", "captured variance"
BALANCED_OF_SOME = "balanced accuracy over the classes of two rows or more"
"""Label where a class of a single row cannot be held out."""
MEAN_SHARE = "mean share of a client's energy in its own basis, on its own rows"
"""Labels of utilities in the report."""


def balanced(score: Utility) -> Utility:
    """Turn an accuracy into balanced accuracy: the mean over the classes of the held-out rows, each scored alone."""

    def over_classes(output: Tensors, test: Dataset) -> float:
        labels = test.labels()
        return float(np.mean([score(output, test.take(labels == one)) for one in np.unique(labels)]))

    return over_classes


def captured_variance(output: Tensors, test: Dataset) -> float:
    """Return the held-out rows' energy in the span of `basis`, over the largest energy at that rank; 1 is optimal.

    For held-out rows X and an orthonormal basis Z (features, rank) it is ||X Z||_F^2 over the sum of the `rank` largest
    squared singular values of X.
    """
    basis, _ = np.linalg.qr(output["basis"])
    best = np.linalg.svd(test.x, compute_uv=False)[: basis.shape[1]]
    return float(np.sum((test.x @ basis) ** 2) / np.sum(best**2))


def mean_share(output: Tensors, test: Dataset) -> float:
    """Return the output of self-learning PCA, a share of energy from 0 to 1.

    Its clients send no basis, so that held-out rows cannot be scored.
    """
    return float(output["share"])


def graph_fit(output: Tensors, test: Dataset) -> float:
    """Return minus the smoothness objective of the broadcast graph on held-out rows.

    The objective is that of `SmoothGraph` (PPGL, (7)) with its weights at the methods' defaults and the mean squared
    distances of the rows: smooth signals have small ones across the edges of the graph. The clients of IGL learn graphs
    of their own, so that it broadcasts the mean of their objectives and no graph; the utility is then minus that mean.
    """
    if CONSENSUS not in output:
        return -float(next(iter(output.values())))
    edges = Edges(test.features)
    problem = SmoothGraph(edges, GraphMethod.alpha, GraphMethod.beta, GraphMethod.zeta)
    graph = np.maximum(output[CONSENSUS], 0.0)  # noise may leave weights below 0
    return -float(problem.objective(graph, edges.distances(test.x) / test.rows))


NAMED: dict[str, tuple[Utility, str]] = {
    "captured_variance": (captured_variance, CAPTURED),
    "mean_share": (mean_share, MEAN_SHARE),
    "graph_fit": (graph_fit, "fit to held-out rows"),
}
"""For each name, a utility and its label in the report."""
OWN = {"score": "score on held-out rows", "accuracy": ACCURACY}
"""Labels of an algorithm's own method `utility`."""


def utility(name: str, build: Callable[[], Algorithm[Any, Any]]) -> tuple[Utility, str]:
    """Find a utility by its name.

    Args:
        name: one of `NAMED` or `OWN`.
        build: makes the algorithm, whose own method `utility` may be meant.

    Returns:
        The utility and its label.

    Raises:
        ConfigError: the name is unknown, or the algorithm has no method `utility`.
    """
    if name in NAMED:
        return NAMED[name]
    if name not in OWN:
        raise ConfigError(f"utility must be one of {', '.join([*OWN, *NAMED])}; got {name!r}")
    kind = type(build())
    if not callable(getattr(kind, "utility", None)):
        raise ConfigError(
            f"{kind.__name__} lacks `utility(output, test)`, which its audit case names; write it, or name one of "
            f"{', '.join(NAMED)}"
        )

    def own(output: Tensors, test: Dataset) -> float:
        built: Any = build()
        return float(built.utility(output, test))

    return own, OWN[name]
