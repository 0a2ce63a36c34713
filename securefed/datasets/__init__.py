"""Load data sets, split them over clients, and scale their columns.

    from securefed.datasets import Dataset, load, partition, scaling

`partition` and `scaling` are modules: `partition.dirichlet(data, 10, ...)`, `scaling.z_score(...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.datasets._anomalies import DetectionSplit
    from securefed.datasets._base import Dataset
    from securefed.datasets._graphs import related_graphs, smooth_signals
    from securefed.datasets._loaded_dataset import LoadedDataset
    from securefed.datasets._loaders import load
    from securefed.datasets._named_partitions import partitioned
    from securefed.datasets._spectral_matrices import spectral
    from securefed.datasets._synthetic import linear_rules, low_rank
    from securefed.datasets._tables.files import read_table
    from securefed.datasets._tables.table import Table

__all__ = [
    "Dataset",
    "DetectionSplit",
    "LoadedDataset",
    "Table",
    "linear_rules",
    "load",
    "low_rank",
    "partitioned",
    "read_table",
    "related_graphs",
    "smooth_signals",
    "spectral",
]

EXPORTS = {
    "securefed.datasets._base": "Dataset",
    "securefed.datasets._loaders": "load",
    "securefed.datasets._loaded_dataset": "LoadedDataset",
    "securefed.datasets._anomalies": "DetectionSplit",
    "securefed.datasets._graphs": "related_graphs smooth_signals",
    "securefed.datasets._spectral_matrices": "spectral",
    "securefed.datasets._synthetic": "linear_rules low_rank",
    "securefed.datasets._named_partitions": "partitioned",
    "securefed.datasets._tables.files": "read_table",
    "securefed.datasets._tables.table": "Table",
}
export_lazily(__name__, EXPORTS)
