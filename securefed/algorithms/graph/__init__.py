"""Graphs from smooth signals across silos. Importing this registers the methods."""

from __future__ import annotations

# In the order of `securefed list` and of the audit's report.
# isort: off
from securefed.algorithms.graph.ppgl import PPGL
from securefed.algorithms.graph.igl import IGL
from securefed.algorithms.graph.fedavg import GraphFedAvg
from securefed.algorithms.graph.fedprox import GraphFedProx
from securefed.algorithms.graph.mrmtl import MRMTL
from securefed.algorithms.graph.ditto import GraphDitto
# isort: on

__all__ = ["IGL", "MRMTL", "PPGL", "GraphDitto", "GraphFedAvg", "GraphFedProx"]
