"""Load data sets, split them over clients, and scale their columns.

    from securefed.datasets import Dataset, load, partition, scaling

`partition` and `scaling` are modules: `partition.dirichlet(data, 10, ...)`, `scaling.z_score(...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import lazy_exports

if TYPE_CHECKING:
    from securefed.datasets._anomalies import DetectionSplit
    from securefed.datasets._base import Dataset
    from securefed.datasets._graphs import related_graphs, smooth_signals
    from securefed.datasets._loaded_dataset import LoadedDataset
    from securefed.datasets._loaders import load
    from securefed.datasets._named_partitions import partitioned
    from securefed.datasets._spectral_matrices import spectral
    from securefed.datasets._synthetic import linear_rules, low_rank

__all__ = [
    "Dataset",
    "DetectionSplit",
    "LoadedDataset",
    "linear_rules",
    "load",
    "low_rank",
    "partitioned",
    "related_graphs",
    "smooth_signals",
    "spectral",
]

EXPORTS = {
    "Dataset": ("securefed.datasets._base", "The rows of one client; a row is a sample, as in scikit-learn."),
    "load": ("securefed.datasets._loaders", "Load a data set by its name, or any .npz file by its path."),
    "LoadedDataset": (
        "securefed.datasets._loaded_dataset",
        "A loaded data set with its official test rows, declared range and groups.",
    ),
    "DetectionSplit": ("securefed.datasets._anomalies", "Training and test rows of an anomaly detection task."),
    "related_graphs": (
        "securefed.datasets._graphs",
        "Draw an RBF graph; each client keeps a share of its edges and adds random ones up to the old number.",
    ),
    "smooth_signals": (
        "securefed.datasets._graphs",
        "Draw rows signals from N(0, L^+ + noise^2 I), L the Laplacian of graph (ppgl eq. 26).",
    ),
    "spectral": (
        "securefed.datasets._spectral_matrices",
        "Draw a matrix with singular values values (n,), client i holding sizes[i] of its m = sum(sizes) columns.",
    ),
    "linear_rules": (
        "securefed.datasets._synthetic",
        "Draw Synthetic(alpha, beta): client k labels rows by a rule of its own, y = argmax(W_k^T x + b_k).",
    ),
    "low_rank": (
        "securefed.datasets._synthetic",
        "Draw readings y_j = <X_G, D_j> + N(0, noise), entries of D_j ~ N(mean, 1), X_G = diag(1, ..., 0) of rank.",
    ),
    "partitioned": ("securefed.datasets._named_partitions", "Split the rows of a data set over clients."),
}
__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
