"""Compare a learned graph with a known one (ppgl eq. 27), and found communities with known groups.

A graph on d vertices is the vector (edges,) of its d (d - 1) / 2 edge weights, as the graph methods return it. For a
user who knows the truth, such as in an experiment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securefed._extras import needed_for
from securefed._hyperparameters import check_number
from securefed._tensors import Array
from securefed.errors import DataError


@dataclass(frozen=True)
class EdgeScores:
    """Scores of one learned graph against the true one.

    Attributes:
        precision: share of the learned edges that are true.
        recall: share of the true edges that are learned.
        f_score: harmonic mean of precision and recall.
        relative_error: ||w - w*||_2 / ||w*||_2; smaller is better.
    """

    precision: float
    recall: float
    f_score: float
    relative_error: float


@dataclass(frozen=True)
class CommunityScores:
    """Scores of communities against known groups; all are 1 for equal partitions.

    Attributes:
        information: normalised mutual information.
        rand: Rand index.
        fowlkes_mallows: Fowlkes-Mallows index.
    """

    information: float
    rand: float
    fowlkes_mallows: float


def edge_scores(learned: Array, truth: Array, threshold: float = 0.2) -> EdgeScores:
    """Score the weights `learned` (edges,) against `truth` (edges,), whose edges are its positive weights.

    A learned edge is a weight above `threshold`. The default, .2, reproduces the paper's table I, which does not state
    one. A graph without any learned edge has precision and F-score 0.

    Raises:
        DataError: different numbers of edges, or a truth without edges (recall and relative error are undefined).
        ConfigError: a negative threshold.
    """
    check_number("threshold", threshold, 0)
    learned, truth = np.asarray(learned), np.asarray(truth)
    if learned.shape != truth.shape or truth.ndim != 1:
        raise DataError(f"two graphs on the same vertices are compared, not {learned.shape} with {truth.shape}")
    if not (truth > 0).any():
        raise DataError("the true graph has no edges, so recall and relative error are undefined; leave it out")
    learned_edges, true_edges = learned > threshold, truth > 0
    hits = int((learned_edges & true_edges).sum())
    precision, recall = hits / max(int(learned_edges.sum()), 1), hits / int(true_edges.sum())
    f_score = 2 * precision * recall / (precision + recall) if hits else 0.0
    return EdgeScores(precision, recall, f_score, float(np.linalg.norm(learned - truth) / np.linalg.norm(truth)))


def community_scores(found: Array, truth: Array) -> CommunityScores:
    """Score the labels `found` (vertices,) against the groups `truth` (vertices,); label names need not match."""
    with needed_for("scoring communities"):
        from sklearn import metrics  # noqa: PLC0415

    return CommunityScores(
        float(metrics.normalized_mutual_info_score(truth, found)),
        float(metrics.rand_score(truth, found)),
        float(metrics.fowlkes_mallows_score(truth, found)),
    )
