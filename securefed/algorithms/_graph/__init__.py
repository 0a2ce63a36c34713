"""Graph learning: graphs across silos from smooth signals (PPGL) and its baselines."""

from __future__ import annotations

# Importing a module registers its algorithms, in the order of `securefed list` and of the audit's report.
# ruff: noqa: F401
# isort: off
from securefed.algorithms._graph.ppgl import PPGL
from securefed.algorithms._graph.igl import IGL
from securefed.algorithms._graph.fedavg import GraphFedAvg
from securefed.algorithms._graph.fedprox import GraphFedProx
from securefed.algorithms._graph.mrmtl import MRMTL
from securefed.algorithms._graph.ditto import GraphDitto
# isort: on
